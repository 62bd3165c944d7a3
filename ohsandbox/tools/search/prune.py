"""Directories that a walk need not enter, since an ignore file excludes all that is in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.tools.search.ignore import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_TESTS = 200
"""`find` runs each on every directory; what is not pruned is left out later."""

_LITERAL = re.compile(r"[\x20-\x7e]+")
_SPECIAL = re.compile(r"[?\[\]{}\\*]")


def prunes(rules: Mapping[str, Sequence[Rule]], root: str) -> list[tuple[str, ...]]:
    """Tests of `find .` in root, each true only of directories that are certainly ignored.

    rules: those of the ignore files known so far, by the absolute directory of each. One that is met later can still
    take a directory back with `!`: compare what this returns then.
    """
    taken_back = [rule for each in rules.values() for rule in each if rule.negated]
    found = (
        test
        for directory, each in rules.items()
        for rule in each
        if not rule.negated and not any(_may_take_back(other, rule) for other in taken_back)
        for test in _tests(rule, directory, root.rstrip("/"))
    )
    return list(dict.fromkeys(found))[:MAX_TESTS]


def _may_take_back(other: Rule, rule: Rule) -> bool:
    """Whether both can match one name; two wildcards always may."""
    name, back = (each.glob.rpartition("/")[2] for each in (rule, other))
    if _SPECIAL.search(back) is None:
        return _matches(name, back)
    return _SPECIAL.search(name) is not None or _matches(back, name)


def _matches(glob: str, name: str) -> bool:
    regex = Rule(glob, negated=False, only_directories=False, anchored=False).regex
    return regex is None or re.fullmatch(regex, name, re.DOTALL) is not None


def _tests(rule: Rule, directory: str, root: str) -> Iterator[tuple[str, ...]]:
    if not _LITERAL.fullmatch(rule.glob) or not _LITERAL.fullmatch(directory or "/"):
        return
    below = directory.startswith(f"{root}/")
    if not rule.anchored:
        if _SPECIAL.search(rule.glob.replace("*", "")):
            return
        inside = ("-path", f"./{_escaped(directory[len(root) + 1 :])}/*") if below else ()
        yield (*inside, "-name", rule.glob)
        return
    path = f"{directory}/{rule.glob}"
    if not _SPECIAL.search(rule.glob) and path.startswith(f"{root}/"):
        yield ("-path", f"./{_escaped(path[len(root) + 1 :])}")


def _escaped(path: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", path)
