"""Files of a bound directory that have names outside of it: hard links.

uv links a `.venv` to its cache, pnpm `node_modules` to its store, and `git clone` of a local repository the objects. A
write through one name is a write under all of them. So each such file gets a copy of its own in its place, before the
sandbox starts: the content is the same, nothing is shared, and the next start finds nothing to do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, NoReturn

from ohsandbox.errors import UsageError
from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.disk_space import floor_bytes, floor_files, measure
from ohsandbox.runtime.results import PullProgress
from ohsandbox.runtime.workspace.git_layout import opened_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.mounts.guard_mounts import LinkedFile

MAX_COPY_BYTES = 10 * 1024**3
"""Bytes that are copied at one start, where the file system cannot share them. A `.venv` with PyTorch and CUDA has 5 to
8 GB. 6,000 files of together 293 MB took 3 s on ext4 with two busy processors."""
_FICLONE = 0x40049409
"""ioctl_ficlone(2): the copy shares the blocks until one of the two is written (btrfs, XFS, bcachefs)."""
_STEP_BYTES = 16 * 1024**2
"""Bytes after which the progress is told; a piece of a file that is copied at once."""
_CHANGED = {errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""Errors of a name that is another file, no file, or reached through another directory or a link by now."""
_INHERITED = {"system.posix_acl_access"}
"""The attribute that a new file may have from its directory (acl(5), default ACL)."""
_MAX_NAMED = 4
"""Directories that a line names."""
_REMEDY = (
    "Work on a copy (--copy, copy=True), or let the sandbox write to them under all their names with "
    "--hard-links keep (hard_links='keep')."
)


def separate(
    linked: Iterable[LinkedFile], *, free_bytes: int | None, progress: Callable[[PullProgress], None] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Give each file that has names outside of the bound directories a copy of its own.

    Its names inside stay names of one file. Mode, owner, times and extended attributes are kept. A file all of whose
    names inside are read-only for the sandbox stays as it is. Returns a line for a person for each root with such
    files, and the paths that something else has changed since the walk, which are left alone.

    Args:
        linked: the files with several names of all directories that the sandbox may write.
        free_bytes: what must stay free on the disk; None: the default.
        progress: called after each 16 MiB that were copied.

    Raises:
        UsageError: the copies would take over `MAX_COPY_BYTES` or the disk below its floor, or a file cannot be
            replaced: its directory or it belongs to another user.
    """
    shared = _shared_outside(linked)
    changed: list[str] = []
    checked_devices: set[int] = set()
    copied = _Copied(shared, progress)
    for names in shared:
        first = names[0]
        try:
            with _directory_of(first) as directory:
                source = os.open(_last(first), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
                try:
                    if first.device not in checked_devices and not _can_clone(directory, source):
                        _require_room([group for group in shared if group[0].device == first.device], free_bytes)
                    checked_devices.add(first.device)
                    _replace_by_copy(directory, source, first, copied)
                finally:
                    os.close(source)
                for other in names[1:]:
                    _replace_by_link(directory, first, other)
        except OSError as error:
            if error.errno not in _CHANGED:
                _refuse(shared, f"{_path(first)!r}: {error.strerror}")
            changed.append(_path(first))
    lines = {
        root: f"Files of {root!r} had other names outside of it (hard links); each is a copy of its own now: {listing}."
        for root, listing in _listings(shared).items()
    }
    return lines, changed


def describe_kept(linked: Iterable[LinkedFile]) -> dict[str, str]:
    """Return a line for each root that has files with names outside of the bound directories."""
    return {
        root: f"--hard-links keep: files of {root!r} have other names outside of it, and what the sandbox writes to "
        f"them changes them there too: {listing}."
        for root, listing in _listings(_shared_outside(linked)).items()
    }


def _shared_outside(linked: Iterable[LinkedFile]) -> list[list[LinkedFile]]:
    """Return the names of each file that the sandbox may write and that has further names elsewhere."""
    files: dict[tuple[int, int], list[LinkedFile]] = defaultdict(list)
    for name in linked:
        files[name.device, name.inode].append(name)
    # a guarded name counts as one outside: what is written by another must not change it
    writable = [[name for name in names if not name.is_guarded] for names in files.values()]
    return [names for names in writable if names and _count_names(names) < max(name.links for name in names)]


def with_guarded_names(linked: Iterable[LinkedFile]) -> list[LinkedFile]:
    """Return the names of the files some of whose names are guarded: kept links would evade the guard."""
    linked = list(linked)
    guarded = {(name.device, name.inode) for name in linked if name.is_guarded}
    return [name for name in linked if (name.device, name.inode) in guarded]


def _count_names(names: Sequence[LinkedFile]) -> int:
    """Return the number of names; one that a bind mount of this machine shows twice counts once."""
    if len(names) < names[0].links:
        return len(names)
    distinct: set[tuple[int, int, str]] = set()
    for name in names:
        with contextlib.suppress(OSError), _directory_of(name) as directory:
            status = os.fstat(directory)
            distinct.add((status.st_dev, status.st_ino, _last(name)))
    return len(distinct)


def _replace_by_copy(directory: int, source: int, name: LinkedFile, copied: _Copied) -> None:
    before = os.fstat(source)
    if (before.st_dev, before.st_ino) != (name.device, name.inode) or not stat.S_ISREG(before.st_mode):
        raise OSError(errno.ESTALE, "it changed meanwhile")
    if before.st_uid != os.geteuid() != 0:
        raise OSError(errno.EPERM, "it belongs to another user")
    copy, temporary = _new_file(directory)
    try:
        _copy_all(source, copy, before, copied)
        if not temporary:
            temporary = _temporary_name()
            os.link(f"/proc/self/fd/{copy}", temporary, dst_dir_fd=directory, follow_symlinks=True)  # see open(2)
        _rename(directory, temporary, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(copy)


def _new_file(directory: int) -> tuple[int, str]:
    """Create a file; return its descriptor and name: "" on a file system where a file can do without until it is whole.

    A process that is killed while it copies leaves nothing behind then.
    """
    with contextlib.suppress(AttributeError, OSError):  # macOS; NFS, FUSE
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory), ""
    name = _temporary_name()
    return os.open(name, NEW_FILE, 0o600, dir_fd=directory), name


def _data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of a file that is no hole, see lseek(2)."""
    end = 0
    try:
        while end < size:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
            yield start, end
    except OSError as error:
        if error.errno == errno.EINVAL:  # a file system that knows no holes
            yield end, size
        elif error.errno != errno.ENXIO:  # only a hole follows
            raise


def _copy_all(source: int, copy: int, before: os.stat_result, copied: _Copied) -> None:
    """Copy content, holes, owner, mode, times and attributes of a file whose status was before."""
    if not _clone(source, copy):
        for start, end in _data_ranges(source, before.st_size):
            position = start
            while position < end and (piece := os.pread(source, min(_STEP_BYTES, end - position), position)):
                written = os.pwrite(copy, piece, position)
                position += written
                copied.add(written)
        os.ftruncate(copy, before.st_size)
    if os.fstat(copy)[4:6] != before[4:6]:
        os.fchown(copy, before.st_uid, before.st_gid)
    if hasattr(os, "listxattr"):
        for attribute in {*os.listxattr(copy)} & _INHERITED - {*os.listxattr(source)}:
            os.removexattr(copy, attribute)
    shutil.copystat(source, copy)  # type: ignore[arg-type] # its functions of `os` take descriptors, too
    after = os.fstat(source)
    if (after.st_size, after.st_mtime_ns) != (os.fstat(copy).st_size, before.st_mtime_ns):
        raise OSError(errno.ESTALE, "it changed meanwhile")


def _replace_by_link(directory: int, first: LinkedFile, other: LinkedFile) -> None:
    """Replace another name of a file by a link to the copy that the first name has now."""
    temporary = _temporary_name()
    with _directory_of(other) as place:
        os.link(_last(first), temporary, src_dir_fd=directory, dst_dir_fd=place, follow_symlinks=False)
        try:
            _rename(place, temporary, other)
        except BaseException:
            os.unlink(temporary, dir_fd=place)
            raise


def _rename(directory: int, temporary: str, name: LinkedFile) -> None:
    """Put a temporary file in the place of a name that still is the file that the walk found."""
    status = os.stat(_last(name), dir_fd=directory, follow_symlinks=False)
    if (status.st_dev, status.st_ino) != (name.device, name.inode):
        raise OSError(errno.ESTALE, "it changed meanwhile")
    os.rename(temporary, _last(name), src_dir_fd=directory, dst_dir_fd=directory)


def _can_clone(directory: int, source: int) -> bool:
    """Whether copies in the directory share their blocks with source."""
    copy, temporary = _new_file(directory)
    try:
        if temporary:
            os.unlink(temporary, dir_fd=directory)
        return _clone(source, copy)
    finally:
        os.close(copy)


class _Copied:
    """Counts the bytes that were copied, and tells them."""

    def __init__(self, shared: Sequence[Sequence[LinkedFile]], tell: Callable[[PullProgress], None] | None) -> None:
        self._total = sum(names[0].size_bytes for names in shared)
        self._subject = f"hard-linked files of {', '.join(repr(root) for root in _listings(shared))}"
        self._done, self._tell = 0, tell

    def add(self, number: int) -> None:
        """Count so many bytes more."""
        before, self._done = self._done, self._done + number
        if self._tell is not None and self._done // _STEP_BYTES > before // _STEP_BYTES:
            self._tell(PullProgress(self._subject, "copying", self._done, self._total))


def _clone(source: int, copy: int) -> bool:
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            fcntl.ioctl(copy, _FICLONE, source)
            return True
    return False


def _require_room(shared: Sequence[Sequence[LinkedFile]], free_bytes: int | None) -> None:
    """Refuse copies that take too much of their disk."""
    needed = sum(names[0].size_bytes for names in shared)
    space = measure(shared[0][0].root)
    floor = floor_bytes(space, free_bytes)
    if needed > MAX_COPY_BYTES:
        _refuse(shared, f"that takes {_size(needed)}, and at most {_size(MAX_COPY_BYTES)} are copied at a start")
    if space.free_bytes - needed < floor:
        _refuse(
            shared,
            f"that takes {_size(needed)}, and of the free {_size(space.free_bytes)} {_size(floor)} must stay free",
        )
    if space.total_files and space.free_files - len(shared) < floor_files(space):
        _refuse(shared, f"that takes {len(shared):,} inodes, and the disk has {space.free_files:,}")


def _refuse(shared: Sequence[Sequence[LinkedFile]], why: str) -> NoReturn:
    listed = "; ".join(f"{root!r}: {listing}" for root, listing in _listings(shared).items())
    raise UsageError(
        f"Files have other names outside of what is bound (hard links), {listed}. They cannot be given copies of their "
        f"own: {why}.",
        remedy=_REMEDY,
    )


def _listings(shared: Sequence[Sequence[LinkedFile]]) -> Mapping[str, str]:
    """Return by root the directories that hold the files, most files first, with their number and size."""
    paths: dict[tuple[str, str], list[str]] = defaultdict(list)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for names in shared:
        for index, name in enumerate(names):
            key = name.root, name.path.partition("/")[0] if "/" in name.path else ""
            paths[key].append(name.path)
            sizes[key] += 0 if index else name.size_bytes
    listed: dict[str, list[str]] = defaultdict(list)
    for (root, top), files in sorted(paths.items(), key=lambda item: -len(item[1])):
        directory = os.path.commonpath([path.rpartition("/")[0] for path in files]) if top else "."
        count = "1 file" if len(files) == 1 else f"{len(files):,} files"
        listed[root].append(f"{directory!r} ({count}, {_size(sizes[root, top])})")
    return {
        root: ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if names[_MAX_NAMED:] else "")
        for root, names in listed.items()
    }


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"  # noqa: PLR2004 - a GB


def _directory_of(name: LinkedFile) -> contextlib.AbstractContextManager[int]:
    return opened_below(name.root, name.path.rpartition("/")[0])


def _last(name: LinkedFile) -> str:
    return name.path.rpartition("/")[2]


def _path(name: LinkedFile) -> str:
    return f"{name.root}/{name.path}"


def _temporary_name() -> str:
    return f".ohsandbox-{secrets.token_hex(8)}.tmp"
