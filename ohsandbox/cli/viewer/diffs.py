"""The change of a file as rows of a table: the old line beside the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.cli.rendering.lines import BlockLine

MAX_LINES = 5000
"""Of a change; of a longer one the first are shown."""
MAX_PATH_CHARS = 1000

Row = list[Any]
"""Number and text of the old line, number and text of the new one, None for a side without one; or a text between."""


def difference(path: str, lines: Sequence[BlockLine]) -> dict[str, Any] | None:
    """For the page: a change by its lines, which are printable; None where they are none of a change."""
    counts = {kind: sum(line.kind == kind for line in lines) for kind in ("added", "removed")}
    if not any(counts.values()):
        return None
    rows = list(_rows(lines[:MAX_LINES]))
    left_out = max(0, len(lines) - MAX_LINES)
    return {"path": safe_line(path, limit_chars=MAX_PATH_CHARS), "rows": rows, "left_out": left_out, **counts}


def _rows(lines: Sequence[BlockLine]) -> Iterator[Row]:
    """Each run of removed lines stands beside the run of added ones that follows it."""
    old: list[BlockLine] = []
    new: list[BlockLine] = []
    ahead = 0  # by so much is a number of the new text larger than that of the same line in the old one
    for at, line in enumerate(lines):
        (old if line.kind == "removed" else new if line.kind == "added" else []).append(line)
        follows = lines[at + 1].kind if at + 1 < len(lines) else ""
        if line.kind in {"added", "removed"} and follows in {"added", "removed"} and not (new and follows == "removed"):
            continue
        yield from _beside(old, new)
        ahead += len(new) - len(old)
        old, new = [], []
        if line.kind == "same":
            yield [line.number - ahead if line.number else None, line.text, line.number or None, line.text]
        elif line.kind not in {"added", "removed"}:
            yield [line.text]


def _beside(old: Sequence[BlockLine], new: Sequence[BlockLine]) -> Iterator[Row]:
    for at in range(max(len(old), len(new))):
        left = [old[at].number or None, old[at].text] if at < len(old) else [None, None]
        right = [new[at].number or None, new[at].text] if at < len(new) else [None, None]
        yield [*left, *right]
