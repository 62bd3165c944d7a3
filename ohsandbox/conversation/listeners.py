"""`Listeners` calls callbacks in order, one at a time; `StreamRelay` gives them what the model's client reports."""

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
"""Events that are stored after the model's answer is complete."""

T = TypeVar("T")


class Listeners(Generic[T]):
    """A queue of items and callbacks for them. A callback that raises is logged; what it adds comes later."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T], None]] = []
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._busy = False

    def register(self, callback: Callable[[T], None]) -> None:
        """Call callback with every item from now on, in the thread that flushes."""
        with self._lock:
            self._callbacks.append(callback)

    def put(self, item: T) -> None:
        """Queue an item; `flush` delivers it."""
        self._queue.append(item)

    def flush(self) -> None:
        """Deliver what is queued; returns at once where another thread is delivering, which then delivers this too."""
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
    """Stores retries and warnings in the log, and passes all events, text deltas too, masked to the listeners."""

    def __init__(self, log: ConversationLog) -> None:
        self.listeners: Listeners[LLMEvent] = Listeners()
        self._log = log
        self._lock = threading.Lock()
        self._text: TextStreamMasker | None = None
        log.listeners.register(self._end_text)

    def __call__(self, event: LLMEvent) -> None:
        """Take an event of the model's client, in the thread of the request."""
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
        """Deliver the text that was held back as the possible beginning of a secret."""
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
