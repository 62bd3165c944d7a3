"""What git takes for a repository, read from a directory that a sandbox may have written: no link is followed.

The rules are those of git's setup.c (2.39): a `.git` directory, a `.git` file that names one, and any directory with
HEAD, objects and refs (a bare repository), or with HEAD and commondir (a worktree's), is one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUT = frozenset({"HEAD", "objects", "refs", "commondir"})
"""The names that make a directory a repository."""

MAX_SMALL_FILE = 256 * 1024
"""More of a pointer or a configuration is not read; git's own limit for a `.git` file is 1 MiB."""

_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""What HFS+ leaves out of names (git's utf8.c, next_hfs_char)."""
_NTFS_DOTGIT = re.compile(r"(?:\.git|git~[0-9])[ .]*(?::.*)?", re.IGNORECASE | re.DOTALL)
"""What NTFS takes for `.git` (git's path.c, is_ntfs_dotgit), with a stream's name behind it or not."""
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_PAIR = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")

_HARMLESS_CONFIG = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|safecrlf|quotepath|abbrev|compression|longpaths)|extensions\.(objectformat|refstorage|worktreeconfig)"
    r"|remote\.(url|pushurl|fetch|push|prune|tagopt|skipfetchall|partialclonefilter|promisor)"
    r"|branch\.(remote|merge|rebase|description|autosetuprebase|autosetupmerge)|submodule\.(url|active|branch|ignore)"
    r"|user\.(name|email|useconfigonly)|(author|committer)\.(name|email)|init\.defaultbranch|color\..*|column\..*"
    r"|(pull|rebase|fetch|gc|pack|index|status|advice|commit|merge|diff|log|push|rerere|lfs)\.[a-z]*"
)
_HARMFUL_CONFIG = re.compile(r"diff\.(external|command|textconv)|merge\.driver|.*\.(program|cmd|path)")
"""Of the sections above. A URL with a double colon names a program as well (gitremote-helpers(7))."""


class WalkEntry(NamedTuple):
    """A name that `walk` met."""

    path: str
    """Below the root, with slashes; empty for the root itself."""
    entry: os.DirEntry[str] | None
    """None: a directory that could not be looked into, for the reason."""
    reason: str = ""


def walk(root: str) -> Iterator[WalkEntry]:
    """Everything below root, directories before what is in them. What is no directory is never opened.

    A directory that cannot be read is given once more, with the reason: something may be hidden in it.
    """
    below = [""]
    while below:
        directory = below.pop()
        prefix = f"{directory}/" if directory else ""
        try:
            descriptor = os.open(f"{root}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError as error:
            yield WalkEntry(directory, None, error.strerror or type(error).__name__)
            continue
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        below.append(path)
                    yield WalkEntry(path, entry)
        except OSError as error:
            yield WalkEntry(directory, None, error.strerror or type(error).__name__)
        finally:
            os.close(descriptor)


def open_below(root: str, path: str, flags: int) -> int:
    """A descriptor of path below root; no component of it may be a link.

    Raises:
        OSError: it is not there; ELOOP or ENOTDIR: a component is a link or no directory.
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


def read_small(root: str, path: str) -> str | None:
    """The text of a small regular file below root; None where there is none, or it cannot be read."""
    try:
        descriptor = open_below(root, path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, MAX_SMALL_FILE).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def is_repository(names: set[str]) -> bool:
    """A directory with these names (of LAYOUT) is one to git."""
    return "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names)


def pointed(root: str, pointer: str) -> str | None:
    """Where a `.git` file at pointer leads: a path below root, or an absolute one outside; None for no pointer."""
    text = read_small(root, pointer)
    if text is None or not text.startswith("gitdir:"):
        return None
    target = text.removeprefix("gitdir:").strip(" \r\n")
    return inside(root, str(PurePosixPath(pointer).parent / target)) if target else None


def inside(root: str, path: str) -> str:
    """The path below root that a path, relative to root or absolute, means; an absolute one where it is outside."""
    whole = os.path.normpath(PurePosixPath(root) / path)
    return str(PurePosixPath(whole).relative_to(root)) if PurePosixPath(whole).is_relative_to(root) else whole


def looks_like_dotgit(name: str) -> bool:
    """Not `.git`, and still `.git` to a file system of macOS or Windows."""
    if name == ".git" or (name.isascii() and "git" not in name.lower()):
        return False
    return bool(_NTFS_DOTGIT.fullmatch(_IGNORED_BY_HFS.sub("", name)))


def config_values(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of a git configuration, `section.name` in lower case without its subsection, and the value unquoted.

    Rougher than git's own reader, and never blinder: a line that is not understood is a pair with the key "?", and so
    is the second line of a value that goes on.
    """
    section = ""
    for line in text.removeprefix("\ufeff").split("\n"):
        rest = line
        if found := _SECTION.match(line):
            section, rest = found[1].lower().split(".", 1)[0], line[found.end() :]
        if not rest.strip() or rest.lstrip()[0] in "#;":
            continue
        if pair := _PAIR.fullmatch(rest):
            value = re.split(r"\s[#;]", pair[2] or "true")[0].strip().strip('"')
            yield f"{section}.{pair[1].lower()}", value
        else:
            yield "?", rest.strip()


def may_name_program(key: str, value: str) -> bool:
    """A pair of `config_values` is not known to run nothing and to redirect nothing."""
    harmless = _HARMLESS_CONFIG.fullmatch(key) and not _HARMFUL_CONFIG.fullmatch(key)
    return not harmless or "::" in value or value.startswith("!")
