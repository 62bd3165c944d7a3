"""Private directories and files on the host: the one place of atomic writes and file locks.

A file is reached through its directory's descriptor, and a directory that has become a symlink is not followed: a
sandbox that can write the directory above could put one there between two of our writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.errors import CallCancelledError, UsageError
from ohsandbox.paths import DIRECTORY, make_private_dirs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

PRIVATE_DIR_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
_LOCK_POLL_S = 0.1
"""Interval at which a lock is tried while its wait can be cancelled."""
_CHUNK_BYTES = 1024 * 1024
MAX_RECORD_BYTES = 16 * 1024**2
"""Largest record of ours that is read: our own have at most some hundred KB."""
MAX_CONTENT_BYTES = 1024**3
"""Largest stored content that is read: one text of a conversation, or the list of all files of a snapshot."""
SHA256_NAME = re.compile(r"[0-9a-f]{64}")
"""Name of a file that is named by the SHA-256 of its content. Any other name could be a path to another file."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SAFELY = os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a FIFO must not hang."""

sync_data = getattr(os, "fdatasync", os.fsync)
"""Sync a file's data to disk; macOS has no fdatasync."""


def make_private_dir(directory: Path) -> None:
    """Create a directory (and its missing parents) with mode 0700 whatever the umask; an existing one is tightened.

    Raises:
        UsageError: it cannot be made, or something else exists at that path, which a symlink is too.
    """
    try:
        make_private_dirs(directory)
        with opened_dir(directory) as descriptor:
            os.fchmod(descriptor, PRIVATE_DIR_MODE)
    except OSError as error:
        reason = "it is a symbolic link" if directory.is_symlink() else error.strerror
        raise UsageError(
            f"Directory {str(directory)!r} cannot be used: {reason}. "
            "Make it writable, or name another place (persist_dir, or OHSANDBOX_HOME)."
        ) from error


def _open_dir(directory: Path | int, *directory_names: str, make: int | None = None) -> int:
    """Open a directory, or one below it, and return its descriptor; only the way to directory may have symlinks.

    Args:
        directory: a path, or a descriptor, which stays open.
        directory_names: names on the way, each in the one before.
        make: the mode with which those of them are made that are missing; None makes none.

    Raises:
        OSError: it does not exist, is not a directory, or is a symlink.
    """
    descriptor = os.dup(directory) if isinstance(directory, int) else os.open(directory, DIRECTORY)
    for name in directory_names:
        try:
            if make is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, make, dir_fd=descriptor)
            subdirectory = os.open(name, DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = subdirectory
    return descriptor


@contextlib.contextmanager
def opened_dir(directory: Path | int, *below: str, make: int | None = None) -> Iterator[int]:
    """Like `_open_dir`, as a context manager that closes the descriptor at its end."""
    descriptor = _open_dir(directory, *below, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path, access: int, *, name: str, inside: Path | None = None) -> int:
    """A descriptor of a regular file; a link, a FIFO or a device that somebody put there is not followed or waited for.

    Args:
        path: the file.
        access: O_RDONLY, O_RDWR, ...; one that O_CREAT makes has mode 0600.
        name: what the file is, for the message.
        inside: a directory above it, from which on no symlink is followed; None is the one that it lies in.

    Raises:
        UsageError: it cannot be opened, or is not a regular file.
    """
    try:
        with _parent(path, inside) as parent:
            descriptor = os.open(path.name, access | _SAFELY | os.O_NOFOLLOW, PRIVATE_FILE_MODE, dir_fd=parent)
    except OSError as error:
        is_link = path.is_symlink() or path.parent.is_symlink()
        reason = "it is, or lies in, a symbolic link; move it away" if is_link else str(error.strerror)
        raise UsageError(f"{name} {str(path)!r} cannot be opened: {reason}.") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UsageError(f"{name} {str(path)!r} is not a regular file. Move it away.")


def read_regular(
    path: Path, *, limit_bytes: int = MAX_RECORD_BYTES, inside: Path | None = None, follow: bool = False
) -> bytes:
    """Return the content of a regular file, without waiting for anything and without reading more than limit_bytes.

    The one way to read a file below the state directory at once; `open_regular` is for what is read in pieces.

    Args:
        path: the file.
        limit_bytes: the largest content that is returned.
        inside: see `open_regular`.
        follow: whether links are followed, for files that a person may have put elsewhere.

    Raises:
        OSError: it is not there, cannot be read, is or lies in a symlink that is not followed, is no regular file
            (EINVAL), or is larger (EFBIG).
    """
    with contextlib.nullcontext() if follow else _parent(path, inside) as parent:
        flags = os.O_RDONLY | _SAFELY | (0 if follow else os.O_NOFOLLOW)
        descriptor = os.open(path if follow else path.name, flags, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has over {limit_bytes} bytes", str(path))
    return content


def _parent(path: Path, inside: Path | None) -> contextlib.AbstractContextManager[int]:
    if inside is None:
        return opened_dir(path.parent)
    return opened_dir(inside, *path.parent.relative_to(inside).parts)


def copy_apart(descriptor: int, path: Path, *, offset: int = 0) -> None:
    """Copy a descriptor's content from offset on to a new file, and make it durable.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    with opened_dir(path.parent) as parent:
        copy = os.open(path.name, NEW_FILE, PRIVATE_FILE_MODE, dir_fd=parent)
        try:
            os.fchmod(copy, PRIVATE_FILE_MODE)
            while data := os.pread(descriptor, _CHUNK_BYTES, offset):
                write_all(copy, data)
                offset += len(data)
            os.fsync(copy)
        except BaseException:
            os.unlink(path.name, dir_fd=parent)
            raise
        finally:
            os.close(copy)
        os.fsync(parent)


def write_atomically(path: Path, data: bytes, *, inside: Path | None = None, durable: bool = True) -> None:
    """Replace the file by data atomically: a reader sees either the old file or the new one, which has mode 0600.

    Args:
        path: the file.
        data: all of it.
        inside: see `open_regular`.
        durable: whether the same holds after a crash of the machine; costs two fsync.

    Raises:
        OSError: the directory cannot be written, or is a symlink.
    """
    with _parent(path, inside) as parent:
        with new_file(parent, path.name) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if durable:
            os.fsync(parent)


@contextlib.contextmanager
def new_file(directory: int, name: str) -> Iterator[BinaryIO]:
    """Yield a file of mode 0600 that gets its name, in an open directory, once it is complete.

    Raises:
        OSError: it cannot be made.
    """
    temporary = f".{name[:200]}.{secrets.token_hex(4)}"
    file = os.fdopen(os.open(temporary, NEW_FILE, PRIVATE_FILE_MODE, dir_fd=directory), "wb")
    try:
        with file:
            yield file
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise


def sync_dir(directory: Path) -> None:
    """Make the directory's entries durable."""
    with opened_dir(directory) as descriptor:
        os.fsync(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of data.

    Raises:
        OSError: some of it may be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# --- locks: flock(2), which the kernel releases when the process dies, by kill -9 too ------------


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock an open file; False where another process, or another open file of this one, holds the lock.

    Raises:
        OSError: the file system has no locks (some NFS).
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path, *, create: bool) -> int:
    """Open a lock file without locking it and return its descriptor; closing it releases the lock.

    Raises:
        OSError: it is a symlink, cannot be opened, or is not there and create is False.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    return os.open(path, flags, PRIVATE_FILE_MODE)


def open_locked(path: Path, *, create: bool) -> int | None:
    """Lock a lock file and return its descriptor; None where it is locked elsewhere, missing, or cannot be locked.

    Raises:
        OSError: the file is there and cannot be opened, or cannot be created.
    """
    try:
        descriptor = open_lock(path, create=create)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        if try_lock(descriptor):
            return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def locked(
    path: Path, *, on_wait: Callable[[], None] | None = None, cancel: threading.Event | None = None
) -> Iterator[None]:
    """Hold the lock of a lock file, created where it is missing; on_wait is called once before a wait.

    Raises:
        OSError: the file cannot be opened or locked.
        CallCancelledError: cancel was set before the lock was free.
    """
    descriptor = open_lock(path, create=True)
    try:
        if not try_lock(descriptor):
            if on_wait is not None:
                on_wait()
            if cancel is None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            while cancel is not None and not try_lock(descriptor):
                if cancel.wait(_LOCK_POLL_S):
                    raise CallCancelledError(f"The wait for {str(path)!r} was cancelled.")
        yield
    finally:
        os.close(descriptor)


def create_locked(path: Path, data: bytes) -> int:
    """Create a file, mode 0600, that is complete and locked before it has its name; return its descriptor.

    Raises:
        OSError: it cannot be written, or its directory is a symlink; nothing is left of it.
    """
    with opened_dir(path.parent) as parent:
        temporary = f".{path.name[:200]}.{secrets.token_hex(4)}"
        descriptor = os.open(temporary, NEW_FILE & ~os.O_WRONLY | os.O_RDWR, PRIVATE_FILE_MODE, dir_fd=parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, data)
            os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            raise
    return descriptor
