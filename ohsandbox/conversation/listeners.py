"""Telling callbacks what happened: in the log's order, one at a time, whatever they do."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ohsandbox import events
from ohsandbox.llm.chat import DeltaEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.secrets import TextStreamMasker

_log = logging.getLogger(__name__)

_ENDS_TEXT = frozenset({"assistant_message", "tool_call", "error", "status_update"})
"""Events that stand in the log once the model's answer is whole."""

T = TypeVar("T")


class Listeners(Generic[T]):
    """A queue of things to tell. A callback that fails is logged; one that speaks up itself is told after."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T], None]] = []
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._busy = False

    def register(self, callback: Callable[[T], None]) -> None:
        """Tell callback everything from now on, in whichever thread it happens."""
        with self._lock:
            self._callbacks.append(callback)

    def put(self, item: T) -> None:
        """Queue an item; `flush` tells it."""
        self._queue.append(item)

    def flush(self) -> None:
        """Tell what is queued; at once a no-op where another call is at it, which then tells this too."""
        while True:
            with self._lock:
                if self._busy or not self._queue:
                    return
                self._busy = True
                item = self._queue.popleft()
                callbacks = list(self._callbacks)
            try:
                self._tell(item, callbacks)
            finally:
                with self._lock:
                    self._busy = False

    def _tell(self, item: T, callbacks: list[Callable[[T], None]]) -> None:
        for callback in callbacks:
            try:
                callback(item)
            except Exception:  # noqa: BLE001 - a faulty callback must not end the run
                _log.exception("A callback failed; the conversation goes on.")


class StreamRelay:
    """Retries and warnings go into the log; all of it goes, masked, to those who look on, pieces of text as well."""

    def __init__(self, log: ConversationLog) -> None:
        self.listeners: Listeners[LLMEvent] = Listeners()
        self._log = log
        self._lock = threading.Lock()
        self._text: TextStreamMasker | None = None
        log.listeners.register(self._end_text)

    def __call__(self, event: LLMEvent) -> None:
        """Hear of something; in the thread that asks the model."""
        mask = self._log.masker.mask_cut
        if event.type == "delta":
            with self._lock:
                self._text = self._text or self._log.masker.text_stream()
                self._put_text(self._text.feed(event.text))
        elif event.type == "retry":
            with self._lock:
                self._text = None  # what was streamed is void
            facts: dict[str, Any] = {"attempt": event.attempt, "wait_s": event.wait_s}
            self._log.emit(events.retry(code="ModelRetry", message=event.reason, **facts))
            self.listeners.put(event.model_copy(update={"reason": mask(event.reason)}))
        else:
            self._log.emit(events.notice(code="ModelWarning", message=event.text))
            self.listeners.put(event.model_copy(update={"text": mask(event.text)}))
        self.listeners.flush()

    def _end_text(self, event: SDKEvent) -> None:
        """Give out what was held back as the possible beginning of a secret."""
        if event.type not in _ENDS_TEXT:
            return
        with self._lock:
            text, self._text = self._text, None
            if text is not None:
                self._put_text(text.flush())
        self.listeners.flush()

    def _put_text(self, text: str) -> None:
        if text:
            self.listeners.put(DeltaEvent(text=text))
