"""Selection of a build's files by the patterns of its `.dockerignore`.

The patterns are untrusted, like the directory. Matching a path therefore takes time linear in the patterns' length:
docker-py's own matcher turns `a*a*a*b` into a regular expression that backtracks for hours.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.text import quoted_brackets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

_ANY_DEPTH = "**"


class _IgnorePattern(NamedTuple):
    """A line of the file, matched one path component at a time."""

    leaves_out: bool
    parts: Sequence[Callable[[str], object] | None]
    """A test for one path component each; None is `**`, which matches any number of components."""

    @classmethod
    def of(cls, line: str) -> _IgnorePattern:
        """Return the pattern of a line, without parts if it names nothing. `..` removes the part before it."""
        parts: list[str] = []
        for part in line.removeprefix("!").strip().split("/"):
            if part == "..":
                del parts[-1:]
            elif part not in {"", "."}:
                parts.append(part)
        return cls(not line.startswith("!"), [None if part == _ANY_DEPTH else _test_of(part) for part in parts])

    def skipped(self, places: Collection[int]) -> Collection[int]:
        """Add the positions after each `**` at the given ones: unless it is the last part, it may match nothing."""
        reached = set(places)
        for position in sorted(places):
            behind = position
            while behind + 1 < len(self.parts) and self.parts[behind] is None:
                behind += 1
                reached.add(behind)
        return reached

    def after(self, places: Collection[int], name: str) -> Collection[int]:
        """Return the positions in parts after one more component; the position after the last part means a match."""
        end = len(self.parts)
        if end in places:
            return (end,)
        reached = set()
        for position in places:
            test = self.parts[position]
            if test is None:
                reached |= {position, end} if position + 1 == end else {position}
            elif test(name):
                reached.add(position + 1)
        return self.skipped(reached)


def _test_of(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(quoted_brackets(part))).match if re.search(r"[*?[]", part) else part.__eq__


def kept_paths(root: Path, lines: Sequence[str]) -> Iterator[str]:
    """Yield the relative paths below root that are sent, links as links. The last pattern that matches a path decides.

    Raises:
        OSError: a directory cannot be read.
    """
    patterns = [pattern for line in lines if (pattern := _IgnorePattern.of(line)).parts]
    below = [("", [pattern.skipped({0}) for pattern in patterns])]
    while below:
        directory, before = below.pop()
        with os.scandir(root / directory) as entries:
            for entry in entries:
                now = [pattern.after(places, entry.name) for pattern, places in zip(patterns, before, strict=True)]
                named = [
                    pattern.leaves_out
                    for pattern, places in zip(patterns, now, strict=True)
                    if len(pattern.parts) in places
                ]
                path, is_left_out = f"{directory}/{entry.name}".lstrip("/"), bool(named) and named[-1]
                if not is_left_out:
                    yield path
                may_return = any(
                    places and not pattern.leaves_out for pattern, places in zip(patterns, now, strict=True)
                )
                if entry.is_dir(follow_symlinks=False) and (may_return or not is_left_out):
                    below.append((path, now))
