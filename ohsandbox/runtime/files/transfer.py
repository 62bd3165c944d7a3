"""Copy files and directories into and out of a sandbox: tar over a channel.

The engine's archive API is never used: it follows symlinks, misses tmpfs, and has been an escape (CVE-2018-15664,
CVE-2019-14271, CVE-2026-41567).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
import tarfile
import threading
import time
from importlib.resources import files as resources
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.arguments import expect
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError, file_error
from ohsandbox.paths import DIRECTORY, open_directory, refuse_link
from ohsandbox.runtime.files import unpack
from ohsandbox.runtime.files.operations import error_of, overtime, stalled
from ohsandbox.runtime.files.unpack import SAID_BYTES, STALL_S, TransferLimits, host_errors
from ohsandbox.runtime.process.invocation import script_on_stdin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.results import LeftOut

    Opener = Callable[[list[str]], Channel]
    """Starts a process in the sandbox, as the user of the transfer."""

_SCRIPTS = resources("ohsandbox.runtime").joinpath("scripts")
_SCRIPT = "\n".join(_SCRIPTS.joinpath(f"{name}.sh").read_text("utf-8") for name in ("files", "transfer"))

_MOST_SAID_BYTES = 64 * 1024 * 1024
"""Maximum size of tar's messages in bytes, of which a line for each of 200,000 members is a third; a program that
prints more is not tar."""

_LOST = 126
"""An engine's exit code of a process whose connection broke (20.10). A tar that fails says why."""
_END_S = 5.0
"""Seconds for a killed process to end, which takes milliseconds; one in uninterruptible sleep (a dead disk) remains
until the sandbox ends."""


def transfer_limits(given: TransferLimits | None) -> TransferLimits:
    """Return the given limits, or the default ones.

    Raises:
        UsageError: given has another type.
    """
    expect("limits", given, TransferLimits, "Make them: TransferLimits(total_bytes=...).")
    return given or TransferLimits()


def upload(
    open_channel: Opener,
    source: Path,
    target: str,
    limits: TransferLimits,
    *,
    only: Collection[str] | None = None,
) -> list[str]:
    """Copy a file to target, or a directory's contents into it; return what was left out (sockets, FIFOs, devices).

    only: the paths below a directory to copy, including those of directories; None copies all.

    Raises:
        UsageError: source is neither a file nor a directory, or its path contains a symlink, or source is a file and
            target names a directory.
        SandboxFileError: source does not exist, the sandbox cannot store it, or this machine cannot read it.
        ToolError: source exceeds a limit; nothing was sent.
        SandboxUnavailable: the sandbox or its engine is gone; of a single file no part is left under its name.
    """
    with host_errors(source), _SourceTree(source, target, only) as tree:
        tree.check(limits)
        directory, _, name = (target, "", "") if tree.is_dir else target.rpartition("/")
        with _start(open_channel, "ohs_unpack", directory or "/", name, tree.member_name) as channel:
            unpacker = _Unpacker(channel, limits.timeout_s)
            try:
                with contextlib.suppress(BrokenPipeError):
                    tree.pack(unpacker)
            except BaseException:
                unpacker.stop()
                raise
            channel.close_stdin()
            unpacker.check(target)
        return tree.skipped


def download(open_channel: Opener, source: str, target: Path, limits: TransferLimits) -> list[LeftOut]:
    """Copy a file to target, or a directory's contents into it; return what was left out and why.

    Raises:
        SandboxFileError: source does not exist, cannot be read, or this machine cannot store it.
        ToolError: source exceeds a limit; target is untouched.
        UsageError: target is a symlink to a directory, or its path contains one.
    """
    with _start(open_channel, "ohs_pack", source) as channel:
        channel.close_stdin()
        try:
            return unpack.receive(channel, source, target, limits)
        except BaseException:
            _end(channel)
            raise


def _start(open_channel: Opener, function: str, *arguments: str) -> Channel:
    argv, script = script_on_stdin(f'{_SCRIPT}\n{function} "$@"', "ohs", *arguments)
    channel = open_channel(argv)
    with contextlib.suppress(BrokenPipeError):  # whoever reads reports how it ended
        channel.write(script)
    return channel


def _end(channel: Channel) -> None:
    """Kill the process and read its output: engine 20.10 does not end an exec whose output is unread."""

    def drain() -> None:
        with contextlib.suppress(OhsandboxError, OSError):
            while channel.read():
                pass

    reader = threading.Thread(target=drain, name="ohsandbox-drain", daemon=True)
    reader.start()
    with contextlib.suppress(OhsandboxError):
        channel.kill()
    reader.join(_END_S)


class _SourceEntry(NamedTuple):
    """One name below the source and the open descriptor of its directory, so that no symlink can be put in its path."""

    path: str
    """The path in the archive."""
    name: str
    directory: int
    facts: os.stat_result


class _SourceTree:
    """The file or directory to upload, held by a descriptor until it is closed."""

    def __init__(self, source: Path, target: str, only: Collection[str] | None = None) -> None:
        """Open the source.

        Raises:
            UsageError: source is neither file nor directory, its path contains a symlink, or source is a file and
                target names a directory.
            SandboxFileError: ENOENT, source does not exist.
        """
        self._only = only
        self.member_name = f".ohs-{secrets.token_hex(8)}.tmp"
        """The name of a single file until it is complete."""
        self.skipped: list[str] = []
        self._name, self.is_dir = "", True
        try:
            self._directory = open_directory(source)
        except FileNotFoundError:
            reason = "The upload source does not exist on this machine"
            raise file_error(errno.ENOENT, reason, str(source), "Check the path.") from None
        except NotADirectoryError:
            self._name, self.is_dir = source.name, False
            self._directory = open_directory(source.parent)
        if self.is_dir:
            return
        with contextlib.ExitStack() as on_error:
            on_error.callback(os.close, self._directory)
            if not stat.S_ISREG(os.stat(self._name, dir_fd=self._directory, follow_symlinks=False).st_mode):
                refuse_link(self._name, self._directory, source)
                raise UsageError(f"{str(source)!r} is neither a file nor a directory. Only those can be uploaded.")
            if target.rpartition("/")[2] in ("", ".", ".."):
                raise UsageError(
                    f"{target!r} names a directory, and {str(source)!r} is a file. Add the file's new name."
                )
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._directory)

    def _entries(self) -> Iterator[_SourceEntry]:
        if self.is_dir:
            yield from _below(self._directory, "", self._only)
            return
        facts = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        yield _SourceEntry(self.member_name, self._name, self._directory, facts)

    def check(self, limits: TransferLimits) -> None:
        """Raise ToolError if the source exceeds a limit, before anything is sent."""
        meter = unpack.Meter(limits, "Upload")
        for entry in self._entries():
            meter.count(entry.path, entry.facts.st_size if stat.S_ISREG(entry.facts.st_mode) else 0)

    def pack(self, unpacker: _Unpacker) -> None:
        """Send the source as a tar archive in GNU format, since busybox's tar does not read names of the pax format."""
        closed: list[tarfile.TarInfo] = []  # directories whose owner lacks a right: sent again after their contents
        seen: dict[tuple[int, int], str] = {}
        with tarfile.open(
            fileobj=unpacker, mode="w|", bufsize=1 << 18,
            format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape",
        ) as archive:  # fmt: skip
            for entry in self._entries():
                mode = entry.facts.st_mode
                if stat.S_ISDIR(mode):
                    if mode & stat.S_IRWXU != stat.S_IRWXU:
                        closed.append(_member(entry, tarfile.DIRTYPE))
                    archive.addfile(_member(entry, tarfile.DIRTYPE, more=stat.S_IRWXU))
                elif stat.S_ISLNK(mode):
                    target = os.readlink(entry.name, dir_fd=entry.directory)
                    archive.addfile(_member(entry, tarfile.SYMTYPE, linkname=target))
                elif stat.S_ISREG(mode):
                    _add_file(archive, entry, seen)
                else:
                    self.skipped.append(entry.path)
            for member in reversed(closed):
                archive.addfile(member)


def _below(directory: int, prefix: str, only: Collection[str] | None) -> Iterator[_SourceEntry]:
    """Yield every name, a directory before its contents.

    os.fwalk blocks if a directory was replaced by a FIFO (3.11).
    """
    for name in sorted(os.listdir(directory)):
        if only is not None and prefix + name not in only:
            continue
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
        yield _SourceEntry(prefix + name, name, directory, facts)
        if stat.S_ISDIR(facts.st_mode):
            below = os.open(name, DIRECTORY, dir_fd=directory)
            try:
                yield from _below(below, f"{prefix}{name}/", only)
            finally:
                os.close(below)


def _add_file(archive: tarfile.TarFile, entry: _SourceEntry, seen: dict[tuple[int, int], str]) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(entry.name, flags, dir_fd=entry.directory), "rb") as file:  # noqa: PTH123 - a descriptor
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "It was replaced while it was copied", entry.path)
        first = seen.setdefault((facts.st_dev, facts.st_ino), entry.path)
        if first != entry.path:
            archive.addfile(_member(entry, tarfile.LNKTYPE, linkname=first))
            return
        member = _member(entry, tarfile.REGTYPE)
        member.size = facts.st_size
        archive.addfile(member, file)


def _member(entry: _SourceEntry, kind: bytes, *, more: int = 0, linkname: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.type, member.linkname = kind, linkname
    member.mode = entry.facts.st_mode & 0o777 | more
    member.mtime = int(entry.facts.st_mtime)
    return member


class _Unpacker(io.RawIOBase):
    """A tar process that unpacks in the sandbox, as a writable file; a thread reads its output, so it never blocks."""

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._written = 0
        self._said = b""
        self._stalled = self._is_overtime = False
        self._thread = threading.Thread(target=self._listen, name="ohsandbox-upload", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        view = memoryview(data)
        self._channel.write(view)
        self._written += len(view)
        return len(view)

    def _listen(self) -> None:
        before, total = -1, 0
        with contextlib.suppress(OhsandboxError, OSError):
            while (chunks := self._channel.read(min(STALL_S, max(self._deadline - time.monotonic(), 0)))) != []:
                self._is_overtime = time.monotonic() >= self._deadline
                self._stalled = chunks is None and self._written == before and not self._is_overtime
                said = b"".join(chunk.data for chunk in chunks or ())
                self._said, total = (self._said + said)[-SAID_BYTES:], total + len(said)
                if self._stalled or self._is_overtime or total > _MOST_SAID_BYTES:
                    _end(self._channel)
                    return
                before = self._written

    def stop(self) -> None:
        """Kill the process while the thread reads its output: see `_end`."""
        with contextlib.suppress(OhsandboxError):
            self._channel.kill()
        self._thread.join(_END_S)

    def check(self, path: str) -> None:
        """Wait for the end of the process, and check its exit code.

        Raises:
            SandboxFileError: the process failed, or stopped reading.
            SandboxUnavailable: the connection to it was lost.
        """
        self._thread.join()
        if self._stalled:
            raise stalled(STALL_S, path)
        if self._is_overtime:
            raise overtime(self._timeout_s, path)
        code = self._channel.wait()
        if code == _LOST and not self._said:
            raise SandboxUnavailable(
                f"The connection to the sandbox was lost in the upload of {path!r}. Upload it again."
            )
        if code != 0:
            raise error_of(self._said, code, path)


__all__ = ["TransferLimits", "download", "upload"]
