"""`LiveOutput`: what running tool calls have printed so far, for who looks on before their results are there."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from ohsandbox.conversation.log import Listeners
from ohsandbox.events import ConversationStatus
from ohsandbox.runtime.shell.output import printable_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import SDKEvent
    from ohsandbox.tool import ToolDefinition

LOOK_EVERY_S = 0.1
"""Seconds between looks at a call's output; most calls end sooner and are never looked at."""

_logger = logging.getLogger(__name__)


class OutputEvent(BaseModel):
    """The end of what a running call has printed so far. It replaces the event before of the same call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["output"] = "output"
    tool_call_id: str
    name: str
    """The name of the tool."""
    text: str
    """Whole lines but for the last, LAST_OUTPUT_BYTES at most; secrets are masked, and no control is in it but line
    feeds and tabs. A line that the program rewrites, as a progress bar, has its last state."""


class LiveOutput:
    """Looks at the calls that run while somebody listens, and tells when the end of their output has changed.

    The output is not passed through: the sandbox keeps the end of it anyway, so a flood costs nothing here, and nobody
    is sent a piece that is half of a secret. Where nobody listens nothing is looked at.
    """

    def __init__(self, log: ConversationLog, tool: Callable[[str], ToolDefinition[Any, Any] | None]) -> None:
        """`tool` is a function that returns the conversation's tool of a name, or None."""
        self._log, self._tool = log, tool
        self._listeners: Listeners[OutputEvent] = Listeners()
        self._changed = threading.Condition()
        self._is_heard = self._is_on = False
        self._thread: threading.Thread | None = None
        log.listeners.register(self._follow)

    def register(self, callback: Callable[[OutputEvent], None]) -> None:
        """Call callback with every event from now on, in a thread of its own.

        Raises:
            UsageError: it is not a function.
        """
        self._listeners.register(callback)
        with self._changed:
            self._is_heard = True
            self._begin()

    def _follow(self, event: SDKEvent) -> None:
        """Begin and end with the runs; a result or a call is worth no more than a look at the log."""
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
        """Watch the running calls, in a thread of its own, while a run is in progress."""
        told: dict[str, OutputEvent] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_on or self._log.history.unanswered)
                self._changed.wait_for(lambda: not self._is_on, LOOK_EVERY_S)
                if not self._is_on:
                    self._thread = None
                    return
            outputs = {event.tool_call_id: event for event in self._outputs()}
            for event in outputs.values():
                if event.text and event != told.get(event.tool_call_id):
                    self._listeners.put(event)
            self._listeners.flush()
            told = outputs

    def _outputs(self) -> Iterator[OutputEvent]:
        """Of the calls that run: the first without a result, and those that read only and stand beside such a one."""
        calls = self._log.history.unanswered.items()
        found = [(tool_call_id, tool) for tool_call_id, name in calls if (tool := self._tool(name)) is not None]
        beside = [*itertools.takewhile(lambda call: call[1].is_read_only, found)]
        for tool_call_id, tool in beside or found[:1]:
            try:
                data = tool.last_output()
            except Exception:
                _logger.debug("Tool %r has no output to show.", tool.name, exc_info=True)
                continue
            text = printable_end(data, self._log.masker)
            yield OutputEvent(tool_call_id=tool_call_id, name=tool.name, text=text)
