"""Lines: numbering, limiting the output, and preserving line ends.

A line ends at a line feed and nowhere else, as for `sed -n 2,3p`; a carriage return before it belongs to its end.
"""

from __future__ import annotations

import re

from ohsandbox.tool import output

MAX_VIEW_CHARS = output.MAX_CHARS

MAX_LINE_CHARS = 2_000
"""The shown part of a long line if not everything fits."""

_END = re.compile("\r?\n")


def split_lines(text: str) -> list[str]:
    """The lines without their ends; non-empty text after the last line feed is a line."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def count_lines(text: str) -> int:
    """Number of lines; the last one may lack its line feed."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def numbered(lines: list[str], *, first: int, last: int | None = None, limit_chars: int = MAX_VIEW_CHARS) -> str:
    """Lines with numbers from first, as `cat -n`; over the limit, whole lines from the start and a note on the rest.

    Args:
        lines: without ends; a carriage return at the end is not shown.
        first: the number of the first one.
        last: the number of the last requested line, if lines holds only as many as can be needed.
        limit_chars: about as many are returned.
    """
    last = first + len(lines) - 1 if last is None else last
    is_long = sum(map(len, lines[:limit_chars])) + 7 * len(lines) > limit_chars
    out: list[str] = []
    room = limit_chars
    for number, line in enumerate(lines, first):
        row = f"{number:6}\t{_clip(line.removesuffix(chr(13)), number, is_long=is_long)}"
        room -= len(row) + 1
        if room < 0 and out:
            out.append(f"[... lines {number}-{last} left out here: view_range [{number}, {last}] shows them ...]")
            break
        out.append(row)
    return "\n".join(out)


def _clip(line: str, number: int, *, is_long: bool) -> str:
    if not is_long or len(line) <= MAX_LINE_CHARS:
        return line
    return (
        f"{line[:MAX_LINE_CHARS]} [... {len(line) - MAX_LINE_CHARS} of the {len(line)} characters of line {number} "
        f"left out: sed -n {number}p FILE | cut -c {MAX_LINE_CHARS + 1}-{2 * MAX_LINE_CHARS} in execute_bash]"
    )


def line_of(text: str, index: int) -> int:
    """The number of the line that contains text[index]."""
    return text.count("\n", 0, index) + 1


def line_start(text: str, number: int) -> int:
    """The start index of the line; the end of the text for the line after the last."""
    at = 0
    for _ in range(number - 1):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


def around(text: str, start: int, end: int, *, context: int) -> tuple[int, int]:
    """The start and end indices of the lines that hold text[start:end], plus context lines on both sides."""
    first = text.rfind("\n", 0, start) + 1
    for _ in range(context):
        if first == 0:
            break
        first = text.rfind("\n", 0, first - 1) + 1
    last = end
    for _ in range(context + 1):
        found = text.find("\n", last)
        if found < 0:
            return first, len(text)
        last = found + 1
    return first, last


def end_near(text: str, index: int) -> str:
    """The line end at text[index]: that of its line, else that of the line before, else LF."""
    at = text.find("\n", index)
    if at < 0:
        at = text.rfind("\n", 0, index)
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def with_ends_of(old: str, new: str, *, end: str) -> str:
    """Give new the line ends of old: equal lines keep theirs, a replaced line passes on its own.

    Args:
        old: text of the file, its ends LF or CRLF.
        new: the replacement; its line ends are ignored.
        end: the line end if old contains none.
    """
    ends = _END.findall(old)
    was, now = _END.split(old), _END.split(new)
    most = min(len(was), len(now))
    head = next((k for k in range(most) if was[k] != now[k]), most)
    tail = next((k for k in range(most - head) if was[-1 - k] != now[-1 - k]), most - head)
    parts = []
    for at, line in enumerate(now[:-1]):
        source = at if at < len(now) - tail else at + len(was) - len(now)
        parts += [line, ends[min(source, len(ends) - 1)] if ends else end]
    return "".join([*parts, now[-1]])
