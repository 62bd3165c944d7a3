"""`ConversationLog`: the event log of a conversation, its listeners, and its projections."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ohsandbox.agent import History
from ohsandbox.conversation.listeners import Listeners
from ohsandbox.conversation.projections.metadata import MetadataProjection
from ohsandbox.conversation.projections.spending import Spending
from ohsandbox.conversation.projections.stuck import StuckDetector
from ohsandbox.errors import UsageError
from ohsandbox.events import KNOWN_TYPES, EventBody
from ohsandbox.persistence import EventLog
from ohsandbox.secrets import Masker
from ohsandbox.timetravel.checkpoints import CheckpointIndex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.conversation.storage.metadata import ConversationMetadata
    from ohsandbox.events import SDKEvent


_NEVER_SECRET = frozenset({"tool_call_id", "response_id", "name", "status", "code"})
"""Fields that ohsandbox or the provider made, and by which events refer to each other: they are never masked."""


class ConversationLog:
    """Stores each event, then updates the projections (history, spending, checkpoints...), then tells the listeners."""

    def __init__(self, directory: Path, *, conversation_id: str) -> None:
        """Open nothing yet."""
        self.directory = directory
        self.conversation_id = conversation_id
        self.lock = threading.RLock()
        """Held while an event is stored and added to the projections; hold it to read several of them at once."""
        self.masker = Masker()
        """Takes secrets out of every event before it is stored, told to listeners, or shown to the model."""
        self.history = History()
        self.spending = Spending()
        self.stuck = StuckDetector()
        self.files = CheckpointIndex()
        self._tally = MetadataProjection()
        self.listeners: Listeners[SDKEvent] = Listeners()
        self._log: EventLog | None = None

    @property
    def is_open(self) -> bool:
        """Whether events can be stored."""
        return self._log is not None

    def open(self, *take: Callable[[SDKEvent], None], masker: Masker | None = None) -> None:
        """Open the log and add the events that it holds to the projections.

        Args:
            take: each is called with every event.
            masker: takes secrets out of every event to come; None takes out none.

        Raises:
            ConversationOpenError: another process has the conversation.
            LogCorruptError: the log is damaged.
            UsageError: the directory cannot be used.
        """
        self.masker = masker or Masker()

        def take_in(event: SDKEvent) -> None:
            self._tally.add(event)
            if event.type not in KNOWN_TYPES:
                return
            self.history.add(event)
            self.spending.recall(event)
            self.stuck.add(event)
            self.files.add(event)
            for one in take:
                one(event)

        self._log = EventLog(self.directory, conversation_id=self.conversation_id, take=take_in)

    def record(self, body: EventBody) -> SDKEvent:
        """Store an event and add it to the projections; `flush` tells the listeners.

        Raises:
            LogWriteError: it could not be stored.
        """
        with self.lock:
            if self._log is None:
                raise UsageError(f"Conversation {self.conversation_id!r} is not started.")
            event = self._log.append(self._masked(body))
            self._take_in(event)
            self.listeners.put(event)
            return event

    def emit(self, body: EventBody) -> SDKEvent:
        """`record`, then `flush`. Do not call it while holding `lock`: a listener may wait for another thread."""
        event = self.record(body)
        self.flush()
        return event

    def metadata(self) -> ConversationMetadata:
        """The metadata of the conversation, as a list of conversations shows it."""
        with self.lock:
            log_bytes = self._log.size_bytes if self._log is not None else 0
            return self._tally.metadata(self.conversation_id, log_bytes=log_bytes)

    def flush(self) -> None:
        """Call the listeners with the events that they have not had."""
        self.listeners.flush()

    def close(self) -> None:
        """Close the log. Twice is fine."""
        if self._log is not None:
            self._log.close()

    def _masked(self, body: EventBody) -> EventBody:
        if not self.masker:
            return body
        mask = self.masker.mask_json
        return EventBody(
            body.type, {key: value if key in _NEVER_SECRET else mask(value) for key, value in body.data.items()}
        )

    def _take_in(self, event: SDKEvent) -> None:
        self.history.add(event)
        self.spending.add(event)
        self.stuck.add(event)
        self.files.add(event)
        self._tally.add(event)
