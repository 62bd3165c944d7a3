"""`Manifest`: the names in a directory and their metadata, without the contents.

An agent may write to a workspace during a scan: every step uses descriptors and follows no symlink, so nothing outside
of the directory is read. `.git` is read as files and never by git, which would follow its configuration.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY
from ohsandbox.runtime.files.unpack import too_deep, too_large
from ohsandbox.runtime.workspace.git_layout import looks_like_dotgit, parents_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ohsandbox.timetravel.snapshots.store import SnapshotStore

MAX_FILE_BYTES = 64 * 1024**2
"""Maximum size of a file; larger ones are left out and reported. Sources are smaller; databases and models are not."""
MAX_ENTRIES = 100_000
MAX_TOTAL_BYTES = 1024**3
MAX_NAMES_CHARS = 24 * 1024**2
"""Maximum length of all paths and link targets together. A directory over one of these three limits is refused."""
MAX_DEPTH = 100
MAX_GIT_BYTES = 512 * 1024**2
MAX_GIT_ENTRIES = 50_000
"""Limits of all `objects` directories in `.git` together, in addition to those above; one that exceeds them is left out
and reported, and the rest of its `.git` is kept."""
MAX_SPECIAL = 1_000_000
"""Maximum number of FIFOs, sockets and devices (counting them takes 0.4 s); a directory with more is refused."""

_WHOLE_BYTES = 1024**2
"""Maximum size of a file that is read at once; a larger one is copied in pieces."""
_SETTLED_NS = 2_000_000_000
"""A file that changed less than this before a scan may change again with equal times: FAT has a resolution of 2 s."""

_TOO_LARGE = re.compile(r"(\d+) bytes, over ")

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileEntry(NamedTuple):
    """A name and its metadata."""

    kind: Literal["file", "link", "dir"]
    mode: int
    """Permission bits, without setuid, setgid and sticky."""
    what: str = ""
    """A file's SHA-256 or a link's target."""
    size: int = 0
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    ctime_ns: int = 0
    inode: int = 0

    def is_like(self, other: FileEntry | None) -> bool:
        """Whether kind, content and permissions are equal; times and owner do not count."""
        return other is not None and self[:3] == other[:3]

    def is_still(self, name: str, directory: int) -> bool:
        """Whether a file or link in an open directory has not been written or replaced since, or no longer exists."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return True
        return (status.st_ino, status.st_mtime_ns) == (self.inode, self.mtime_ns)


class Manifest(NamedTuple):
    """The state of a directory at one time."""

    taken_ns: int
    entries: dict[str, FileEntry]
    """Entries by path below the directory; bytes that are not UTF-8 are surrogates, as from `os.fsdecode`."""
    left_out: dict[str, str]
    """Paths that were left out, with the reasons."""
    special: int = 0
    """Number of FIFOs, sockets and devices; they have no content and are not in `entries`."""


def is_git(path: str) -> bool:
    """Whether a path is a `.git` or in one, in any spelling that a file system takes for `.git`."""
    if path.isascii() and "git" not in path.lower():
        return False
    return any(name == ".git" or looks_like_dotgit(name) for name in path.split("/"))


def scan_directory(
    root: Path,
    keeper: SnapshotStore,
    *,
    taken_ns: int = 0,
    before: Manifest | None = None,
    only: Iterable[str] | None = None,
    git: bool = True,
) -> Manifest:
    """Scan a directory and return its manifest.

    Args:
        root: the directory.
        keeper: stores the files' contents.
        taken_ns: the time of the scan; needed if the result will be a later call's `before`.
        before: an earlier manifest; files that have not changed since are not read again.
        only: scan only these paths and the directories that contain them.
        git: False leaves out `.git`, at any depth.

    Raises:
        UsageError: root cannot be read, or is over a limit.
    """
    wanted_paths = None if only is None else {part for path in only for part in (path, *parents_of(path))}
    look_now = _Scan(keeper, before or Manifest(0, {}, {}), wanted_paths, git=git)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"Directory {str(root)!r} cannot be read: {error.strerror}. Make it readable.") from error
    try:
        look_now.into(descriptor, "", depth=0)
    finally:
        os.close(descriptor)
    return look_now.tree(taken_ns)


def worst_first(left_out: Mapping[str, str]) -> dict[str, str]:
    """Sort left-out paths: too large files, largest first; those over another limit; the others, by path."""

    def rank(item: tuple[str, str]) -> tuple[int, int, str]:
        path, reason = item
        if match := _TOO_LARGE.match(reason):
            return 0, -int(match[1]), path
        return (1 if is_over_limit(reason) else 2), 0, path

    return dict(sorted(left_out.items(), key=rank))


def is_too_large(why: str) -> bool:
    """Whether a file was left out for its size."""
    return _TOO_LARGE.match(why) is not None


def is_over_limit(why: str) -> bool:
    """Whether a path was left out only because it exceeds a limit, so that it can be copied by other means."""
    return "over " in why


class FileChange(NamedTuple):
    """A name that differs between two manifests."""

    path: str
    old: FileEntry | None
    """None if the name did not exist."""
    new: FileEntry | None
    """None if the name no longer exists."""

    @property
    def word(self) -> Literal["new", "changed", "gone"]:
        """The kind of change, as a word for the user."""
        if self.old is None:
            return "new"
        return "gone" if self.new is None else "changed"

    @property
    def is_of_directories(self) -> bool:
        """Whether only directories are involved, which a patch cannot express."""
        return all(entry is None or entry.kind == "dir" for entry in (self.old, self.new))


def outside_git(changes: Iterable[FileChange]) -> list[FileChange]:
    """Return the changes outside of `.git`; those inside go into no patch and into no other directory."""
    return [change for change in changes if not is_git(change.path)]


def changes_between(old: Manifest, new: Manifest) -> list[FileChange]:
    """Return all names that differ, sorted by path, except those that a manifest left out, and names below them."""
    paths = old.entries.keys() | new.entries.keys()
    unknown = old.left_out.keys() | new.left_out.keys()
    if unknown:
        prefixes = tuple(f"{path}/" for path in unknown)
        paths = {path for path in paths if path not in unknown and not path.startswith(prefixes)}
    changes = (FileChange(path, old.entries.get(path), new.entries.get(path)) for path in sorted(paths))
    return [change for change in changes if change.old is None or not change.old.is_like(change.new)]


class _Scan:
    def __init__(self, keeper: SnapshotStore, before: Manifest, wanted: set[str] | None, *, git: bool) -> None:
        self._entries: dict[str, FileEntry] = {}
        self._left_out: dict[str, str] = {}
        self._special = 0
        self._wanted = wanted
        self._keeper = keeper
        self._before = before
        self._with_git = git
        self._bytes = self._chars = self._git_bytes = self._git_entries = 0

    def tree(self, taken_ns: int) -> Manifest:
        """Return the manifest of the scanned names."""
        return Manifest(taken_ns, self._entries, self._left_out, self._special)

    def into(self, directory: int, prefix: str, *, depth: int, in_git: bool = False) -> None:
        """Scan all names of an open directory."""
        for name in self._names(directory, prefix):
            path = prefix + name
            if depth >= MAX_DEPTH:
                self._leave_out(path, too_deep(MAX_DEPTH))
                continue
            try:
                self._add_entry(directory, name, path, depth=depth, in_git=in_git)
            except FileNotFoundError:
                continue  # removed during the scan
            except OSError as error:
                self._leave_out(path, str(error.strerror))

    def _names(self, directory: int, prefix: str) -> list[str]:
        """Return the names to scan, sorted; count FIFOs, sockets and devices."""
        names: list[str] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                name, path = entry.name, prefix + entry.name
                if self._wanted is not None and path not in self._wanted:
                    continue
                if name == ".git" and not self._with_git:
                    continue
                if entry.is_symlink() or entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                    names.append(name)
                    if len(names) + len(self._entries) > MAX_ENTRIES + self._git_entries:
                        raise _too_many(f"over {MAX_ENTRIES} names")
                else:
                    self._special += 1
                    if self._special > MAX_SPECIAL:
                        raise _too_many(f"over {MAX_SPECIAL} FIFOs, sockets and devices")
                    if self._wanted is not None:
                        self._leave_out(path, "neither file, directory nor symlink")
        return sorted(names)

    def _leave_out(self, path: str, reason: str) -> None:
        self._left_out[path] = reason
        self._count(len(path))

    def _add_entry(self, directory: int, name: str, path: str, *, depth: int, in_git: bool) -> None:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            self._add_file(directory, name, path, status, in_git=in_git)
        elif stat.S_ISLNK(status.st_mode):
            self._add(path, _entry("link", status, os.readlink(name, dir_fd=directory)))
        elif stat.S_ISDIR(status.st_mode):
            subdirectory = os.open(name, DIRECTORY, dir_fd=directory)
            try:
                if in_git and name == "objects" and (reason := self._too_large_for_git(subdirectory)):
                    self._leave_out(path, reason)
                    return
                self._add(path, _entry("dir", os.fstat(subdirectory)))
                self.into(subdirectory, path + "/", depth=depth + 1, in_git=in_git or name == ".git")
            finally:
                os.close(subdirectory)

    def _add(self, path: str, entry: FileEntry) -> None:
        self._entries[path] = entry
        self._count(len(path) + (len(entry.what) if entry.kind == "link" else 0))

    def _count(self, chars: int) -> None:
        self._chars += chars
        if len(self._entries) + len(self._left_out) > MAX_ENTRIES + self._git_entries:
            raise _too_many(f"over {MAX_ENTRIES} names")
        if self._chars > MAX_NAMES_CHARS:
            raise _too_many(f"names of over {MAX_NAMES_CHARS >> 20} MiB")

    def _add_file(self, directory: int, name: str, path: str, status: os.stat_result, *, in_git: bool) -> None:
        most = MAX_GIT_BYTES if in_git else MAX_FILE_BYTES
        if status.st_size > most:
            self._leave_out(path, too_large(status.st_size, most))
            return
        self._bytes += status.st_size
        if self._bytes > MAX_TOTAL_BYTES + self._git_bytes:
            raise UsageError(f"The directory holds over {MAX_TOTAL_BYTES >> 30} GiB, the limit. Use a smaller one.")
        previous = self._before.entries.get(path)
        if previous is not None and self._is_unchanged(previous, status):
            self._add(path, previous)
            return
        descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(path)
            digest = self._kept(file, status.st_size, most)
        if digest is None:
            self._leave_out(path, too_large(os.stat(name, dir_fd=directory).st_size, most))
            return
        self._add(path, _entry("file", status, digest))

    def _kept(self, file: BinaryIO, size: int, most: int) -> str | None:
        if size <= _WHOLE_BYTES:
            data = file.read(_WHOLE_BYTES + 1)
            if len(data) <= _WHOLE_BYTES:
                return self._keeper.keep(data)
            file.seek(0)  # the file has grown during the scan
        return self._keeper.keep_file(file, limit_bytes=most)

    def _too_large_for_git(self, objects: int) -> str | None:
        """Return why an open `objects` directory is left out, or None; sizes are summed before any file is read."""
        count, size = self._git_entries, self._git_bytes
        for length in _sizes_below(objects, depth=0):
            count, size = count + 1, size + length
            if count > MAX_GIT_ENTRIES:
                return f"over {MAX_GIT_ENTRIES} files"
            if size > MAX_GIT_BYTES:
                return f"over {MAX_GIT_BYTES >> 20} MiB"
        self._git_entries, self._git_bytes = count, size
        return None

    def _is_unchanged(self, previous: FileEntry, status: os.stat_result) -> bool:
        return previous.ctime_ns < self._before.taken_ns - _SETTLED_NS and previous == _entry(
            "file", status, previous.what
        )


def _sizes_below(directory: int, *, depth: int) -> Iterator[int]:
    """Yield the sizes in bytes of all names below an open directory; os.fwalk would block on a FIFO (Python 3.11)."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # removed during the scan
                    yield entry.stat(follow_symlinks=False).st_size
                continue
            yield 0
            if depth < MAX_DEPTH:
                with contextlib.suppress(OSError):
                    subdirectory = os.open(entry.name, DIRECTORY, dir_fd=directory)
                    try:
                        yield from _sizes_below(subdirectory, depth=depth + 1)
                    finally:
                        os.close(subdirectory)


def _too_many(contents: str) -> UsageError:
    return UsageError(f"The directory holds {contents}: too many to keep. Work in a smaller one.")


def _entry(kind: Literal["file", "link", "dir"], status: os.stat_result, content: str = "") -> FileEntry:
    mode = 0o777 if kind == "link" else stat.S_IMODE(status.st_mode) & 0o777
    size = status.st_size if kind == "file" else 0
    times = (status.st_mtime_ns, status.st_uid, status.st_gid, status.st_ctime_ns, status.st_ino)
    return FileEntry(kind, mode, content, size, *times)
