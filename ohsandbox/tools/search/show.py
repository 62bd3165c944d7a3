"""Formats names, lines and numbers for the model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.text import counted
from ohsandbox.tools.search.lines import MAX_LINE_CHARS

if TYPE_CHECKING:
    from ohsandbox.content import OutputLimits
    from ohsandbox.tools.search.lines import FileLines, Line
    from ohsandbox.tools.search.walk import Listing

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\udc80-\udcff]")
_BINARY = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that text does not contain; NUL arrives as \\x01."""


def shown_path(path: str) -> str:
    """Return the path; with controls or bytes that are not UTF-8, a `$'...'` word that bash reads as the path."""
    if not _UNPRINTABLE.search(path):
        return path
    quoted = path.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_UNPRINTABLE.sub(_escaped, quoted)}'"


def _escaped(match: re.Match[str]) -> str:
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(match[0])
    return short or "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape"))


def shown_file(file: FileLines, *, only_count: bool = False) -> list[str]:
    """Return the path, then `12: a line that matches`, `13- one beside it`, and `--` where lines are omitted.

    Return one line with the number of matches if only_count is set, or if a matching line contains binary data.
    """
    name = shown_path(file.path)
    if only_count:
        return [f"{name}: {file.total}"]
    if is_binary(file):
        return [f"{name}: binary file, {counted(file.total, 'matching line')} not shown"]
    lines = [name]
    has_context = not all(line.matches for line in file.lines)
    for previous, line in zip([None, *file.lines], file.lines, strict=False):
        if has_context and previous and line.number > previous.number + 1:
            lines.append("--")
        lines.append(f"{line.number}{':' if line.matches else '-'} {_text(line)}")
    return lines


def is_binary(file: FileLines) -> bool:
    """Whether a matching line contains characters that text does not."""
    return any(_BINARY.search(line.text) for line in file.lines if line.matches)


def plain_text(line: Line) -> str:
    """The line as it is, without a carriage return at its end and a byte order mark; undecodable bytes as U+FFFD."""
    text = line.text.removesuffix("\r").removeprefix("\ufeff")
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text(line: Line) -> str:
    text = plain_text(line).replace("\x1b", "\\x1b")
    text = text.replace("\b", "\\b").replace("\r", "\\r")
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]} [... line cut]"


def fitting(lines: list[str], limits: OutputLimits) -> list[str]:
    """Return as many of the first lines as fit in max_chars, each with its newline."""
    room = limits.max_chars
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return lines[:number]
    return lines


def left_out(*, hidden: bool, ignored: bool) -> str:
    """Name the files that a search without results did not visit."""
    kinds = [] if hidden else ["hidden files (`hidden`: true)"]
    kinds += [] if ignored else ["files that .gitignore excludes (`ignored`: true)"]
    return f" Not looked at: {', '.join(kinds)}." if kinds else ""


def warnings(listing: Listing, limit_s: float) -> list[str]:
    """Return reasons why the answer may be incomplete, one per line."""
    reasons = []
    if listing.stopped:
        reasons.append(f"[Stopped after {limit_s:g} s: this is what was found until then. Search a smaller `path`.]")
    if listing.unreadable:
        reasons.append("[Some directories or files may not be read by this user, and were passed over.]")
    return reasons
