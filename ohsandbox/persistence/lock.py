"""Ensures that one process at a time has a conversation's directory open."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Self

from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.private_files import PRIVATE_FILE_MODE, open_regular, try_lock, write_all

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = "lock"

_TRIES, _TRY_EVERY_S = 3, 0.02

_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class DirectoryLock:
    """An flock on `<directory>/lock`; the kernel releases it when the process dies, even by kill -9."""

    def __init__(self, directory: Path, *, name: str) -> None:
        """Take the lock.

        Args:
            directory: an existing directory.
            name: the conversation, for the message.

        Raises:
            ConversationOpenError: another holder has it; the message names its process.
            UsageError: the lock file cannot be opened.
        """
        self._descriptor = open_regular(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, name="Lock file")
        os.fchmod(self._descriptor, PRIVATE_FILE_MODE)
        self.is_held = False
        """False if the file system cannot lock (some NFS): nothing then keeps a second process out."""
        try:
            self._acquire(name)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _acquire(self, name: str) -> None:
        try:
            if not self._outlast_readers():
                raise ConversationOpenError(
                    f"Conversation {name!r} is open in process {_holder_pid(self._descriptor)}. "
                    "Close it there, or start another conversation."
                )
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return
        self.is_held = True
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write_all(self._descriptor, b"%d\n" % os.getpid())

    def _outlast_readers(self) -> bool:
        """Take the lock with retries, since `holder_of` in another process holds it for microseconds."""
        for _ in range(_TRIES):
            if try_lock(self._descriptor):
                return True
            time.sleep(_TRY_EVERY_S)
        return try_lock(self._descriptor)

    def release(self) -> None:
        """Release the lock. Calling it twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder_of(directory: Path) -> str | None:
    """Return the process that has a conversation open, by number or "unknown"; None if there is none or it is unknown.

    Creates and changes no file.
    """
    try:
        descriptor = open_regular(directory / LOCK_NAME, os.O_RDONLY, name="Lock file")
    except UsageError:
        return None
    try:
        return None if try_lock(descriptor, shared=True) else _holder_pid(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _holder_pid(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return text if text.isdecimal() else "unknown"
