"""`Tree`: the names in a directory and what they were, without their contents.

A workspace is written by an agent while we look: every step is by descriptor and follows no symlink, so that nothing
outside the directory is ever read. `.git`, at any depth, is the person's own and no part of a tree.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MAX_FILE_BYTES = 64 * 1024**2
"""A larger file is left out, and told: a database or a model is no work of a turn."""
MAX_ENTRIES = 100_000
MAX_TOTAL_BYTES = 1024**3
"""A larger directory is refused whole."""
MAX_DEPTH = 100

_SETTLED_NS = 2_000_000_000
"""A file changed this shortly before it was looked at may have changed again with the same times (FAT has 2 s)."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(NamedTuple):
    """One name."""

    kind: Literal["file", "link", "dir"]
    mode: int
    """Permission bits, without setuid, setgid and sticky."""
    what: str = ""
    """A file's SHA-256, a link's target."""
    size: int = 0
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    ctime_ns: int = 0
    inode: int = 0

    def is_like(self, other: Entry | None) -> bool:
        """The same to who reads it: kind, content and permissions; times and owner do not count."""
        return other is not None and self[:3] == other[:3]


class Tree(NamedTuple):
    """A directory at one moment."""

    taken_ns: int
    entries: dict[str, Entry]
    """By path below the directory; bytes that are no UTF-8 are surrogates, as `os.fsdecode` makes them."""
    left_out: dict[str, str]
    """What could not be taken, and why."""


def look(
    root: Path,
    keep: Callable[[bytes], str],
    *,
    taken_ns: int = 0,
    before: Tree | None = None,
    only: Iterable[str] | None = None,
) -> Tree:
    """The directory now.

    Args:
        root: the directory.
        keep: takes a file's content and gives its SHA-256.
        taken_ns: the time, where the tree is to be a later call's `before`.
        before: files that have not changed since are not read again.
        only: take these paths alone, and the directories that they lie in.

    Raises:
        UsageError: it is not there, or too large.
    """
    wanted = None if only is None else {part for path in only for part in _with_parents(path)}
    look_now = _Look(keep, Tree(taken_ns, {}, {}), before or Tree(0, {}, {}), wanted)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"Directory {str(root)!r} cannot be read: {error.strerror}. Make it readable.") from error
    try:
        look_now.into(descriptor, "", depth=0)
    finally:
        os.close(descriptor)
    return look_now.tree


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


class _Look:
    def __init__(self, keep: Callable[[bytes], str], tree: Tree, before: Tree, wanted: set[str] | None) -> None:
        self.tree = tree
        self._wanted = wanted
        self._keep = keep
        self._before = before
        self._bytes = 0

    def into(self, directory: int, prefix: str, *, depth: int) -> None:
        """Take in all names of an open directory."""
        for name in sorted(os.listdir(directory)):
            path = prefix + name
            if name == ".git" or (self._wanted is not None and path not in self._wanted):
                continue
            if depth >= MAX_DEPTH:
                self.tree.left_out[path] = f"over {MAX_DEPTH} directories deep"
                continue
            try:
                self._take(directory, name, path, depth=depth)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # gone meanwhile
                    self.tree.left_out[path] = str(error.strerror)

    def _take(self, directory: int, name: str, path: str, *, depth: int) -> None:
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if len(self.tree.entries) >= MAX_ENTRIES:
            raise UsageError(f"The directory holds over {MAX_ENTRIES} names: too many to keep. Work in a smaller one.")
        if stat.S_ISREG(facts.st_mode):
            self._take_file(directory, name, path, facts)
        elif stat.S_ISLNK(facts.st_mode):
            self.tree.entries[path] = _entry("link", facts, os.readlink(name, dir_fd=directory))
        elif stat.S_ISDIR(facts.st_mode):
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                self.tree.entries[path] = _entry("dir", os.fstat(below))
                self.into(below, path + "/", depth=depth + 1)
            finally:
                os.close(below)
        else:
            self.tree.left_out[path] = "neither file, directory nor symlink"

    def _take_file(self, directory: int, name: str, path: str, facts: os.stat_result) -> None:
        if facts.st_size > MAX_FILE_BYTES:
            self.tree.left_out[path] = f"over {MAX_FILE_BYTES >> 20} MiB"
            return
        self._bytes += facts.st_size
        if self._bytes > MAX_TOTAL_BYTES:
            raise UsageError(f"The directory holds over {MAX_TOTAL_BYTES >> 30} GiB: too much to keep. Use a smaller.")
        known = self._before.entries.get(path)
        if known is not None and self._is_unchanged(known, facts):
            self.tree.entries[path] = known
            return
        descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise FileNotFoundError(path)
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            self.tree.left_out[path] = f"over {MAX_FILE_BYTES >> 20} MiB"
            return
        self.tree.entries[path] = _entry("file", facts, self._keep(data))

    def _is_unchanged(self, known: Entry, facts: os.stat_result) -> bool:
        return known.ctime_ns < self._before.taken_ns - _SETTLED_NS and known == _entry("file", facts, known.what)


def _entry(kind: Literal["file", "link", "dir"], facts: os.stat_result, what: str = "") -> Entry:
    mode = 0o777 if kind == "link" else stat.S_IMODE(facts.st_mode) & 0o777
    size = facts.st_size if kind == "file" else 0
    times = (facts.st_mtime_ns, facts.st_uid, facts.st_gid, facts.st_ctime_ns, facts.st_ino)
    return Entry(kind, mode, what, size, *times)
