"""Cutting a damaged log back to its last valid record, when the user asks for it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import events
from ohsandbox.errors import LogWriteError
from ohsandbox.events.event import unchecked
from ohsandbox.persistence.lock import DirectoryLock
from ohsandbox.persistence.reading import LOG_NAME
from ohsandbox.persistence.records import Scan, encode_record, scan_log
from ohsandbox.private_files import copy_apart, open_regular, write_all

if TYPE_CHECKING:
    from pathlib import Path


class Repair(NamedTuple):
    """The result of a repair."""

    kept: int
    """Records before the damage."""
    lost_bytes: int
    """Bytes removed from the log; 0 if it was not damaged."""
    whole_lost: int
    """Records after the damage with correct checksums; the conversation loses them, the copy keeps them."""
    reason: str
    copy: Path | None
    """Path of the copy of the log as it was."""


def repair_log(directory: Path, *, conversation_id: str) -> Repair:
    """Copy a log, cut it after its last valid record, and add a notice. An undamaged log is unchanged.

    Raises:
        ConversationOpenError: another process has the conversation.
        LogWriteError: the copy or the cut failed (disk full); before the cut nothing was changed.
        UsageError: the log is missing, not a regular file, or of a newer version.
    """
    path = directory / LOG_NAME
    os.close(open_regular(path, os.O_RDONLY, name="Log"))  # before locking, which would create a file beside no log
    with DirectoryLock(directory, name=conversation_id):
        descriptor = open_regular(path, os.O_RDWR | os.O_APPEND, name="Log")
        try:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                found = scan_log(file, path=path, take=lambda _: None)
            reason = found.damage or "its last record was cut short by a crash"
            if not found.rest_bytes:
                return Repair(found.records, 0, 0, "", None)
            copy = _cut(descriptor, directory, found, conversation_id=conversation_id)
        except OSError as error:
            raise LogWriteError(f"Log {str(path)!r} cannot be repaired: {error.strerror}. Free space.") from error
        finally:
            os.close(descriptor)
    return Repair(found.records, found.rest_bytes, found.whole_after, reason, copy)


def _cut(descriptor: int, directory: Path, found: Scan, *, conversation_id: str) -> Path:
    copy = directory / f"sdk_events.damaged-{found.end_offset}-{os.urandom(4).hex()}"
    copy_apart(descriptor, copy)
    os.ftruncate(descriptor, found.end_offset)
    body = events.notice(
        code="LogRepaired",
        message=f"The log was damaged and was cut after its record {found.records - 1}: {found.rest_bytes} bytes, with "
        f"{found.whole_after} whole records among them, are lost to it. The log as it was: {copy.name!r}.",
    )
    event = unchecked(
        body.type, ts=datetime.now(UTC), conversation_id=conversation_id, seq=found.records, data=body.data
    )
    write_all(descriptor, encode_record(event, None))
    os.fsync(descriptor)
    return copy
