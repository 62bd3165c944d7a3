"""Private directories and files on the host."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ohsandbox.errors import UsageError

PRIVATE_DIR_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
_CHUNK_BYTES = 1024 * 1024

sync_data = getattr(os, "fdatasync", os.fsync)
"""macOS has no fdatasync."""


def home_dir() -> Path:
    """`~/.ohsandbox`, not made yet.

    Raises:
        UsageError: HOME is not set to an absolute path.
    """
    home = os.environ.get("HOME", "")
    if not Path(home).is_absolute():
        raise UsageError(f"HOME is {home!r}, so there is no place for ~/.ohsandbox. Set HOME to your home directory.")
    return Path(home) / ".ohsandbox"


def make_private_dir(directory: Path) -> None:
    """Make directory (and what is missing above it) with mode 0700 whatever the umask; one that exists is tightened.

    Raises:
        UsageError: it cannot be made, or something that is no directory stands there.
    """
    try:
        for missing in reversed([directory, *directory.parents]):
            if not missing.is_dir():
                missing.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
                missing.chmod(PRIVATE_DIR_MODE)
        directory.chmod(PRIVATE_DIR_MODE)
    except OSError as error:
        raise UsageError(
            f"Directory {str(directory)!r} cannot be used: {error.strerror}. "
            "Make it writable, or name another place (persist_dir, or HOME)."
        ) from error


def open_regular(path: Path, access: int, *, name: str) -> int:
    """A descriptor of a regular file; a link, a FIFO or a device that somebody put there is not followed or waited for.

    Args:
        path: the file.
        access: O_RDONLY, O_RDWR, ...; one that O_CREAT makes has mode 0600.
        name: what the file is, for the message.

    Raises:
        UsageError: it cannot be opened, or is no regular file.
    """
    flags = access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO must not hang
    try:
        descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    except OSError as error:
        reason = "it is a symbolic link; move it away" if path.is_symlink() else str(error.strerror)
        raise UsageError(f"{name} {str(path)!r} cannot be opened: {reason}.") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UsageError(f"{name} {str(path)!r} is no regular file. Move it away.")


def copy_apart(descriptor: int, path: Path, *, offset: int = 0) -> None:
    """Write what stands in descriptor from offset on to a new file, and make it durable.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    copy = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        os.fchmod(copy, PRIVATE_FILE_MODE)
        while data := os.pread(descriptor, _CHUNK_BYTES, offset):
            write_all(copy, data)
            offset += len(data)
        os.fsync(copy)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(copy)
    sync_dir(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file by data: after a crash there is the old file or the new one, mode 0600.

    Raises:
        OSError: the directory cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def sync_dir(directory: Path) -> None:
    """Make the names in directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of data.

    Raises:
        OSError: some of it may be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
