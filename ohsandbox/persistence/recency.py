"""Which conversation of a directory was written last, whatever the clock says.

A clock may be set back or run ahead, so a conversation's time says nothing about order. A journal beside the
conversations has a line with the name of one each time that another one than the last is written.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.persistence.layout import AGENTS_NAME
from ohsandbox.private_files import PRIVATE_FILE_MODE, open_regular, read_regular, try_lock, write_all, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

JOURNAL_NAME = ".written"
_MAX_TRIES = 5
_MAX_BYTES = 1024 * 1024
"""Beyond this, 40,000 lines, the journal is written anew with one line for each conversation that is there."""


class Recency:
    """The place of one conversation in the journal of its directory."""

    def __init__(self, directory: Path) -> None:
        """Use the conversation's directory; nothing is read or written yet."""
        self._directory = directory
        self._path = directory.parent / JOURNAL_NAME
        self._seen: tuple[int, int] | None = None
        """Inode and size of the journal when this conversation was its last line."""

    def note(self) -> None:
        """Make this conversation the last one; where the journal cannot be written, times decide as before."""
        if self._directory.parent.name == AGENTS_NAME:  # sub-agents are found by name
            return
        with contextlib.suppress(OSError):
            if self._seen is not None and _identity(os.lstat(self._path)) == self._seen:
                return
        with contextlib.suppress(OSError, UsageError):
            any(self._append() for _ in range(_MAX_TRIES))  # some file systems give a file another inode at each look

    def _append(self) -> bool:
        """Append the line unless it is the last one; return False if it went to a journal that was replaced since."""
        descriptor = open_regular(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, name="Journal")
        try:
            line = b"\n" + os.fsencode(self._directory.name) + b"\n"
            if not (size := os.fstat(descriptor).st_size):
                os.fchmod(descriptor, PRIVATE_FILE_MODE)
            if os.pread(descriptor, len(line), max(0, size - len(line))) != line:
                write_all(descriptor, line)
            self._seen = _identity(os.fstat(descriptor))
            if not os.path.samestat(os.fstat(descriptor), os.lstat(self._path)):
                return False
            if size > _MAX_BYTES and try_lock(descriptor):
                _shorten(self._path, descriptor)
            return True
        finally:
            os.close(descriptor)


def written_order(root: Path) -> dict[str, int]:
    """Return a number for each conversation that was written in root, the last one's the highest."""
    try:
        data = read_regular(root / JOURNAL_NAME)
    except OSError:
        return {}
    return _order(data)


def _order(data: bytes) -> dict[str, int]:
    return {os.fsdecode(name): number for number, name in enumerate(data.split(b"\n")) if name}


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def _shorten(journal: Path, descriptor: int) -> None:
    """Replace the journal, whose descriptor is locked; what others append to the old one meanwhile is carried over.

    Who appends after that sees that it is no longer the journal.
    """
    if not os.path.samestat(os.fstat(descriptor), os.lstat(journal)):  # another process has just done it
        return
    size = os.fstat(descriptor).st_size
    order = _order(os.pread(descriptor, size, 0))
    there = {entry.name for entry in os.scandir(journal.parent)}
    lines = (b"\n" + os.fsencode(name) + b"\n" for name in sorted(order, key=order.__getitem__) if name in there)
    write_atomically(journal, b"".join(lines), durable=False)
    if since := os.pread(descriptor, _MAX_BYTES, size):
        replacement = open_regular(journal, os.O_WRONLY | os.O_APPEND, name="Journal")
        try:
            write_all(replacement, since)
        finally:
            os.close(replacement)
