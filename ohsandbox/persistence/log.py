"""`EventLog`: the append-only `sdk_events.jsonl` of one conversation."""

from __future__ import annotations

import contextlib
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox import events
from ohsandbox.errors import LogWriteError
from ohsandbox.events.event import unchecked
from ohsandbox.persistence.blobs import Blobs
from ohsandbox.persistence.lock import DirectoryLock
from ohsandbox.persistence.reading import LOG_NAME
from ohsandbox.persistence.recency import Recency
from ohsandbox.persistence.records import Scan, check_sound, encode_record, scan_log
from ohsandbox.private_files import (
    PRIVATE_FILE_MODE,
    copy_apart,
    make_private_dir,
    open_regular,
    opened_dir,
    sync_data,
    sync_dir,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.events import EventBody, SDKEvent


class LogPosition(NamedTuple):
    """Position and number of the next record; one value, so that an interrupt finds both parts old or both new."""

    offset: int
    seq: int


class EventLog:
    """The log of one conversation, open for appending by this process alone.

    Opening takes the directory's lock, reads every record, and moves a torn tail to a file of its own before anything
    is appended. `append` may be called from several threads.
    """

    def __init__(
        self, directory: Path | str, *, conversation_id: str, take: Callable[[SDKEvent], None] | None = None
    ) -> None:
        """Open the log; create directory (0700) and file (0600) if missing.

        take is called with each event of the log, one at a time, so that a long log is never in memory as a whole; the
        notice of a repair comes last.

        Raises:
            ConversationOpenError: another process has it open.
            LogCorruptError: the log is damaged before its last record; take was called with the events before the
                damage.
            LogWriteError: a torn tail could not be moved (disk full).
            UsageError: the directory cannot be used, the log is not a regular file, or a newer version wrote it.
        """
        self.directory = Path(directory)
        self.path = self.directory / LOG_NAME
        self.conversation_id = conversation_id
        self._guard = threading.Lock()
        self._failure: LogWriteError | None = None
        self.position = LogPosition(0, 0)
        """Position and number of the next record."""
        self._blobs = Blobs(self.directory)
        self._recency = Recency(self.directory)
        self._take = take or (lambda _: None)
        make_private_dir(self.directory)
        self._lock = DirectoryLock(self.directory, name=conversation_id)
        self._descriptor = -1
        try:
            self._descriptor = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, name="Log")
            self._recover()
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError) or isinstance(error, LogWriteError):
                raise
            raise LogWriteError(
                f"Log {str(self.path)!r} cannot be opened: {error.strerror}. Repair the disk, then try again."
            ) from error

    def append(self, body: EventBody) -> SDKEvent:
        """Add time and number to the event and store it durably: after the return a power cut does not lose it.

        Raises:
            LogWriteError: the event is not in the log (disk full, I/O error, log closed), and later ones will not be
                either.
        """
        with self._guard:
            if self._failure is not None:
                raise self._failure
            if self._descriptor < 0:
                raise LogWriteError(f"Log {str(self.path)!r} is closed. Start the conversation again.")
            event = unchecked(
                body.type,
                ts=datetime.now(UTC),
                conversation_id=self.conversation_id,
                seq=self.position.seq,
                data=body.data,
            )
            self._write(event)
            self._recency.note()
            return event

    def close(self) -> None:
        """Close the file and release the lock. Calling it twice is fine."""
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, event: SDKEvent) -> None:
        self._check_ours()
        try:
            line = encode_record(event, self._blobs)
            write_all(self._descriptor, line)
            sync_data(self._descriptor)
            self.position = LogPosition(self.position.offset + len(line), self.position.seq + 1)
        except OSError as error:
            self._failure = LogWriteError(
                f"Log {str(self.path)!r} cannot be written: {error.strerror}. Free space or repair the disk, "
                "then start the conversation again."
            )
            self._cut_back()
            raise self._failure from error
        except BaseException:  # Ctrl-C between write and return: the record is stored whole or not at all
            self._cut_back()
            raise

    def _check_ours(self) -> None:
        """Check that the file still exists and ends where we left it; a lock does not keep `rm` or an editor out.

        The path must still lead to the same file: if a directory above was replaced, the next file would be written
        elsewhere.
        """
        found = os.fstat(self._descriptor)
        is_there = False
        with contextlib.suppress(OSError), opened_dir(self.directory) as directory:
            named = os.stat(LOG_NAME, dir_fd=directory, follow_symlinks=False)
            is_there = os.path.samestat(found, named)
        if is_there and found.st_size == self.position.offset:
            return
        harm = "changed by another program" if is_there else "removed, or its directory replaced,"
        self._failure = LogWriteError(
            f"Log {str(self.path)!r} was {harm} while it was open. Nothing more is written to it; "
            "start the conversation again."
        )
        raise self._failure

    def _cut_back(self) -> None:
        """Remove what a failed write left. The sync is not retried: after a failed one the kernel reports success."""
        try:
            os.ftruncate(self._descriptor, self.position.offset)
        except OSError:
            return  # the next opening finds a torn tail and cuts it

    def _recover(self) -> None:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            found = check_sound(scan_log(file, path=self.path, take=self._take), self.path)
        self.position = LogPosition(found.end_offset, found.records)
        os.fchmod(self._descriptor, PRIVATE_FILE_MODE)
        if found.rest_bytes:
            self._cut_aside(found)
        elif os.fstat(self._descriptor).st_size > found.end_offset:  # otherwise only blank lines follow
            os.ftruncate(self._descriptor, found.end_offset)
        if not found.records:
            sync_dir(self.directory)
        if not self._lock.is_held:
            self._note("NoLock", "This file system cannot lock: a second process could open the conversation too.")

    def _cut_aside(self, found: Scan) -> None:
        aside = self.directory / f"sdk_events.torn-{found.end_offset}-{os.urandom(4).hex()}"
        try:
            copy_apart(self._descriptor, aside, offset=found.end_offset)
            os.ftruncate(self._descriptor, found.end_offset)
            os.fsync(self._descriptor)
        except OSError as error:
            raise LogWriteError(
                f"The torn end of log {str(self.path)!r} cannot be moved aside: {error.strerror}. "
                "Free space or repair the disk, then try again."
            ) from error
        self._note(
            "LogRepaired",
            f"The log ended in {found.rest_bytes} bytes of a record that a crash cut short; they were moved to "
            f"{aside.name!r}. The {found.records} records before it are whole.",
        )

    def _note(self, code: str, message: str) -> None:
        self._take(self.append(events.notice(code=code, message=message)))
