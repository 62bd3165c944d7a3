"""Reading, writing and listing files of a sandbox, over a worker."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.arguments import wrong
from ohsandbox.errors import SandboxFileError, file_error
from ohsandbox.runtime.process.invocation import quote
from ohsandbox.runtime.process.worker import CallStalled, CallTimedOut, WorkerCall
from ohsandbox.runtime.results import DirEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.process.worker import CallResult

_READ_BLOCK_BYTES = 128 * 1024
"""Block size of ohs_read: dd copies 100 MB in such blocks a fifth faster than head, which uses 8 KiB."""

_UNASKED_BYTES = 1024 * 1024
"""Bytes up to which a file is read without asking for its size, which would cost a process and a third of the time of
most reads. A larger file is read again from its beginning, after its size: it may be another file by then."""
READ_STALL_S = 10.0
"""Seconds without data after which a read counts as blocked, for example on /proc/kmsg or a file system that hangs."""

_NAME_BYTES = 255
_OF_WINDOWS = re.compile(r"[A-Za-z]:\\|\\\\\w")
"""A drive, or a share: a relative path by the rules of Linux, which nobody means."""
_PATH_BYTES = 4095
"""NAME_MAX and PATH_MAX of Linux, without the final NUL."""

_PATIENCE_S = 60.0
_SLOWEST_BYTES_PER_S = 1024 * 1024
"""Minimum rate of a working transfer; one that is stuck, for example because a FIFO replaced the file after our check,
is ended."""

_KINDS = {"FIFO": "a FIFO", "SOCKET": "a socket", "DEVICE": "a device"}

_BY_TEXT = {
    "No such file or directory": errno.ENOENT, "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM, "Is a directory": errno.EISDIR, "Not a directory": errno.ENOTDIR,
    "File name too long": errno.ENAMETOOLONG, "Filename too long": errno.ENAMETOOLONG,
    "No space left on device": errno.ENOSPC, "Read-only file system": errno.EROFS,
    "Too many levels of symbolic links": errno.ELOOP, "Symbolic link loop": errno.ELOOP,
    "Disk quota exceeded": errno.EDQUOT, "Quota exceeded": errno.EDQUOT, "File too large": errno.EFBIG,
    "File exists": errno.EEXIST, "Input/output error": errno.EIO, "I/O error": errno.EIO,
    "Text file busy": errno.ETXTBSY, "Device or resource busy": errno.EBUSY, "Resource busy": errno.EBUSY,
    "Resource temporarily unavailable": errno.EAGAIN, "Cannot fork": errno.EAGAIN,
    "Cannot allocate memory": errno.ENOMEM, "No such file": errno.ENOENT, "no such file": errno.ENOENT,
}  # fmt: skip
"""Error numbers by the messages of strerror in glibc and musl and, last, of dash and ash for a failed open."""

_NO_NEW_FILE = ("directory nonexistent", "nonexistent directory")
"""Messages of dash and ash for ENOENT of an open with O_CREAT. The directory exists (it was checked), so it is one like
/proc."""

_NO_TOOL = re.compile(r"(?:dnammoc )?:([\w.-]+)")
"""The name of a missing program, matched against the reversed line: 'dd: not found', 'dd: command not found'."""

_REMEDIES = {
    errno.ENOENT: "List the directory above it to see what is there.",
    errno.EACCES: "Use a path that this user may use, or another user.",
    errno.EPERM: "Use a path that this user may use, or another user.",
    errno.EISDIR: "Name a file in it.",
    errno.ENOTDIR: "Name a directory, or a path without a file in its middle.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ENOSPC: "Free some space; what was there before is intact.",
    errno.EROFS: "Write to another place.",
    errno.ELOOP: "Look at the links with `ls -l`.",
    errno.EEXIST: "Remove what is there, or use another name.",
    errno.EAGAIN: "End some processes: the sandbox is at its limit of processes.",
    errno.ENOMEM: "End some processes: the sandbox is at its limit of memory.",
}


def read(call: Callable[..., bytes], path: str, limit_bytes: int, *, shown: str) -> bytes:
    """Read the file at path; call(body, limit_bytes=, stall_s=) runs body in the sandbox, and errors name `shown`.

    Raises:
        SandboxFileError: EFBIG, the file is larger than limit_bytes; or an error that call raises.
    """
    first = min(limit_bytes, _UNASKED_BYTES)
    data = call(read_body(path, first), limit_bytes=first, stall_s=READ_STALL_S)
    if first < limit_bytes and len(data) > first:
        data = call(read_body(path, limit_bytes, asks_size=True), limit_bytes=limit_bytes, stall_s=READ_STALL_S)
    if len(data) > limit_bytes:
        raise too_large(limit_bytes, shown)
    return data


def read_body(path: str, limit_bytes: int, *, asks_size: bool = False) -> bytes:
    """Return the call that reads path in blocks, at least one byte past the limit, so that a larger file is detected.

    With asks_size, a file whose size is over the limit is not read at all; this check costs a process.
    """
    asked = b" %d" % limit_bytes if asks_size else b""
    return _body(b"ohs_read %s %d%s" % (quote(path), limit_bytes // _READ_BLOCK_BYTES + 1, asked))


def write_body(path: str, size: int, mode: int | None) -> bytes:
    """Return the call that writes the size bytes of its stdin to path."""
    octal = b"" if mode is None else b"%03o" % (mode & 0o7777)
    temporary = f".ohs-{secrets.token_hex(8)}.tmp".encode()
    return _body(b"ohs_write %s '%s' %d %s" % (quote(path), octal, size, temporary))


def list_body(path: str) -> bytes:
    """Return the call that lists path."""
    return _body(b"ohs_list %s" % quote(path))


def _body(call: bytes) -> bytes:
    return b"(LC_ALL=C;export LC_ALL;%s)" % call


def perform(
    call: Callable[[WorkerCall], CallResult], body: bytes, *, path: str, limit_bytes: int, **more: Any
) -> bytes:
    """Run body and return its output, which may be larger than limit_bytes.

    Raises:
        SandboxFileError: the call failed, printed nothing for `stall_s`, or took longer than `patience_s`.
    """
    limit_s, mark = patience_s(limit_bytes), f"OHSANDBOX_CALL={secrets.token_hex(8)}"
    try:
        outcome = call(WorkerCall(body, limit_bytes=max(limit_bytes + 1, 65536), timeout_s=limit_s, mark=mark, **more))
    except CallStalled:
        raise blocked(path) from None
    except CallTimedOut:
        raise unfinished(limit_s, path) from None
    return check(outcome, path, limit_bytes)


def patience_s(size: int) -> float:
    """Return the time limit, in seconds, of a call that transfers at most size bytes."""
    return _PATIENCE_S + size / _SLOWEST_BYTES_PER_S


def path_of(path: str | os.PathLike[str]) -> str:
    """Return the path as text.

    Raises:
        UsageError: it is neither text nor a path object.
    """
    found = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(found, str):
        raise wrong("path", path, "Give a string, or a path object of strings.")
    return found


def check_path(path: str) -> None:
    """Raise SandboxFileError for a path that no file can have: ENOENT if empty, ENAMETOOLONG, EINVAL, EILSEQ."""
    if not path:
        raise file_error(errno.ENOENT, "The path is empty", path, "Name a file.")
    if "\0" in path:
        raise file_error(errno.EINVAL, "A path cannot contain a NUL byte", path, "Leave it out.")
    if _OF_WINDOWS.match(path):
        raise file_error(errno.EINVAL, "It is a path of Windows, and the sandbox is Linux", path, "Give `/dir/name`.")
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise file_error(errno.EILSEQ, "The path holds half a character", repr(path), "Write it whole.") from None
    if len(raw) > _PATH_BYTES or any(len(part) > _NAME_BYTES for part in raw.split(b"/")):
        raise _refusal(errno.ENAMETOOLONG, path)


def check_file_path(path: str) -> None:
    """Raise SandboxFileError, EISDIR, for a path that can only be a directory: it ends in `/`, `.` or `..`."""
    if path.endswith("/") or path.rpartition("/")[2] in (".", ".."):
        raise _refusal(errno.EISDIR, path)


def check(outcome: CallResult, path: str, limit_bytes: int) -> bytes:
    """Return the call's stdout, which may be larger than limit_bytes.

    Raises:
        SandboxFileError: the call failed; the error is also the builtin exception of its errno.
    """
    if outcome.status == "0":
        return outcome.stdout
    if outcome.stderr == b"errno EFBIG\n":
        raise too_large(limit_bytes, path)
    raise error_of(outcome.stderr + outcome.complaint.encode(), outcome.status, path)


def too_large(limit_bytes: int, path: str) -> SandboxFileError:
    """Return the error EFBIG: the file is over the limit."""
    reason = f"It is larger than the limit of {limit_bytes} bytes"
    return file_error(errno.EFBIG, reason, path, "Read a part of it, or raise limit_bytes.")


def timed_out(reason: str, path: str, remedy: str) -> SandboxFileError:
    """Return the error ETIMEDOUT of an operation."""
    return file_error(errno.ETIMEDOUT, reason, path, remedy)


def blocked(path: str) -> SandboxFileError:
    """Return the error ETIMEDOUT of a read that returned nothing."""
    reason = (
        f"Reading it gave nothing for {READ_STALL_S:g} s and was given up; it may block forever, as /proc/kmsg does"
    )
    return timed_out(reason, path, "Read it in a shell: `timeout 5 head -c 1000 FILE`.")


def unfinished(seconds: float, path: str) -> SandboxFileError:
    """Return the error ETIMEDOUT of a call that exceeded its time limit."""
    reason = f"The file was not transferred in {seconds:.0f} s"
    return timed_out(reason, path, "Check it with `ls -l` and the disk with `df`.")


def stalled(seconds: float, path: str) -> SandboxFileError:
    """Return the error ETIMEDOUT of a transfer."""
    reason = f"The sandbox's `tar` moved nothing for {seconds:.0f} s and was given up"
    return timed_out(reason, path, "Try it in a shell.")


def overtime(seconds: float, path: str) -> SandboxFileError:
    """Return the error ETIMEDOUT of a transfer that went on for too long."""
    return timed_out(f"It was not transferred in {seconds:g} s", path, "Take a smaller part, or raise timeout_s.")


def _refusal(number: int, path: str) -> SandboxFileError:
    """Return the error of that errno with strerror's message, and a remedy if there is one."""
    return file_error(number, os.strerror(number), path, _REMEDIES.get(number, ""))


def error_of(said: bytes, status: object, path: str) -> SandboxFileError:
    """Map the messages of a failed operation to an error; EIO if they are unknown.

    A message counts only at the end of a line, since the text before it contains names, which anyone may choose.
    """
    for line in reversed(said.decode("utf-8", "replace").splitlines()):
        if found := _known(line.strip(), path):
            return found
    return file_error(errno.EIO, f"The sandbox's own tools failed (exit code {status})", path, "Try it in a shell.")


def _known(line: str, path: str) -> SandboxFileError | None:
    word, _, name = line.partition(" ")
    if word == "errno" and name in _KINDS:
        return file_error(errno.EINVAL, f"It is {_KINDS[name]}, not a regular file", path, "Use a shell for it.")
    if word == "errno" and isinstance(number := getattr(errno, name, None), int):
        return _refusal(number, path)
    lower = line.lower()
    if lower.endswith(_NO_NEW_FILE) and ("cannot create " in lower or "can't create " in lower):
        return file_error(errno.ENOENT, "No file can be made in this directory", path, "Write to another place.")
    if line.endswith(" not found") and (missing := _NO_TOOL.match(line[: -len(" not found")][::-1])):
        reason = f"The sandbox has no `{missing[1][::-1]}`, which this needs"
        return file_error(errno.ENOSYS, reason, path, "Use an image that has it.")
    return next((_refusal(number, path) for text, number in _BY_TEXT.items() if line.endswith(text)), None)


def parse_list(stdout: bytes) -> list[DirEntry]:
    """Parse the entries, sorted by name, without those that vanished during the listing."""
    names, _, facts = stdout.partition(b"\0\0")
    entries, at = [], 0
    for name in names.split(b"\0"):
        found = _FACTS.match(facts, at)
        if found and facts.startswith(name + b"\n", found.end()):
            at = found.end() + len(name) + 1
            mode, seconds = int(found[1], 16), int(found[3])
            try:
                modified_at = datetime.fromtimestamp(seconds, UTC)
            except (OverflowError, ValueError, OSError):  # any 64-bit number
                modified_at = _LAST_TIME if seconds > 0 else _FIRST_TIME
            kind = _FILE_TYPES.get(stat.S_IFMT(mode), "other")
            entries.append(DirEntry(os.fsdecode(name[2:]), kind, int(found[2]), stat.S_IMODE(mode), modified_at))
    return sorted(entries)


_FACTS = re.compile(rb"([0-9a-f]{1,8}) (\d{1,20}) (-?\d{1,20}) ")
_FIRST_TIME, _LAST_TIME = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_FILE_TYPES: dict[int, Literal["file", "directory", "symlink", "other"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}
