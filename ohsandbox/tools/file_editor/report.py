"""The report of an edit: the lines around it for the model, a diff for the user."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.tools.file_editor.definition import FileEditObservation
from ohsandbox.tools.file_editor.lines import around, count_lines, line_of, numbered, split_lines

if TYPE_CHECKING:
    from ohsandbox.tools.file_editor.definition import Command

CONTEXT_LINES = 4
"""Lines shown before and after a change: enough to see a wrong indentation."""

MAX_SNIPPET_CHARS = 6_000
"""The model knows its own text; this shows the surroundings."""

MAX_WINDOW_CHARS = 400
"""The shown part of a long changed line on either side of the change's start."""

MAX_DIFF_LINES = 400
"""For the user; a longer diff shows the file, not the change. difflib takes at most 20 ms for these."""


class Both(NamedTuple):
    """Old and new text of a file: new[start:new_end] stands where old[start:old_end] stood."""

    old: str
    new: str
    start: int
    old_end: int
    new_end: int


def edited(command: Command, path: str, done: str, both: Both) -> FileEditObservation:
    """Make the observation of an edit; done describes the edit."""
    old_lines, new_lines = count_lines(both.old), count_lines(both.new)
    was = "" if old_lines == new_lines else f" (it had {old_lines})"
    return FileEditObservation(
        command=command,
        path=path,
        text=f"{done.removesuffix('.')}. The file has {plural(new_lines, 'line')} now{was}{_snippet(both)}",
        old_lines=old_lines,
        new_lines=new_lines,
        diff=_diff(both),
    )


def plural(count: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _snippet(both: Both) -> str:
    first, last = around(both.new, both.start, both.new_end, context=CONTEXT_LINES)
    lines = split_lines(both.new[first:last])
    if not lines:
        return "."
    number = line_of(both.new, first)
    changed = line_of(both.new, both.start) - number
    if changed < len(lines):
        column = both.start - (both.new.rfind("\n", 0, both.start) + 1)
        lines[changed] = _window(lines[changed], column)
    return f":\n{numbered(lines, first=number, limit_chars=MAX_SNIPPET_CHARS)}"


def _window(line: str, column: int) -> str:
    """A long line's part around column."""
    if len(line) <= 2 * MAX_WINDOW_CHARS:
        return line
    start, end = max(0, column - MAX_WINDOW_CHARS), column + MAX_WINDOW_CHARS
    before = f"[... {start} characters ...] " if start else ""
    after = f" [... {len(line) - end} characters ...]" if end < len(line) else ""
    return f"{before}{line[start:end]}{after}"


def _diff(both: Both) -> str:
    old_first, old_last = around(both.old, both.start, both.old_end, context=CONTEXT_LINES)
    _, new_last = around(both.new, both.start, both.new_end, context=CONTEXT_LINES)
    return diff_of(both.old[old_first:old_last], both.new[old_first:new_last], first=line_of(both.old, old_first))


def diff_of(old: str, new: str, *, first: int) -> str:
    """Lines that begin with a blank, `-` or `+`, after one with the position; limited in number and to 200 columns."""
    was, now = split_lines(old), split_lines(new)
    if len(was) + len(now) <= MAX_DIFF_LINES:
        rows = [*difflib.unified_diff(was, now, n=MAX_DIFF_LINES, lineterm="")][3:]
    else:
        rows = [*(f"-{line}" for line in was[:MAX_DIFF_LINES]), *(f"+{line}" for line in now[:MAX_DIFF_LINES])]
    left_out = len(was) + len(now) - MAX_DIFF_LINES
    note = [f"@ {left_out} more lines"] if left_out > 0 else []
    return "\n".join([f"@ line {first}", *(row[:201] for row in rows[:MAX_DIFF_LINES]), *note])
