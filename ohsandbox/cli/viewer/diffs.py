"""The change of a call that edits a file, as rows: the old line beside the new one."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.cli.rendering.text import safe, safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_LINES = 4000
"""Of either side; a longer change is shown by its beginning."""
CONTEXT_LINES = 3
"""The default of `diff -u`."""
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")

Row = list[Any]
"""Number and text of the old line, number and text of the new one; None for a side without one."""


class Difference(NamedTuple):
    """A change of one file, its texts printable."""

    path: str
    rows: list[Row]
    added: int
    removed: int
    left_out: int
    """Lines of the longer side that are not in rows."""

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {
            "path": self.path,
            "rows": self.rows,
            "added": self.added,
            "removed": self.removed,
            "left_out": self.left_out,
        }


def difference_of(arguments: Mapping[str, Any]) -> Difference | None:
    """The change that a call's arguments say; None where they say none. Its lines are numbered from the piece's own."""
    path = arguments.get("path")
    if not isinstance(path, str):
        return None
    new = next((arguments[name] for name in ("file_text", "content", "new_str") if arguments.get(name)), "")
    old = arguments.get("old_str") or ""
    if not (isinstance(old, str) and isinstance(new, str)) or old == new:
        return None
    before, after = safe(old).splitlines(), safe(new).splitlines()
    left_out = max(0, max(len(before), len(after)) - MAX_LINES)
    return _difference(path, list(_compared(before[:MAX_LINES], after[:MAX_LINES])), left_out)


def read_unified(path: str, text: str) -> Difference | None:
    """The change that a unified diff of one file says; None where the text is none."""
    lines = safe(text).splitlines()
    start = next((at for at, line in enumerate(lines) if _HUNK.match(line)), None)
    if start is None:
        return None
    return _difference(path, list(_read(lines[start : start + MAX_LINES])), max(0, len(lines) - start - MAX_LINES))


def _difference(path: str, rows: list[Row], left_out: int) -> Difference:
    added = sum(1 for row in rows if row and row[2] is not None and (row[0] is None or row[1] != row[3]))
    removed = sum(1 for row in rows if row and row[0] is not None and (row[2] is None or row[1] != row[3]))
    return Difference(safe_line(path, limit_chars=1000), rows, added, removed, left_out)


def _compared(before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    """Rows with CONTEXT_LINES around each change; an empty row stands for what is left out between two."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) + len(after) > MAX_LINES)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT_LINES)):
        if number:
            yield []
        for kind, i, i_end, j, j_end in group:
            if kind == "equal":
                yield from ([i + at + 1, before[i + at], j + at + 1, after[j + at]] for at in range(i_end - i))
            else:
                yield from _paired(before[i:i_end], after[j:j_end], i + 1, j + 1)


def _paired(old: Sequence[str], new: Sequence[str], old_number: int, new_number: int) -> Iterator[Row]:
    for at in range(max(len(old), len(new))):
        left = [old_number + at, old[at]] if at < len(old) else [None, None]
        right = [new_number + at, new[at]] if at < len(new) else [None, None]
        yield [*left, *right]


def _read(lines: Sequence[str]) -> Iterator[Row]:
    """Rows of the hunks, the first line of lines being the first one's head."""
    old: list[str] = []
    new: list[str] = []
    old_number = new_number = 1
    for at, line in enumerate([*lines, "@@ -1 +1 @@"]):
        if line[:1] == "-":
            old.append(line[1:])
            continue
        if line[:1] == "+":
            new.append(line[1:])
            continue
        yield from _paired(old, new, old_number, new_number)
        old_number, new_number = old_number + len(old), new_number + len(new)
        old, new = [], []
        if found := _HUNK.match(line):
            if 0 < at < len(lines):
                yield []
            old_number, new_number = int(found[1]), int(found[2])
        elif not line.startswith("\\"):
            yield [old_number, line[1:], new_number, line[1:]]
            old_number, new_number = old_number + 1, new_number + 1
