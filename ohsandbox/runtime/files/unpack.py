"""Unpack foreign tar archives to files of the host: never outside their directory, never over the limits.

Everything is unpacked into a new directory, which no sandbox can reach and in which no symlink exists until the last
file is written, and then moved to its target by descriptors that follow no symlink. The archive comes from the sandbox
or another machine and may contain anything: Python's tarfile reads only its headers, from a bounded number of bytes.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import shutil
import stat
import tarfile
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, ToolError, file_error
from ohsandbox.paths import DIRECTORY, open_directory, staging
from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.files.operations import error_of, overtime, stalled
from ohsandbox.runtime.results import LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.channel import Channel

STALL_S = 120.0
"""Seconds without a byte in either direction after which a transfer is given up."""

_OTHER_TAR = "Use an image with a tar that works."
_BLOCK_BYTES = 128 * 1024
_HEADER_BYTES = 1024 * 1024
"""Maximum number of bytes between two members: padding, headers, and names of up to PATH_MAX in GNU's or pax's long
form."""

BLOCK_BYTES = 4096
"""Space that a file's last bytes or a directory take: a block of ext4, xfs and btrfs."""

_INLINE_TARGET_BYTES = 60
"""Length from which a symlink's target takes a block: shorter ones are in ext4's inode."""
_MAX_TARGET_BYTES = 4095
"""PATH_MAX of Linux, without the final NUL."""

SAID_BYTES = 16 * 1024
"""Bytes kept from the end of tar's messages, which repeat."""

_NOTE = re.compile(r"^tar: (?:Removing leading|(.+): (socket ignored|file changed as we read it|File removed.*))")
"""Messages for which GNU tar 1.34 exits with code 1; it exits with 2 for errors."""

_NOT_IN_ONE_STEP = {errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Errors when a directory cannot be renamed: another file system, or its name was taken meanwhile."""


class TransferLimits(NamedTuple):
    """Limits of a transfer; a larger one is refused before anything is in place, unless leaves_out allows it.

    A download counts what it makes on this machine: directories too that the archive only implies, and space in blocks
    of 4 KiB. A hard link counts as a file of its own, which it becomes on another file system.
    """

    members: int = 200_000
    """Number of files, links and directories."""
    total_bytes: int = 2 * 1024**3
    file_bytes: int = 512 * 1024**2
    depth: int = 64
    name_bytes: int = 4096
    leaves_out: bool = False
    """In a download, leave out and report a member that alone exceeds file_bytes, depth or name_bytes. Its bytes are
    read and dropped, and count for total_bytes. An upload is refused nevertheless."""
    timeout_s: float = 3600.0
    """Time limit of the whole transfer; one that moves nothing for 2 minutes is given up earlier."""


def too_large(size: int, limit: int) -> str:
    """Return why a file was left out for its size."""
    return f"{size} bytes, over the limit of {limit}"


def too_deep(limit: int) -> str:
    """Return why a directory's contents were left out for their depth."""
    return f"over {limit} directories deep"


class Meter:
    """Counts a transfer and compares it with its limits."""

    def __init__(self, limits: TransferLimits, what: str, *, block_bytes: int = 1) -> None:
        """Count sizes in whole blocks."""
        self._limits, self._what, self._block_bytes = limits, what, block_bytes
        self._members = self._bytes = 0
        self.left_out: dict[str, str] = {}
        """The reason by path, or by the part of the path that is within the limits."""

    def count(self, path: str, size: int) -> None:
        """Add a member.

        Raises:
            ToolError: the transfer is now over a limit.
        """
        if (why := self._own_excess(path, size)) is not None:
            raise self._refusal(f"{path[:200]!r}: {why}")
        self.add(1, size)

    def add(self, members: int, size: int) -> None:
        """Add a number of members, and their size in bytes.

        Raises:
            ToolError: the transfer is now over the limit of all members or bytes.
        """
        self._members += members
        self._bytes += -(-size // self._block_bytes) * self._block_bytes
        if self._members > self._limits.members:
            raise self._refusal(f"more than {self._limits.members} members")
        if self._bytes > self._limits.total_bytes:
            raise self._refusal(f"more than {self._limits.total_bytes} bytes in all")

    def _refusal(self, reason: str) -> ToolError:
        remedy = "Take a smaller part, pack it, or raise the limits."
        return ToolError(f"{self._what} refused: {reason}.", remedy=remedy)

    def admit(self, path: str, size: int) -> bool:
        """Add a member; return whether to store it. Raises like `count` for an excess not covered by `leaves_out`."""
        if not self._limits.leaves_out or (why := self._own_excess(path, size)) is None:
            self.count(path, size)
            return True
        self.add(1, size)
        # cut what is too deep or too long, so that many such paths give one entry
        path = "/".join(path.split("/", self._limits.depth + 2)[: self._limits.depth + 2])
        while len(path.encode("utf-8", "surrogateescape")) > self._limits.name_bytes and "/" in path:
            path = path.rpartition("/")[0]
        self.left_out[path[: self._limits.name_bytes]] = why
        return False

    def _own_excess(self, path: str, size: int) -> str | None:
        """Return the reason if this member alone exceeds a limit, else None."""
        limits = self._limits
        if path.count("/") > limits.depth:
            return too_deep(limits.depth)
        if len(path.encode("utf-8", "surrogateescape")) > limits.name_bytes:
            return f"a name of over {limits.name_bytes} bytes"
        return too_large(size, limits.file_bytes) if size > limits.file_bytes else None


@contextlib.contextmanager
def host_errors(path: Path) -> Iterator[None]:
    """Convert an OSError of this machine's files to a SandboxFileError."""
    try:
        yield
    except OhsandboxError:
        raise
    except OSError as error:
        reason = f"On this machine, not in the sandbox: {error.strerror or error}"
        raise file_error(error.errno or errno.EIO, reason, os.fsdecode(error.filename or str(path))) from error


class _Gzipped:
    """A gzipped archive, as the channel of the program that packed it."""

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))

    def read(self, _timeout_s: float | None = None) -> list[Chunk]:
        try:
            data = self._file.read(_BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise file_error(errno.EIO, f"It is not a whole gzipped archive: {error}", "archive") from None
        return [Chunk(Stream.STDOUT, data)] if data else []

    def wait(self, _timeout_s: float | None = None) -> int:
        return 0


def unpack_gzipped(data: bytes, target: Path, limits: TransferLimits, *, keeps_links: bool = False) -> list[LeftOut]:
    """Unpack a gzipped tar archive to a directory; return what was left out.

    Args:
        data: the archive; a member `.` has to come first.
        target: the directory.
        limits: of what is made here.
        keeps_links: also make symlinks that lead outside.

    Raises:
        SandboxFileError: it is no archive, or this machine cannot store it.
        ToolError: it exceeds a limit; target is untouched.
    """
    return receive(_Gzipped(data), "archive", target, limits, keeps_links=keeps_links)


def receive(
    channel: Channel | _Gzipped, source: str, target: Path, limits: TransferLimits, *, keeps_links: bool = False
) -> list[LeftOut]:
    """Unpack the archive that channel sends to target; return what was left out.

    Symlinks that lead outside are left out unless keeps_links.

    Raises:
        SandboxFileError: the sandbox failed, or sent no archive, or this machine cannot store it.
        ToolError: the archive exceeds a limit.
        UsageError: target is a symlink to a directory, or its path contains one.
    """
    with host_errors(target), staging() as fresh:
        meter = Meter(limits, "Download", block_bytes=BLOCK_BYTES)
        reader = _ArchiveReader(channel, source, limits.timeout_s)
        tree = _StagedTree(fresh, meter, keeps_links=keeps_links)
        try:
            with tarfile.open(
                fileobj=reader, mode="r|", bufsize=_BLOCK_BYTES, encoding="utf-8", errors="surrogateescape"
            ) as archive:
                while (member := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # else the archive keeps each one
                    archive.pax_headers = {}  # those of a global header, which would be copied for each member
                    is_stored = meter.admit(member.name, tree.size_of(member))
                    reader.allow(member.size)
                    if is_stored:
                        tree.add(archive, member)
        except (OhsandboxError, OSError):
            raise
        except (tarfile.TarError, EOFError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            reader.finish()
            raise reader.invalid() from error
        notes = reader.finish()
        tree.settle()
        tree.move(target, source)
        return [*(LeftOut(path, why) for path, why in meter.left_out.items()), *tree.skipped, *notes]


class _ArchiveReader(io.RawIOBase):
    """A channel's stdout as a readable file, up to the allowed bytes; stderr is kept for the error message."""

    def __init__(self, channel: Channel | _Gzipped, source: str, timeout_s: float) -> None:
        self._channel, self._source, self._timeout_s = channel, source, timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._ready = self._said = b""
        self._left = _HEADER_BYTES
        self._ends = 0

    def readable(self) -> bool:
        return True

    def allow(self, size: int) -> None:
        """Allow the size bytes of the next member and another header."""
        self._left = max(size, 0) + _HEADER_BYTES

    def invalid(self) -> OhsandboxError:
        """Return the error EIO of an invalid archive."""
        reason = "The sandbox's `tar` sent no valid archive"
        return file_error(errno.EIO, reason, self._source, _OTHER_TAR)

    def read(self, size: int = -1) -> bytes:
        parts, have = [self._ready], len(self._ready)
        while have < size and (more := self._receive()) is not None:
            parts.append(more)
            have += len(more)
        whole = b"".join(parts)
        data, self._ready = whole[:size], whole[size:]
        self._left -= len(data)
        self._ends += not data
        if self._left < 0 or self._ends > 16:  # noqa: PLR2004 - tarfile reads once or twice; with one bug, for ever
            raise self.invalid()
        return data

    def _receive(self) -> bytes | None:
        left_s = self._deadline - time.monotonic()
        chunks = self._channel.read(min(STALL_S, left_s)) if left_s > 0 else None
        if chunks is None:
            raise stalled(STALL_S, self._source) if left_s > STALL_S else overtime(self._timeout_s, self._source)
        if not chunks:
            return None
        said = b"".join(chunk.data for chunk in chunks if chunk.stream is Stream.STDERR)
        self._said = (self._said + said)[-SAID_BYTES:]
        return b"".join(chunk.data for chunk in chunks if chunk.stream is Stream.STDOUT)

    def finish(self) -> list[LeftOut]:
        """Read to the end; return the notes of tar.

        Raises:
            SandboxFileError: the process failed, or does not end.
        """
        self._left, self._ends = _HEADER_BYTES, 0
        while self.read(_BLOCK_BYTES):
            pass
        code = self._channel.wait(STALL_S)
        notes = [_NOTE.match(line) for line in self._said.decode("utf-8", "replace").splitlines()]
        if code and not (code == 1 and notes and all(notes)):
            raise error_of(self._said, code, self._source)
        return [LeftOut(note[1], note[2]) for note in notes if note and note[1]]


class _StagedTree:
    """The files unpacked so far, in a directory that only we can access."""

    def __init__(self, root: Path, meter: Meter, *, keeps_links: bool = False) -> None:
        """Count the directories that members imply on meter."""
        self._root, self._meter, self._keeps_links = root, meter, keeps_links
        self._files: dict[str, int] = {}
        """The size of each."""
        self._directories: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self._whole = False
        self.skipped: list[LeftOut] = []

    def size_of(self, member: tarfile.TarInfo) -> int:
        """Return the bytes that a member makes; of a sparse file all, since its holes are written."""
        if member.islnk():
            return self._files.get("/".join(_parts(member.linkname) or []), 0)
        if member.issym():
            return len(member.linkname) if len(member.linkname) >= _INLINE_TARGET_BYTES else 0
        return member.size if member.isreg() else 0

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Store a member, or note why it is skipped.

        Raises:
            ToolError: the directories that it needs are over a limit.
        """
        parts, reason = _parts(member.name), None
        if parts is None:
            reason = "its name leads outside"
        elif not parts:
            self._whole = self._whole or member.isdir()
        elif not self._make_directories(parts[: None if member.isdir() else -1], sent=int(member.isdir())):
            reason = "a file of that name came before"
        elif member.isdir():
            self._directories["/".join(parts)] = member.mode & 0o777 | stat.S_IRWXU
        else:
            reason = self._store(archive, member, "/".join(parts))
        if reason:
            self.skipped.append(LeftOut(member.name, reason))

    def _make_directories(self, parts: list[str], *, sent: int) -> bool:
        """Make those that are missing, of which the last one is counted already as a member if it was sent."""
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            if path in self._files:
                return False
            if path not in self._directories:
                self._meter.add(1 - sent if count == len(parts) else 1, BLOCK_BYTES)
                (self._root / path).mkdir(mode=0o700)
                self._directories[path] = 0o755
        return True

    def _store(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> str | None:
        """Store a member other than a directory, or return why it was not stored.

        Of two members with the same name the later one is kept, as by tar.
        """
        first = "/".join(_parts(member.linkname) or [])
        if path in self._directories:
            return "a directory of that name came before"
        if member.issym():
            is_kept = self._keeps_links or _stays_inside(path, member.linkname)
            reason = None if is_kept else "a symlink that leads outside"
            if len(os.fsencode(member.linkname)) > _MAX_TARGET_BYTES:
                reason = f"a symlink whose target is longer than {_MAX_TARGET_BYTES} bytes"
            if reason is None:
                self._links[path] = member.linkname
            return reason
        if member.islnk() and (first not in self._files or path == first):
            return "a hard link to itself" if first in self._files else "a hard link to what is not here"
        if not (member.islnk() or member.isreg()):
            return "neither file, directory nor symlink"
        if path in self._files:
            (self._root / path).unlink()
        self._links.pop(path, None)
        self._files[path] = self.size_of(member)
        if member.islnk():
            os.link(self._root / first, self._root / path)
        else:
            self._write(archive, member, path)
        return None

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        data = archive.extractfile(member)
        assert data is not None  # noqa: S101 - extractfile gives None only for a member that is not a file
        with data, open(os.open(self._root / path, NEW_FILE, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            shutil.copyfileobj(data, file, 1 << 20)
            os.fchmod(file.fileno(), member.mode & 0o777)
            file.flush()
            with contextlib.suppress(OSError, OverflowError, ValueError):  # a time may be any number
                os.utime(file.fileno(), (member.mtime, member.mtime))

    def settle(self) -> None:
        """Create the symlinks and set the modes of directories: last, so that nothing is written through them."""
        for path, linkname in self._links.items():
            if path in self._files or path in self._directories:
                self.skipped.append(LeftOut(path, "something else of that name came too"))
            else:
                (self._root / path).symlink_to(linkname)
        for path, mode in self._directories.items():
            (self._root / path).chmod(mode)

    def move(self, target: Path, source: str) -> None:
        """Move the single file, or the contents of the directory, to target."""
        if self._whole:
            with _opened(target) as into:
                _merge(os.open(self._root, DIRECTORY), into)
            return
        if len(self._files) != 1 or self._directories:
            reason = "The sandbox's `tar` sent something else than this file"
            raise file_error(errno.EIO, reason, source, _OTHER_TAR)
        with _opened(target.parent) as into, _opened(self._root) as here:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(target.name, dir_fd=into, follow_symlinks=False).st_mode):
                    raise IsADirectoryError(errno.EISDIR, "It is a directory; add the file's new name", str(target))
            _move(next(iter(self._files)), here, target.name, into)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = open_directory(directory, make=True)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _parts(name: str) -> list[str] | None:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if ".." in parts or name.startswith("/") or "\0" in name else parts


def _stays_inside(path: str, linkname: str) -> bool:
    """Whether a symlink at path can only lead below the root.

    Its parents are real directories, so a leading `..` is their parent. A `..` after a name is refused: the name may
    be another symlink, and `..` then starts from its target.
    """
    words = [word for word in linkname.split("/") if word not in ("", ".")]
    ups = next((at for at, word in enumerate(words) if word != ".."), len(words))
    return not linkname.startswith("/") and "\0" not in linkname and ".." not in words[ups:] and ups <= path.count("/")


def _merge(source: int, target: int) -> None:
    """Move the contents of one directory into another, and close source."""
    try:
        for name in os.listdir(source):
            facts = os.stat(name, dir_fd=source, follow_symlinks=False)
            if not stat.S_ISDIR(facts.st_mode):
                _move(name, source, name, target)
                continue
            below = _directory(name, target)
            if below is None:
                try:
                    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
                    continue
                except OSError as error:
                    if error.errno not in _NOT_IN_ONE_STEP:
                        raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=target)
                below = os.open(name, DIRECTORY, dir_fd=target)
                os.fchmod(below, stat.S_IMODE(facts.st_mode))
            try:
                _merge(os.open(name, DIRECTORY, dir_fd=source), below)
            finally:
                os.close(below)
    finally:
        os.close(source)


def _directory(name: str, parent: int) -> int | None:
    """Open the directory of that name; None if there is none. A file or a symlink of that name is removed."""
    try:
        return os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=parent)
        return None


def _move(name: str, source: int, new: str, target: int) -> None:
    """Move a file or a symlink atomically; on another file system, copy it completely and then give it its name."""
    try:
        return os.replace(name, new, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    temporary = f".ohsandbox-{secrets.token_hex(8)}"
    try:
        _copy(name, source, temporary, target)
        return os.replace(temporary, new, src_dir_fd=target, dst_dir_fd=target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=target)
        raise


def _copy(name: str, source: int, new: str, target: int) -> None:
    """Copy a file or a symlink. A hard link becomes a separate file."""
    facts = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), new, dir_fd=target)
        return
    with (
        open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source), "rb") as old,  # noqa: PTH123
        open(os.open(new, NEW_FILE, 0o600, dir_fd=target), "wb") as file,  # noqa: PTH123 - descriptors
    ):
        shutil.copyfileobj(old, file, 1 << 20)
        os.fchmod(file.fileno(), stat.S_IMODE(facts.st_mode))
        file.flush()
        os.utime(file.fileno(), ns=(facts.st_mtime_ns, facts.st_mtime_ns))
