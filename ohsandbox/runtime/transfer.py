"""Directories in and out of a sandbox: tar over a channel, the strict filter on what comes out.

The engine's archive API is never used: it follows symlinks, misses tmpfs, and has been an escape (CVE-2018-15664,
CVE-2019-14271, CVE-2026-41567).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxFileError, ToolError, UsageError
from ohsandbox.runtime.channel import Stream
from ohsandbox.runtime.files import error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from ohsandbox.runtime.channel import Channel


class TransferLimits(NamedTuple):
    """What a download may hold; more is refused before it is written."""

    members: int = 200_000
    total_bytes: int = 2 * 1024**3
    file_bytes: int = 512 * 1024**2
    depth: int = 64
    name_bytes: int = 4096


_UNPACK = 'mkdir -p -- "$1" && exec tar -xpof - -C "$1"'
_PACK = """
if [ -d "$1" ]; then cd -- "$1" && exec tar -cf - .; fi
[ -e "$1" ] || { echo "errno ENOENT" >&2; exit 1; }
[ -f "$1" ] || { echo "errno EINVAL" >&2; exit 1; }
cd -- "${1%/*}/" && exec tar -cf - -- "./${1##*/}"
"""
"""A file comes as the only member, a directory as `.` and what is in it."""


def upload(open_channel: Callable[[list[str]], Channel], source: Path, target: str) -> list[str]:
    """Copy a file to target, or a directory's contents into it; returns what was left out (sockets, FIFOs, devices).

    Raises:
        UsageError: there is no such source.
        SandboxFileError: the sandbox cannot store it.
    """
    if not source.exists():
        raise UsageError(f"There is nothing at {str(source)!r} to upload")
    directory = target if source.is_dir() else target.rpartition("/")[0] or "/"
    skipped: list[str] = []
    with open_channel(["/bin/sh", "-c", _UNPACK, "upload", directory]) as channel:
        said = _Listener(channel)
        with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=_Writer(channel), mode="w|") as archive:
            _pack(archive, source, target, skipped)
        channel.close_stdin()
        said.check(target)
    return skipped


def _pack(archive: tarfile.TarFile, source: Path, target: str, skipped: list[str]) -> None:
    if not source.is_dir():
        _add(archive, source, target.rpartition("/")[2], skipped)
        return
    for parent, directories, names in os.walk(source):
        links = [name for name in directories if (Path(parent) / name).is_symlink()]
        for name in [*directories, *names] if not links else [*directories, *names]:
            path = Path(parent) / name
            _add(archive, path, path.relative_to(source).as_posix(), skipped)


def _add(archive: tarfile.TarFile, path: Path, name: str, skipped: list[str]) -> None:
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        skipped.append(name)
        return
    member = archive.gettarinfo(path, name)
    if not member.isreg():
        archive.addfile(member)
        return
    with path.open("rb") as file:
        archive.addfile(member, file)


def download(
    open_channel: Callable[[list[str]], Channel], source: str, target: Path, limits: TransferLimits
) -> list[str]:
    """Copy a file to target, or a directory's contents into it; returns what was left out and why.

    Raises:
        SandboxFileError: there is no such source, or it cannot be read.
        ToolError: it goes over a limit; nothing was written to target.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".ohs-") as fresh,
        open_channel(["/bin/sh", "-c", _PACK, "download", source]) as channel,
    ):
        channel.close_stdin()
        reader = _Reader(channel)
        skipped = _unpack(reader, Path(fresh), limits, source)
        _merge(Path(fresh), target, source)
    return skipped


def _unpack(reader: _Reader, fresh: Path, limits: TransferLimits, source: str) -> list[str]:
    skipped: list[str] = []
    try:
        with tarfile.open(fileobj=reader, mode="r|", errorlevel=1) as archive:
            for member in _limited(archive, limits):
                refused = _refusal(member, fresh)
                if refused:
                    skipped.append(f"{member.name!r}: {refused}")
                else:
                    archive.extract(member, fresh, filter=_strip)
    except tarfile.ReadError:
        reader.check(source)
        raise
    reader.check(source)
    return skipped


def _limited(archive: tarfile.TarFile, limits: TransferLimits) -> Iterator[tarfile.TarInfo]:
    total = 0
    for count, member in enumerate(archive, 1):
        total += member.size
        too_much = (
            (count > limits.members and f"more than {limits.members} members")
            or (total > limits.total_bytes and f"more than {limits.total_bytes} bytes")
            or (member.size > limits.file_bytes and f"{member.name!r} has {member.size} bytes")
            or (len(os.fsencode(member.name)) > limits.name_bytes and "a name over the limit")
            or (len(PurePosixPath(member.name).parts) > limits.depth and f"{member.name!r} lies too deep")
        )
        if too_much:
            raise ToolError(f"Download refused: {too_much}; download a smaller part of it")
        yield member


def _refusal(member: tarfile.TarInfo, fresh: Path) -> str | None:
    if not (member.isreg() or member.isdir() or member.issym()):
        return "neither file, directory nor symlink"
    try:
        tarfile.data_filter(member, str(fresh))
    except tarfile.FilterError as error:
        return str(error)
    return None


def _strip(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """PEP 706's data filter, which also drops setuid, setgid, sticky and group/other write; modes of files stay."""
    return tarfile.data_filter(member, path)


def _merge(fresh: Path, target: Path, source: str) -> None:
    """Move what was unpacked to its place; never through a symlink that stands in target."""
    single = fresh / PurePosixPath(source).name
    if not target.is_dir() and [*fresh.iterdir()] == [single] and single.is_file():
        single.replace(target)
        return
    target.mkdir(exist_ok=True)
    for entry in fresh.iterdir():
        _move(entry, target / entry.name)


def _move(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink() and target.is_dir() and not target.is_symlink():
        for entry in source.iterdir():
            _move(entry, target / entry.name)
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    source.replace(target)


class _Writer(io.RawIOBase):
    """A channel's stdin as a file to write."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        self._channel.write(view)
        return len(view)


class _Listener:
    """Collects what a process says while we write to it, so that neither side ever blocks the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._said = b""
        self._thread = threading.Thread(target=self._listen, name="ohsandbox-upload", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OhsandboxError, OSError):
            while chunks := self._channel.read():
                self._said = (self._said + b"".join(chunk.data for chunk in chunks))[-4096:]

    def check(self, path: str) -> None:
        """Wait for the end.

        Raises:
            SandboxFileError: the process failed.
        """
        self._thread.join()
        code = self._channel.wait()
        if code != 0:
            raise error_of(self._said, code, path)


class _Reader(io.RawIOBase):
    """A channel's stdout as a file to read; stderr is kept for the error message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ready = b""
        self._said = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, have = [self._ready], len(self._ready)
        while have < size or size < 0:
            chunks = self._channel.read()
            if not chunks:
                break
            for chunk in chunks:
                if chunk.stream is Stream.STDERR:
                    self._said = (self._said + chunk.data)[-4096:]
                else:
                    parts.append(chunk.data)
                    have += len(chunk.data)
        whole = b"".join(parts)
        self._ready = whole[size:] if size >= 0 else b""
        return whole[:size] if size >= 0 else whole

    def check(self, path: str) -> None:
        """Read to the end.

        Raises:
            SandboxFileError: the process failed.
        """
        while self.read(1 << 20):
            pass
        code = self._channel.wait()
        if code != 0:
            raise error_of(self._said, code, path)


__all__ = ["SandboxFileError", "TransferLimits", "download", "upload"]
