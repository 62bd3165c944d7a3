"""Paths that a setup created, changed or removed in a bound workspace, recorded to check later that they are unchanged.

A directory that the setup created stands for all below it, so that `node_modules` is one entry.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from ohsandbox.runtime.workspace.git_layout import parents_of

MAX_ENTRIES = 200_000
"""A walk over so many takes two seconds; a larger workspace is not compared."""
_MAX_TRACES = 2_000
"""Maximum number of recorded paths: checking them at each start takes 10 ms."""


class Stamp(NamedTuple):
    """Identity of a file: inode, size in bytes and modification time in ns; of a directory only the inode."""

    inode: int
    size: int
    changed_ns: int


_GONE = Stamp(0, 0, 0)
"""Stamp of a path that does not exist; no file has inode 0."""


def scan(root: str) -> dict[str, Stamp] | None:
    """Return the stamp of each path below root, without following links; None for over MAX_ENTRIES or an OSError."""
    found: dict[str, Stamp] = {}
    left = [""]
    try:
        while left:
            above = left.pop()
            with os.scandir(Path(root) / above) as entries:
                for entry in entries:
                    path = f"{above}/{entry.name}" if above else entry.name
                    is_dir = entry.is_dir(follow_symlinks=False)
                    found[path] = _stamp(entry.stat(follow_symlinks=False), is_dir=is_dir)
                    if is_dir:
                        left.append(path)
            if len(found) > MAX_ENTRIES:
                return None
    except OSError:
        return None
    return found


def traces(before: dict[str, Stamp], after: dict[str, Stamp]) -> dict[str, Stamp] | None:
    """Return the paths that are new, changed or gone, none below another of them, with their stamps after the setup.

    The stamp of a path that is gone is `_GONE`. The result is None for more than 2,000 paths.
    """
    changed = {path: stamp for path, stamp in after.items() if before.get(path) != stamp}
    changed |= dict.fromkeys(before.keys() - after.keys(), _GONE)
    found = {path: stamp for path, stamp in changed.items() if changed.keys().isdisjoint(parents_of(path))}
    return found if len(found) <= _MAX_TRACES else None


def are_there(root: str, found: dict[str, Stamp]) -> bool:
    """Whether each path still has its stamp; a path with `_GONE` must still be gone."""
    return all(_now(f"{root}/{path}") == stamp for path, stamp in found.items())


def _now(path: str) -> Stamp:
    try:
        entry = os.lstat(path)
    except OSError:
        return _GONE
    return _stamp(entry, is_dir=stat.S_ISDIR(entry.st_mode))


def _stamp(entry: os.stat_result, *, is_dir: bool) -> Stamp:
    return Stamp(entry.st_ino, 0, 0) if is_dir else Stamp(entry.st_ino, entry.st_size, entry.st_mtime_ns)
