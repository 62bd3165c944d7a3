"""Recognition of git repositories in a directory that a sandbox may have written: no link is followed.

The rules are those of git's setup.c (2.39). A repository is a `.git` directory, a `.git` file that names one, or any
directory with HEAD, objects and refs (a bare repository), or with HEAD and commondir (a worktree's).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUT = frozenset({"HEAD", "objects", "refs", "commondir"})
"""The names that make a directory a repository."""

MAX_SMALL_FILE = 256 * 1024
"""Maximum number of bytes read of a pointer or a configuration; git's own limit for a `.git` file is 1 MiB."""

MAX_INDEX_BYTES = 256 * 1024 * 1024
"""Size of the index of about two million files."""

_GITLINK = 0o160000
_ENTRY = struct.Struct(">24xI")
_NAME_MASK, _EXTENDED = 0xFFF, 0x4000

_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that HFS+ ignores in names (git's utf8.c, next_hfs_char)."""
_NTFS_DOTGIT = re.compile(r"(?:\.git|git~[0-9])[ .]*(?::.*)?", re.IGNORECASE | re.DOTALL)
"""Names that NTFS treats as `.git` (git's path.c, is_ntfs_dotgit), with or without a stream name."""


def walk(root: str) -> Iterator[tuple[str, os.DirEntry[str] | None, str]]:
    """Yield (path below root, entry, "") for everything below root, directories before their contents.

    Only directories are opened. One that cannot be read is yielded again, since it may hide something: without its
    entry, and with the reason; its path is empty if it is root itself.
    """
    below = [""]
    while below:
        directory = below.pop()
        prefix = f"{directory}/" if directory else ""
        try:
            descriptor = os.open(f"{root}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            yield directory, None, error.strerror or type(error).__name__
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        below.append(path)
                    yield path, entry, ""
        except OSError as error:
            yield directory, None, error.strerror or type(error).__name__
        finally:
            os.close(descriptor)


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above a path below the root, the nearest first, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def open_below(root: str, path: str, flags: int) -> int:
    """Open path below root; no component of it may be a link.

    Raises:
        OSError: it does not exist; ELOOP or ENOTDIR: a component is a link or not a directory.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, last = path.split("/")
    try:
        for part in parents:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def opened_below(root: str, path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    """Context with a descriptor of path, "" for root itself; raises as `open_below`."""
    descriptor = open_below(root, path or ".", flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_small(root: str, path: str) -> str | None:
    """Return the first 256 KiB of a regular file below root as text; None if it does not exist or cannot be read."""
    with contextlib.suppress(OSError), opened_below(root, path, os.O_RDONLY) as descriptor:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.read(descriptor, MAX_SMALL_FILE).decode("utf-8", "surrogateescape")
    return None


def is_repository(names: set[str]) -> bool:
    """Whether git treats a directory with these names (of LAYOUT) as a repository."""
    return "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names)


def pointed(root: str, pointer: str) -> str | None:
    """Return the target of a `.git` file: a path below root, or an absolute one outside; None if it names none."""
    text = read_small(root, pointer)
    if text is None or not text.startswith("gitdir:"):
        return None
    target = text.removeprefix("gitdir:").strip(" \r\n")
    return inside(root, str(PurePosixPath(pointer).parent / target)) if target else None


def inside(root: str, path: str) -> str:
    """Return a path that is relative to root or absolute in its form below root; absolute if it is outside."""
    whole = os.path.normpath(PurePosixPath(root) / path)
    return str(PurePosixPath(whole).relative_to(root)) if PurePosixPath(whole).is_relative_to(root) else whole


def gitlinks(root: str, gitdir: str) -> set[str]:
    """Return a repository's submodules by its index, checked out or not, as paths below its working tree.

    git enters each of these directories that holds a `.git`, whoever created it (submodule.c, is_submodule_modified).

    Args:
        root: no link below it is followed.
        gitdir: the repository's directory below root; empty for root itself.

    Raises:
        ValueError: an index cannot be read.
    """
    prefix = f"{gitdir}/" if gitdir else ""
    try:
        directory = open_below(root, gitdir or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return set()
    try:  # a split index has most of its entries in another file (gitformat-index(5))
        names = [
            name
            for name in os.listdir(directory)  # noqa: PTH208 - a descriptor
            if name == "index" or name.startswith("sharedindex.")
        ]
    finally:
        os.close(directory)
    hash_bytes = 32 if _object_format(root, prefix) == "sha256" else 20
    return {path for name in names for path in _gitlinks_in(_index(root, prefix + name), hash_bytes)}


def _object_format(root: str, prefix: str) -> str:
    """Return the object format of a repository, "sha1" by default; a worktree has that of its repository."""
    from ohsandbox.runtime.workspace.git_settings import read_settings  # noqa: PLC0415 - only for a repository's index

    common = inside(root, str(PurePosixPath(prefix, (read_small(root, f"{prefix}commondir") or ".").strip())))
    root, common = ("/", common[1:]) if common.startswith("/") else (root, common)
    settings = read_settings(read_small(root, f"{common}/config") or "")
    return {setting.key: setting.value for setting in settings}.get("extensions.objectformat", "sha1").lower()


def _index(root: str, path: str) -> bytes:
    try:
        descriptor = open_below(root, path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path!r} is not a regular file")
        data = file.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise ValueError(f"{path!r} is over {MAX_INDEX_BYTES} bytes")
    return data


def _gitlinks_in(data: bytes, hash_bytes: int) -> Iterator[str]:
    """Parse versions 2 to 4 of gitformat-index(5): 0.1 s for 100,000 entries, and only if one may be a submodule."""
    if struct.pack(">I", _GITLINK) not in data:
        return
    try:
        signature, version, count = struct.unpack_from(">4sII", data)
        if signature != b"DIRC" or version not in {2, 3, 4}:
            raise ValueError("the index is not of a known version")
        at, name = 12, b""
        for _ in range(count):
            (mode,) = _ENTRY.unpack_from(data, at)
            (flags,) = struct.unpack_from(">H", data, at + 40 + hash_bytes)
            begin = at + 42 + hash_bytes + (2 if flags & _EXTENDED else 0)
            if version == 4:  # noqa: PLR2004 - version number
                drop, begin = _offset(data, begin)
                end = data.index(b"\0", begin)
                name, after = name[: len(name) - drop] + data[begin:end], end + 1
            else:
                length = flags & _NAME_MASK
                end = begin + length if length < _NAME_MASK else data.index(b"\0", begin)
                name, after = data[begin:end], at + (end - at + 8) // 8 * 8
            if mode == _GITLINK:
                yield os.fsdecode(name)
            at = after
    except (struct.error, IndexError) as error:
        raise ValueError("the index ends too early") from error


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number in the offset encoding of pack files; return it and the position after it."""
    value = data[at] & 127
    while data[at] & 128:
        at += 1
        value = (value + 1 << 7) | data[at] & 127
    return value, at + 1


def looks_like_dotgit(name: str) -> bool:
    """Whether a name other than `.git` is `.git` to a file system of macOS or Windows."""
    if name == ".git" or (name.isascii() and "git" not in name.lower()):
        return False
    return bool(_NTFS_DOTGIT.fullmatch(_IGNORED_BY_HFS.sub("", name)))
