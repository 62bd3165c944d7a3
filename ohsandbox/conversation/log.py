"""`ConversationLog`: the event log of a conversation, its projections, and its listeners."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ohsandbox import events
from ohsandbox.agent import History
from ohsandbox.agent.calls import accepted_name
from ohsandbox.arguments import wrong
from ohsandbox.conversation.run.limits import Spending
from ohsandbox.conversation.run.stuck import StuckDetector
from ohsandbox.conversation.storage.metadata import MetadataProjection
from ohsandbox.errors import UsageError
from ohsandbox.events import KNOWN_TYPES, EventBody
from ohsandbox.llm.chat import DeltaEvent
from ohsandbox.persistence import EventLog
from ohsandbox.persistence.log import LogPosition
from ohsandbox.secrets import Masker
from ohsandbox.timetravel.checkpoints import CheckpointIndex
from ohsandbox.tools import arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.conversation.storage.metadata import ConversationMetadata
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.secrets import StreamMasker

_log = logging.getLogger(__name__)

_NEVER_SECRET = frozenset({"tool_call_id", "response_id", "name", "status", "code"})
"""Fields by which events refer to each other, made by ohsandbox or the provider: they are not masked, except the
name of a tool that does not exist, which is the model's text."""

_ENDS_TEXT = frozenset({"assistant_message", "tool_call", "error", "status_update"})
"""Events that follow the complete answer of the model."""

T = TypeVar("T")


class CallbackQueue(Generic[T]):
    """A queue of items and the callbacks for them. Errors of callbacks are logged; a callback may queue more items."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T], None]] = []
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._busy = False

    def register(self, callback: Callable[[T], None]) -> None:
        """Call callback with each item from now on, in the thread that calls `flush`.

        Raises:
            UsageError: callback is not a function.
        """
        if not callable(callback):
            raise wrong("callback", callback, "Give a function.")
        with self._lock:
            self._callbacks.append(callback)

    def unregister(self, callback: Callable[[T], None]) -> None:
        """Stop calling a registered callback."""
        with self._lock:
            self._callbacks.remove(callback)

    def put(self, item: T) -> None:
        """Queue an item; `flush` delivers it."""
        self._queue.append(item)

    def flush(self) -> None:
        """Deliver the queued items; if another thread is delivering already, it delivers these, too."""
        while True:
            with self._lock:
                if self._busy or not self._queue:
                    return
                self._busy = True
                item = self._queue.popleft()
                callbacks = list(self._callbacks)
            try:
                self._call(item, callbacks)
            finally:
                with self._lock:
                    self._busy = False

    def _call(self, item: T, callbacks: list[Callable[[T], None]]) -> None:
        for callback in callbacks:
            try:
                callback(item)
            except Exception:  # noqa: BLE001 - a faulty callback must not end the run
                _log.exception("A callback failed; the conversation goes on.")


class _Lock:
    """A reentrant lock that calls a function after its outermost release."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._then = then

    def __enter__(self) -> Self:
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        outermost = self._depth == 0
        self._lock.release()
        if outermost:
            self._then()


class ConversationLog:
    """Stores each event, then updates the projections (history, spending, checkpoints...), then calls the listeners."""

    def __init__(self, directory: Path, *, conversation_id: str, masker: Callable[[], Masker] = Masker) -> None:
        """Create the log object; nothing is opened yet. masker returns the present masker: see `masker`."""
        self.directory = directory
        self.conversation_id = conversation_id
        self.listeners: CallbackQueue[SDKEvent] = CallbackQueue()
        self.lock = _Lock(self.listeners.flush)
        """Held while an event is stored and added to the projections; hold it to read several of them consistently.

        Listeners are called after its release, since one of them may wait for another thread.
        """
        self._present_masker = masker
        self.history = History()
        self.spending = Spending()
        self.stuck = StuckDetector()
        self.files = CheckpointIndex()
        self._metadata = MetadataProjection()
        self._log: EventLog | None = None

    @property
    def is_open(self) -> bool:
        """Whether events can be stored."""
        return self._log is not None

    @property
    def masker(self) -> Masker:
        """Masks secrets in each event before it is stored, passed to listeners, or shown to the model."""
        return self._present_masker()

    def select(self, conversation_id: str) -> None:
        """Be the log of another conversation, stored beside this one, until `open` not open; only without events."""
        self.close()
        self._log = None
        self.conversation_id, self.directory = conversation_id, self.directory.parent / conversation_id

    def open(self, *take: Callable[[SDKEvent], None]) -> None:
        """Open the log, add its events to the projections, and call each function of take with each of them.

        Raises:
            ConversationOpenError: another process has the conversation open.
            LogCorruptError: the log is damaged.
            UsageError: the directory cannot be used.
        """

        def replay(event: SDKEvent) -> None:
            self._metadata.add(event)
            if event.type in KNOWN_TYPES:
                for add in (self.history.add, self.spending.replay, self.stuck.add, self.files.add, *take):
                    add(event)

        self._log = EventLog(self.directory, conversation_id=self.conversation_id, take=replay)

    def emit(self, body: EventBody) -> SDKEvent:
        """Store an event and add it to the projections; listeners are called once `lock` is released.

        Raises:
            LogWriteError: the event could not be stored.
            UsageError: the log is not open.
        """
        with self.lock:
            if self._log is None:
                raise UsageError(f"Conversation {self.conversation_id!r} is not started. Start or open it first.")
            event = self._log.append(self._masked(body))
            for projection in (self.history, self.spending, self.stuck, self.files, self._metadata):
                projection.add(event)
            self.listeners.put(event)
            return event

    def metadata(self) -> ConversationMetadata:
        """Return the metadata of the conversation."""
        with self.lock:
            return self._metadata.metadata(self.conversation_id, log_bytes=self.position.offset)

    @property
    def has_events(self) -> bool:
        """Whether the log has any event."""
        return self.position.seq > 0

    @property
    def position(self) -> LogPosition:
        """The current end of the log; its beginning if it was not opened."""
        return LogPosition(0, 0) if self._log is None else self._log.position

    def close(self) -> None:
        """Close the log; idempotent."""
        if self._log is not None:
            self._log.close()

    def _masked(self, body: EventBody) -> EventBody:
        if not self.masker:
            return body
        mask, data = self.masker.mask_json, body.data
        masked = {key: value if key in _NEVER_SECRET else mask(value) for key, value in data.items()}
        if body.type == "tool_call":
            decoded = arguments_of(data)
            if (plain := mask(decoded)) != decoded:  # the escapes of JSON may hide a value; displays undo them
                masked["arguments"] = json.dumps(plain)
            if data.get("hint") is None and (name := mask(data["name"])) != data["name"]:
                masked["name"] = accepted_name(name)  # of no tool
        elif body.type == "tool_result":
            masked["name"] = self.history.unanswered.get(data["tool_call_id"], data["name"])
        return EventBody(body.type, masked)


class StreamRelay:
    """Stores retries and warnings in the log, and passes these and text deltas, masked, to the listeners."""

    def __init__(self, log: ConversationLog) -> None:
        self.listeners: CallbackQueue[LLMEvent] = CallbackQueue()
        self._log = log
        self._lock = threading.Lock()
        self._text: StreamMasker | None = None
        log.listeners.register(self._end_text)

    def __call__(self, event: LLMEvent) -> None:
        """Handle an event of the model's client, in the thread of the request."""
        mask = self._log.masker.mask_cut
        if event.type == "delta":
            with self._lock:
                self._text = self._text or self._log.masker.stream()
                self._put_text(self._text.feed(event.text))
        elif event.type == "retry":
            with self._lock:
                self._text = None  # the streamed text is void
            fields: dict[str, Any] = event.model_dump(include={"attempt", "attempts", "wait_s"}, exclude_none=True)
            self._log.emit(events.retry(code="ModelRetry", message=event.reason, **fields))
            self.listeners.put(event.model_copy(update={"reason": mask(event.reason)}))
        else:
            self._log.emit(events.notice(code="ModelWarning", message=event.text))
            self.listeners.put(event.model_copy(update={"text": mask(event.text)}))
        self.listeners.flush()

    def _end_text(self, event: SDKEvent) -> None:
        """Deliver text that was held back because it could be the beginning of a secret."""
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
