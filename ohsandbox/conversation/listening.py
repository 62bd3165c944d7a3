"""The callbacks of a conversation: its events, an answer as it is written, output as it comes, what is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.live_output import LiveOutput, OutputEvent
    from ohsandbox.conversation.log import ConversationLog, Listeners, StreamRelay
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent


class ObservedConversation:
    """What a conversation tells while it works."""

    _log: ConversationLog
    _stream: StreamRelay
    _output: LiveOutput
    _statuses: Listeners[str]

    def register_callback(self, callback: Callable[[SDKEvent], None]) -> None:
        """Call with every event from now on, in order, after it is stored. An exception of callback is logged."""
        self._log.listeners.register(callback)

    def register_stream(self, callback: Callable[[LLMEvent], None]) -> None:
        """Call with what the model's client reports during a request: text deltas, retries, warnings."""
        self._stream.listeners.register(callback)

    def register_output(self, callback: Callable[[OutputEvent], None]) -> None:
        """Call with the end of what running calls have printed so far, ten times a second, in a thread of its own.

        Each event replaces the one before of the same call. None is in the log: the result will be. What a tool gives
        so is up to it (`ToolExecutor.last_output`): commands, cells, progress of MCP servers, steps of sub-agents.
        """
        self._output.register(callback)

    def register_status(self, callback: Callable[[str], None]) -> None:
        """Call with a line about what is being waited for, or "" for nothing. It must not block."""
        self._statuses.register(callback)
