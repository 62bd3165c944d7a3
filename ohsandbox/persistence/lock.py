"""One process at a time in a conversation's directory."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.persistence.files import PRIVATE_FILE_MODE, write_all

if TYPE_CHECKING:
    from pathlib import Path

_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class DirectoryLock:
    """An flock on `<directory>/lock`; the kernel lets go of it when the process dies, by kill -9 too."""

    def __init__(self, directory: Path, *, name: str) -> None:
        """Take the lock.

        Args:
            directory: an existing directory.
            name: the conversation, for the message.

        Raises:
            ConversationOpenError: another holder has it; the message names its process.
            UsageError: the lock file cannot be opened.
        """
        path = directory / "lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
        except OSError as error:
            raise UsageError(f"Lock file {str(path)!r} cannot be opened: {error.strerror}. Move it away.") from error
        os.fchmod(self._descriptor, PRIVATE_FILE_MODE)
        self.is_held = False
        """False where the file system cannot lock (some NFS): nothing then keeps a second process out."""
        try:
            self._take(name)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self, name: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConversationOpenError(
                f"Conversation {name!r} is open in process {holder}. Close it there, or start another conversation."
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return
        self.is_held = True
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        write_all(self._descriptor, b"%d\n" % os.getpid())

    def release(self) -> None:
        """Let go. Twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
