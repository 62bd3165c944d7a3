"""Which files of a build's directory its `.dockerignore` leaves out.

Whoever wrote the directory wrote the patterns, too, so a path takes a time that grows with the patterns' length and no
faster: docker-py's own matcher turns `a*a*a*b` into a regular expression that backtracks for hours.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

_ANY_DEPTH = "**"


class _IgnorePattern(NamedTuple):
    """A line of the file, to be followed one name of a path after the other."""

    leaves_out: bool
    parts: Sequence[Callable[[str], object] | None]
    """A test of one name each; None is `**`, any number of names."""

    @classmethod
    def of(cls, line: str) -> _IgnorePattern:
        """The pattern of a line; without parts where it names nothing. `..` takes the part before it along."""
        kept: list[str] = []
        for part in line.removeprefix("!").strip().split("/"):
            if part == "..":
                del kept[-1:]
            elif part not in {"", "."}:
                kept.append(part)
        return cls(not line.startswith("!"), [None if part == _ANY_DEPTH else _test_of(part) for part in kept])

    def skipped(self, places: Collection[int]) -> Collection[int]:
        """The places, and those behind each `**` at them, which may stand for nothing unless it is the last part."""
        reached = set(places)
        for place in sorted(places):
            behind = place
            while behind + 1 < len(self.parts) and self.parts[behind] is None:
                behind += 1
                reached.add(behind)
        return reached

    def after(self, places: Collection[int], name: str) -> Collection[int]:
        """The places in parts that a path is at after one more name; all of them passed: it is named, or lies below."""
        end = len(self.parts)
        if end in places:
            return (end,)
        reached = set()
        for place in places:
            test = self.parts[place]
            if test is None:
                reached |= {place, end} if place + 1 == end else {place}
            elif test(name):
                reached.add(place + 1)
        return self.skipped(reached)


def _test_of(part: str) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(part)).match if re.search(r"[*?[]", part) else part.__eq__


def kept_paths(root: Path, lines: Sequence[str]) -> Iterator[str]:
    """The paths below root that are sent, relative to it; of a link the link. The last pattern that names one decides.

    Raises:
        OSError: a directory cannot be read.
    """
    patterns = [pattern for line in lines if (pattern := _IgnorePattern.of(line)).parts]
    below = [("", [pattern.skipped({0}) for pattern in patterns])]
    while below:
        directory, before = below.pop()
        with os.scandir(root / directory) as entries:
            for entry in entries:
                now = [one.after(places, entry.name) for one, places in zip(patterns, before, strict=True)]
                named = [one.leaves_out for one, places in zip(patterns, now, strict=True) if len(one.parts) in places]
                path, is_left_out = f"{directory}/{entry.name}".lstrip("/"), bool(named) and named[-1]
                if not is_left_out:
                    yield path
                may_return = any(places and not one.leaves_out for one, places in zip(patterns, now, strict=True))
                if entry.is_dir(follow_symlinks=False) and (may_return or not is_left_out):
                    below.append((path, now))
