"""What an agent left in a directory of this machine that the machine could run by itself."""

from __future__ import annotations

import fnmatch
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.cli.view import View

MAX_ENTRIES = 200_000
"""So many names are looked at: half a second on a local disk."""

MAX_LINES = 20

_RUN_BY_THEMSELVES = (
    ".git/hooks/*", ".git/config", ".git/info/attributes", ".gitattributes", ".gitmodules", "*/.git/hooks/*",
    "*/.git/config", ".vscode/*", ".idea/*", ".envrc", "*/.envrc", ".devcontainer/*", ".devcontainer.json",
    ".github/workflows/*", ".gitlab-ci.yml", ".pre-commit-config.yaml", ".husky/*", ".npmrc", ".yarnrc*", ".mise.toml",
    "conftest.py", "sitecustomize.py", "*.pth",
)  # fmt: skip
"""What git, an editor, a shell, a package manager or CI runs or obeys without being asked: a way out of a sandbox
(SECURITY.md 2.2)."""


class _Stamp(NamedTuple):
    """What tells whether a file was changed; the change time cannot be set back without the machine's clock."""

    inode: int
    size: int
    mode: int
    changed_ns: int


class Aftermath:
    """Takes a look at a directory before the run, and says afterwards what should be looked at by a person."""

    def __init__(self, directory: Path) -> None:
        """Look now."""
        self._directory = directory
        self._before, self._complete = _look(directory)

    def tell(self, view: View) -> None:
        """Say what is new or changed since; nothing where nothing is."""
        after, complete = _look(self._directory)
        found = sorted(name for name, stamp in after.items() if self._before.get(name) != stamp)
        if not (complete and self._complete):
            view.warn(f"{self._directory} has over {MAX_ENTRIES} files; not all were looked at for new executables.")
        if not found:
            return
        view.warn(f"Look at these before you work in {self._directory} again; this machine may run them by itself:")
        for name in found[:MAX_LINES]:
            view.say(f"  {'new' if name not in self._before else 'changed'}: {name}")
        if len(found) > MAX_LINES:
            view.say(f"  and {len(found) - MAX_LINES} more")


def _look(root: Path) -> tuple[dict[str, _Stamp], bool]:
    """The executables and what runs by itself, name below root to stamp; and whether all names were seen."""
    found: dict[str, _Stamp] = {}
    for count, entry in enumerate(_walk(str(root))):
        if count >= MAX_ENTRIES:
            return found, False
        name = os.path.relpath(entry.path, root)
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        if _matters(name, status):
            found[name] = _Stamp(status.st_ino, status.st_size, status.st_mode, status.st_ctime_ns)
    return found, True


def _walk(directory: str) -> Iterator[os.DirEntry[str]]:
    """Everything below that is no directory; links are not followed, what cannot be read is left out."""
    below = [directory]
    while below:
        try:
            with os.scandir(below.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
                    else:
                        yield entry
        except OSError:
            continue


def _matters(name: str, status: os.stat_result) -> bool:
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o111:
        return True
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _RUN_BY_THEMSELVES)
