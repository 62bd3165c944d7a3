"""Reading, writing and listing files of a sandbox, over a worker."""

from __future__ import annotations

import errno
import os
import re
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from ohsandbox.errors import SandboxFileError, file_error
from ohsandbox.runtime.quoting import quote
from ohsandbox.runtime.results import DirEntry
from ohsandbox.runtime.worker import INLINE_STDIN_BYTES

if TYPE_CHECKING:
    from ohsandbox.runtime.worker import Outcome

_KINDS = {"FIFO": "a FIFO", "SOCKET": "a socket", "DEVICE": "a device"}
_BY_TEXT = {
    "No such file or directory": errno.ENOENT,
    "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "Is a directory": errno.EISDIR,
    "Not a directory": errno.ENOTDIR,
    "File name too long": errno.ENAMETOOLONG,
    "Filename too long": errno.ENAMETOOLONG,
    "No space left on device": errno.ENOSPC,
    "Read-only file system": errno.EROFS,
    "Too many levels of symbolic links": errno.ELOOP,
    "Symbolic link loop": errno.ELOOP,
    "Disk quota exceeded": errno.EDQUOT,
    "Quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "File exists": errno.EEXIST,
}
"""What strerror says, in the words of glibc and of musl."""

NAME_BYTES = 255
PATH_BYTES = 4095
"""NAME_MAX and PATH_MAX of Linux, without the final NUL."""


def read_body(path: str, limit_bytes: int) -> bytes:
    """The call that reads path; one byte more than the limit, so that too large is seen."""
    return b"(LC_ALL=C;export LC_ALL;ohs_read %s %d)" % (quote(path), limit_bytes + 1)


def write_body(path: str, size: int, mode: int | None) -> bytes:
    """The call that writes the size bytes it is fed."""
    octal = b"" if mode is None else b"%o" % mode
    counted = b"%d" % size if size <= INLINE_STDIN_BYTES else b"all"
    return b"(LC_ALL=C;export LC_ALL;ohs_write %s '%s' %s)" % (quote(path), octal, counted)


def list_body(path: str) -> bytes:
    """The call that lists path."""
    return b"(LC_ALL=C;export LC_ALL;ohs_list %s)" % quote(path)


def check_path(path: str) -> None:
    """Refuse what no file can be called.

    Raises:
        SandboxFileError: ENOENT for an empty path, ENAMETOOLONG, EINVAL for a NUL.
    """
    if not path:
        raise file_error(errno.ENOENT, "The path is empty", path)
    if "\0" in path:
        raise file_error(errno.EINVAL, "A path cannot hold a NUL byte", path)
    raw = os.fsencode(path)
    if len(raw) > PATH_BYTES or any(len(part) > NAME_BYTES for part in raw.split(b"/")):
        raise file_error(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)


def check(outcome: Outcome, path: str) -> bytes:
    """The call's stdout.

    Raises:
        SandboxFileError: the call failed; the builtin of its errno as well.
    """
    if outcome.status == "0":
        return outcome.stdout
    raise error_of(outcome.stderr, outcome.status, path)


def error_of(stderr: bytes, status: object, path: str) -> SandboxFileError:
    """The error that a failed operation's own words stand for; EIO with those words when they are none we know."""
    said = stderr.decode("utf-8", "replace").strip()
    if named := re.search(r"^errno (\w+)$", said, re.MULTILINE):
        return _named_error(named[1], path)
    for text, number in _BY_TEXT.items():
        if text in said:
            return file_error(number, text, path)
    return file_error(errno.EIO, said.splitlines()[-1] if said else f"The operation failed ({status})", path)


def _named_error(name: str, path: str) -> SandboxFileError:
    if name in _KINDS:
        return file_error(errno.EINVAL, f"It is {_KINDS[name]}, not a regular file", path)
    number = getattr(errno, name)
    return file_error(number, os.strerror(number), path)


def parse_list(stdout: bytes) -> list[DirEntry]:
    """The entries, sorted by name; those that vanished while we looked make the rest's facts unknown (size -1)."""
    *names, _, facts = stdout.split(b"\0") if stdout else [b"", b""]
    lines = facts.splitlines()
    if len(lines) != len(names):
        lines = [b"0 -1 0"] * len(names)
    return sorted(_entry(os.fsdecode(name), line) for name, line in zip(names, lines, strict=True))


def _entry(name: str, facts: bytes) -> DirEntry:
    mode, size, seconds = facts.split()
    raw = int(mode, 16)
    kind: Literal["file", "directory", "symlink", "other"] = "other"
    if stat.S_ISREG(raw):
        kind = "file"
    elif stat.S_ISDIR(raw):
        kind = "directory"
    elif stat.S_ISLNK(raw):
        kind = "symlink"
    return DirEntry(name, kind, int(size), stat.S_IMODE(raw), datetime.fromtimestamp(int(seconds), UTC))
