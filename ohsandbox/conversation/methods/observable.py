"""Observing a conversation: events, cost, context, tools, servers, and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.persistence import LOG_NAME, read_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.cost import ContextUse, ConversationCost
    from ohsandbox.conversation.environment.conversation_environment import Environment
    from ohsandbox.conversation.live_output import LiveOutput, OutputEvent
    from ohsandbox.conversation.log import CallbackQueue, ConversationLog, StreamRelay
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.mcp import ServerStatus


class ObservableConversation:
    """The methods of a conversation that report what it does."""

    _config: ConversationConfig
    _environment: Environment
    _log: ConversationLog
    _stream: StreamRelay
    _output: LiveOutput
    _statuses: CallbackQueue[str]

    def events(self) -> list[SDKEvent]:
        """Return all events of the log so far, read from disk."""
        return read_events(self._log.directory)

    @property
    def cost(self) -> ConversationCost:
        """The cost so far by turn, read from the log on disk; without turns before the first message.

        Raises:
            LogCorruptError: the log is damaged.
        """
        from ohsandbox.conversation.cost import ConversationCost, cost_of  # noqa: PLC0415 - only needed when somebody asks for the cost

        return cost_of(self._log.directory) if (self._log.directory / LOG_NAME).exists() else ConversationCost(())

    @property
    def context(self) -> ContextUse:
        """How much of the model's context window its last request took."""
        llm = self._config.agent.llm
        from ohsandbox.conversation.cost import ContextUse  # noqa: PLC0415 - only needed when somebody asks for the cost

        return ContextUse(self._log.history.prompt_tokens, None if llm is None else llm.context_tokens)

    @property
    def tools(self) -> ToolsMap:
        """The model's tools by name; empty before the first run has made them."""
        return self._environment.tools

    @property
    def servers(self) -> list[ServerStatus]:
        """The MCP servers and their states; empty before they start."""
        servers = self._environment.servers
        return [] if servers is None else servers.status()

    def register_callback(self, callback: Callable[[SDKEvent], None]) -> None:
        """Call callback with each event from now on, in order, after it is stored. Its errors are logged."""
        self._log.listeners.register(callback)

    def register_stream(self, callback: Callable[[LLMEvent], None]) -> None:
        """Call callback with what the model's client reports during a request: text deltas, retries, warnings."""
        self._stream.listeners.register(callback)

    def register_output(self, callback: Callable[[OutputEvent], None]) -> None:
        """Call callback with the end of running calls' output, up to ten times a second, in a thread of its own.

        Each event replaces the previous one of the same call. They are not logged, since the result will be. A tool
        provides the output by `ToolExecutor.last_output`: of commands, cells, MCP servers' progress, sub-agents' steps.
        """
        self._output.register(callback)

    def register_status(self, callback: Callable[[str], None]) -> None:
        """Call callback with a line about what the user waits for, or "" for nothing. It must not block."""
        self._statuses.register(callback)
