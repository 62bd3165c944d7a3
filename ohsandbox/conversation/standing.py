"""`Standing`: where a conversation stands, for who asks, in the log, and in the metadata."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.conversation.outcome import error_event
from ohsandbox.conversation.storage.metadata import keep_metadata
from ohsandbox.errors import OhsandboxError
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.storage.metadata import ConversationStore
    from ohsandbox.events import SDKEvent


class Standing:
    """The status, and the error that the last run ended with. Whoever changes it holds the log's guard."""

    def __init__(self, log: ConversationLog, config: ConversationConfig, store: ConversationStore) -> None:
        """IDLE, until a log says otherwise."""
        self.status = ConversationStatus.IDLE
        self.error: BaseException | None = None
        self._log = log
        self._config = config
        self._store = store

    def recall(self, event: SDKEvent) -> None:
        """Take in an event of an earlier process."""
        if event.type == "status_update":
            self.status = ConversationStatus(event.data["status"])

    def take_over(self, *, is_finished: bool, is_asking: bool) -> None:
        """The log is read and ours: a process that it left running is dead.

        Args:
            is_finished: the last thing that happened is a `finish`.
            is_asking: calls wait for a person.
        """
        if self.status is ConversationStatus.RUNNING:
            self.status = ConversationStatus.FINISHED if is_finished else ConversationStatus.IDLE
        if is_asking:
            self.status = ConversationStatus.WAITING_FOR_CONFIRMATION

    def become(self, status: ConversationStatus) -> None:
        """Another status: stored, and kept in the metadata.

        Raises:
            LogWriteError: it could not be stored; the status is as it was.
        """
        self._log.record(events.status_update(status, model=self._config.llm.name, user_id=self._config.user_id))
        self.status = status
        keep_metadata(self._store, self._log.metadata())

    def begin_run(self) -> None:
        """RUNNING, and no error any more.

        Raises:
            LogWriteError: it could not be stored.
        """
        self.error = None
        self.become(ConversationStatus.RUNNING)

    def end_run(self, status: ConversationStatus, error: BaseException | None) -> None:
        """What a run came to; a log that fails only keeps it from the disk."""
        self.error = error
        self.status = status
        with contextlib.suppress(OhsandboxError):  # a log that failed: `error` says so already
            if error is not None:
                self._log.record(error_event(error))
            self.become(status)
