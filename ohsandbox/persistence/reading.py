"""Reading a log while another process may write it: without a lock, and without changing anything."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import UsageError
from ohsandbox.events import SDKEvent
from ohsandbox.persistence.blobs import Blobs
from ohsandbox.persistence.records import Scan, check_sound, check_version, decode_record, is_blank, scan_log
from ohsandbox.private_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_NAME = "sdk_events.jsonl"


def read_events(path: Path | str) -> list[SDKEvent]:
    """Return every complete event of a log, given the file or its directory; a torn or half-written tail is skipped.

    Raises:
        Everything that `stream_events` raises.
    """
    found: list[SDKEvent] = []
    stream_events(path, found.append)
    return found


def stream_events(path: Path | str, take: Callable[[SDKEvent], None]) -> Scan:
    """Pass every complete event of a log to take, one at a time: a long log is never in memory as a whole.

    Raises:
        LogCorruptError: the log is damaged before its last record; take was called with the events before the damage.
        UsageError: the log does not exist, is not a regular file, or was written by a newer version.
    """
    path = Path(path)
    file_path = path / LOG_NAME if path.is_dir() else path
    with os.fdopen(open_regular(file_path, os.O_RDONLY, name="Log"), "rb") as file:
        return check_sound(scan_log(file, path=file_path, take=take), file_path)


def tail_events(directory: Path, *, limit_bytes: int) -> list[SDKEvent]:
    """Return the complete events in the last bytes of a log, without checking order or checksums.

    Lines that are not events, and texts with files of their own, are left out. Without a log the list is empty.
    """
    try:
        with os.fdopen(open_regular(directory / LOG_NAME, os.O_RDONLY, name="Log"), "rb") as file:
            begin = max(0, os.fstat(file.fileno()).st_size - limit_bytes)
            file.seek(begin)
            lines = file.read(limit_bytes).split(b"\n")[1 if begin else 0 : -1]
    except (OSError, UsageError):
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(SDKEvent.model_validate_json(line))
    return found


class LogFollower:
    """A log that grows while it is read."""

    def __init__(self, directory: Path, *, offset: int = 0, seq: int = 0) -> None:
        """Open the log for reading from record number seq, which begins at offset in bytes.

        Raises:
            UsageError: the log does not exist, or is not a regular file.
        """
        self._path = directory / LOG_NAME
        self._blobs = Blobs(directory)
        self._file = os.fdopen(open_regular(self._path, os.O_RDONLY, name="Log"), "rb")
        self._offset = offset
        self._seq = seq

    def new(self) -> Iterator[SDKEvent]:
        """Yield the complete events that were not yielded before.

        Raises:
            LogCorruptError: the next record is damaged.
            UsageError: a newer version wrote the log, or it was cut while it was read.
        """
        if os.fstat(self._file.fileno()).st_size < self._offset:
            raise UsageError(f"Log {str(self._path)!r} was cut while it was read. Show it again.")
        self._file.seek(self._offset)
        for line in self._file:
            if not line.endswith(b"\n"):
                return
            if is_blank(line):
                self._offset += len(line)
                continue
            if self._seq == 0:
                check_version(line, self._path)
            try:
                event = decode_record(line[:-1], seq=self._seq, blobs=self._blobs)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                check_sound(Scan(self._seq, self._offset, len(line), str(error), 0), self._path)
                raise
            self._offset += len(line)
            self._seq += 1
            yield event

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
