"""Lines of a text: numbered, limited, with their ends, and as the report of an edit.

A line ends at a line feed and nowhere else, as for `sed -n 2,3p`; a carriage return before it belongs to its end.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.runtime.files.text import count_lines
from ohsandbox.text import counted
from ohsandbox.tools.file_editor.definition import FileEditObservation

if TYPE_CHECKING:
    from ohsandbox.tools.file_editor.definition import Command

MAX_LINE_CHARS = 2_000
"""The shown part of a long line if not everything fits."""
CONTEXT_LINES = 4
"""Lines shown before and after a change: enough to see a wrong indentation."""
_MAX_SNIPPET_CHARS = 6_000
"""The model knows its own text; this shows the surroundings."""
_MAX_WINDOW_CHARS = 400
"""The shown part of a long changed line on either side of the change's start."""
MAX_DIFF_LINES = 400
"""Limit of a diff for the user; a longer one shows the file, not the change. difflib takes at most 20 ms for these."""

_END = re.compile("\r?\n")


def split_lines(text: str) -> list[str]:
    """The lines without their ends; non-empty text after the last line feed is a line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def numbered(lines: list[str], *, first: int, limit_chars: int) -> str:
    """Lines with numbers from first, as `cat -n`; over the limit, whole lines from the start and a note on the rest."""
    is_long = sum(map(len, lines[:limit_chars])) + 7 * len(lines) > limit_chars
    rows: list[str] = []
    for number, full in enumerate(lines, first):
        line = full.removesuffix("\r")
        if is_long and len(line) > MAX_LINE_CHARS:
            line = (
                f"{line[:MAX_LINE_CHARS]} [... {len(line) - MAX_LINE_CHARS} of the {len(line)} characters of line "
                f"{number} left out: sed -n {number}p FILE | cut -c {MAX_LINE_CHARS + 1}-{2 * MAX_LINE_CHARS} in "
                "execute_bash]"
            )
        rows.append(f"{number:6}\t{line}")
        limit_chars -= len(rows[-1]) + 1
        if limit_chars < 0 and len(rows) > 1:
            last = first + len(lines) - 1
            rows[-1] = f"[... lines {number}-{last} left out here: view_range [{number}, {last}] shows them ...]"
            break
    return "\n".join(rows)


def line_number_at(text: str, index: int) -> int:
    """The number of the line that contains text[index]."""
    return text.count("\n", 0, index) + 1


def around(text: str, start: int, end: int, *, context: int) -> tuple[int, int]:
    """The start and end indices of the lines that hold text[start:end], plus context lines on both sides."""
    first = text.rfind("\n", 0, start) + 1
    for _ in range(context):
        if first == 0:
            break
        first = text.rfind("\n", 0, first - 1) + 1
    last = end
    for _ in range(context + 1):
        line_end = text.find("\n", last)
        if line_end < 0:
            return first, len(text)
        last = line_end + 1
    return first, last


def end_near(text: str, index: int) -> str:
    """The line end at text[index]: that of its line, else that of the line before, else LF."""
    position = text.find("\n", index)
    if position < 0:
        position = text.rfind("\n", 0, index)
    return "\r\n" if position > 0 and text[position - 1] == "\r" else "\n"


def with_ends_of(old: str, new: str, *, end: str) -> str:
    """Give new the line ends of old: equal lines keep theirs, a replaced line passes on its own.

    Args:
        old: text of the file, its ends LF or CRLF.
        new: the replacement; its line ends are ignored.
        end: the line end if old contains none.
    """
    ends = _END.findall(old)
    was, new_ends = _END.split(old), _END.split(new)
    if len({*ends}) < 2:  # noqa: PLR2004 - one kind of line end
        return (ends[0] if ends else end).join(new_ends)
    most = min(len(was), len(new_ends))
    head = next((k for k in range(most) if was[k] != new_ends[k]), most)
    tail = next((k for k in range(most - head) if was[-1 - k] != new_ends[-1 - k]), most - head)
    sources = [*range(head)]  # the line of old whose end each line of new takes
    middle = was[head : len(was) - tail], new_ends[head : len(new_ends) - tail]
    if max(map(len, middle)) <= MAX_DIFF_LINES:
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
            last = i2 if tag == "equal" else max(i1, i2 - 1)
            sources += [head + min(i1 + k, last) for k in range(j2 - j1)]
    else:
        sources += range(head, len(new_ends) - tail)
    sources += range(len(was) - tail, len(was))
    return "".join(
        [
            *(line + ends[min(index, len(ends) - 1)] for line, index in zip(new_ends[:-1], sources, strict=False)),
            new_ends[-1],
        ]
    )


# --- the report of an edit --------------------------------------------------------------------


class Edited(NamedTuple):
    """Old and new text of a file: new[start:new_end] stands where old[start:old_end] stood."""

    old: str
    new: str
    start: int
    old_end: int
    new_end: int

    def windows(self, *, context: int) -> tuple[str, str, int]:
        """Old and new text of the changed lines with context lines around them, and the number of the first line."""
        first, old_last = around(self.old, self.start, self.old_end, context=context)
        _, new_last = around(self.new, self.start, self.new_end, context=context)
        return self.old[first:old_last], self.new[first:new_last], line_number_at(self.old, first)


def edit_observation(command: Command, path: str, done: str, edited: Edited) -> FileEditObservation:
    """The observation of an edit: the lines around it for the model, a diff for the user; done describes it."""
    was, new_window, first = edited.windows(context=CONTEXT_LINES)
    old_lines, new_lines = count_lines(edited.old), count_lines(edited.new)
    had = "" if old_lines == new_lines else f" (it had {old_lines})"
    lines = split_lines(new_window)
    changed = line_number_at(edited.new, edited.start) - first
    if changed < len(lines):
        column = edited.start - (edited.new.rfind("\n", 0, edited.start) + 1)
        lines[changed] = _window(lines[changed], column)
    snippet = f":\n{numbered(lines, first=first, limit_chars=_MAX_SNIPPET_CHARS)}" if lines else "."
    return FileEditObservation(
        command=command,
        path=path,
        text=f"{done.removesuffix('.')}. The file has {counted(new_lines, 'line')} now{had}{snippet}",
        old_lines=old_lines,
        new_lines=new_lines,
        first_line=line_number_at(edited.new, edited.start),
        diff=diff_of(was, new_window, first=first),
    )


def _window(line: str, column: int) -> str:
    """A long line's part around column."""
    if len(line) <= 2 * _MAX_WINDOW_CHARS:
        return line
    start, end = max(0, column - _MAX_WINDOW_CHARS), column + _MAX_WINDOW_CHARS
    prefix = f"[... {start} characters ...] " if start else ""
    after = f" [... {len(line) - end} characters ...]" if end < len(line) else ""
    return f"{prefix}{line[start:end]}{after}"


def diff_of(old: str, new: str, *, first: int) -> str:
    """Lines that begin with a blank, `-` or `+`, after one with the position; limited in number and to 200 columns."""
    was, new_lines = split_lines(old), split_lines(new)
    left_out = len(was) + len(new_lines) - MAX_DIFF_LINES
    if left_out <= 0:
        rows = [*difflib.unified_diff(was, new_lines, n=MAX_DIFF_LINES, lineterm="")][3:]
    else:
        rows = [*(f"-{line}" for line in was[:MAX_DIFF_LINES]), *(f"+{line}" for line in new_lines[:MAX_DIFF_LINES])]
    note = [f"@ {left_out} more lines"] if left_out > 0 else []
    return "\n".join([f"@ line {first}", *(row[:201] for row in rows[:MAX_DIFF_LINES]), *note])
