"""`LiveOutput`: the output of tool calls while they run."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from ohsandbox.conversation.log import CallbackQueue
from ohsandbox.events import ConversationStatus
from ohsandbox.runtime.shell.output import printable_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import SDKEvent
    from ohsandbox.tool import ToolDefinition

LOOK_EVERY_S = 0.1
"""Seconds between looks at the output of running calls; most calls end sooner."""

_logger = logging.getLogger(__name__)


class OutputEvent(BaseModel):
    """The end of a running call's output so far. It replaces the previous event of the same call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["output"] = "output"
    tool_call_id: str
    name: str
    """The name of the tool."""
    text: str
    """At most LAST_OUTPUT_BYTES, from the beginning of a line. Secrets are masked; line feeds and tabs are its only
    control characters. A line that the program rewrites, such as a progress bar, has its last state."""


class LiveOutput:
    """Looks at the output of running calls while there are callbacks, and passes it on when its end has changed.

    The output is not streamed: the sandbox keeps its end anyway, so much output costs nothing, and no piece holds half
    of a secret. Without callbacks, nothing is looked at.
    """

    def __init__(self, log: ConversationLog, tool: Callable[[str], ToolDefinition[Any, Any] | None]) -> None:
        """Create it; tool returns the conversation's tool of a name, or None."""
        self._log, self._tool = log, tool
        self._listeners: CallbackQueue[OutputEvent] = CallbackQueue()
        self._changed = threading.Condition()
        self._is_heard = self._is_on = False
        self._thread: threading.Thread | None = None
        log.listeners.register(self._follow)

    def register(self, callback: Callable[[OutputEvent], None]) -> None:
        """Call callback with each event from now on, in a thread of this object.

        Raises:
            UsageError: callback is not a function.
        """
        self._listeners.register(callback)
        with self._changed:
            self._is_heard = True
            self._begin()

    def _follow(self, event: SDKEvent) -> None:
        """Start and end with the runs; wake the thread when a call begins or ends."""
        with self._changed:
            if event.type == "status_update":
                self._is_on = ConversationStatus(event.data["status"]) is ConversationStatus.RUNNING
            elif event.type not in {"tool_call", "tool_result"}:
                return
            self._begin()
            self._changed.notify_all()

    def _begin(self) -> None:
        if self._is_heard and self._is_on and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="ohsandbox-output", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        """Look at the running calls until the run ends; runs in a thread."""
        reported: dict[str, OutputEvent] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_on or self._log.history.unanswered)
                self._changed.wait_for(lambda: not self._is_on, LOOK_EVERY_S)
                if not self._is_on:
                    self._thread = None
                    return
            outputs = {event.tool_call_id: event for event in self._outputs()}
            for event in outputs.values():
                if event.text and event != reported.get(event.tool_call_id):
                    self._listeners.put(event)
            self._listeners.flush()
            reported = outputs

    def _outputs(self) -> Iterator[OutputEvent]:
        """Yield the outputs of running calls: the first unanswered one, or all read-only ones at the beginning."""
        calls = self._log.history.unanswered.items()
        tools = [(tool_call_id, tool) for tool_call_id, name in calls if (tool := self._tool(name)) is not None]
        beside = [*itertools.takewhile(lambda call: call[1].is_read_only, tools)]
        for tool_call_id, tool in beside or tools[:1]:
            try:
                data = tool.last_output()
            except Exception:
                _logger.debug("Tool %r has no output to show.", tool.name, exc_info=True)
                continue
            text = printable_end(data, self._log.masker)
            yield OutputEvent(tool_call_id=tool_call_id, name=tool.name, text=text)
