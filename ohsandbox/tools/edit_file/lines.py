"""A text file as lines with their own line ends, and the diff of two files."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ohsandbox.errors import ToolError
from ohsandbox.tool import cut_middle

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT_LINES = 3
"""The default of `diff -u`."""

_STAND_IN = re.compile(
    r"(?:#|//|--|;|%|\"|<!--|/\*|\{#)?[\t ]{0,4}\.\.\.[\t ]{0,4}"
    r"(?:existing|unchanged|rest of|no changes?|same as|other|previous|remaining)\b[^\n]{0,80}",
    re.IGNORECASE,
)
"""A placeholder line such as `# ... existing code ...`: it represents other lines."""


def split_lines(text: str) -> list[str]:
    r"""Split into lines with their ends; only \n ends one, so that joining restores the text."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def without_end(line: str) -> str:
    r"""The line without \n or \r\n."""
    return line.removesuffix("\r\n") if line.endswith("\r\n") else line.removesuffix("\n")


def newline_of(lines: Sequence[str]) -> str:
    r"""\r\n if most lines end with it, else \n."""
    return "\r\n" if 2 * sum(line.endswith("\r\n") for line in lines) > len(lines) else "\n"


def with_newlines(text: str, newline: str) -> list[str]:
    """The text's lines, each ending with newline, including the last one."""
    return [f"{without_end(line)}{newline}" for line in split_lines(text)]


def stand_ins(text: str) -> list[str]:
    """The placeholder lines, stripped."""
    return [line.strip() for line in text.split("\n") if _STAND_IN.fullmatch(line.strip())]


def decode(data: bytes, *, path: str) -> str:
    """The text; a byte order mark stays its first character.

    Raises:
        ToolError: it is no UTF-8 text.
    """
    if b"\0" in data:
        raise ToolError(f"File {path!r} is binary ({len(data)} bytes). Change it with a program, by execute_bash.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolError(
            f"File {path!r} is not UTF-8 (byte {error.object[error.start]:#04x} at {error.start}). "
            "Convert it first, with iconv or a program."
        ) from None


def keep_ends(old: Sequence[str], new: Sequence[str], *, ends_file: bool) -> list[str]:
    """Return new with every unchanged line taken from old: a file of mixed line ends keeps each of them.

    ends_file says whether these are the file's last lines; it then ends with a newline if it did before.
    """
    newline = newline_of(old)
    plain_old, plain_new = [without_end(line) for line in old], [without_end(line) for line in new]
    kept = list(new)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, plain_old, plain_new, autojunk=False).get_opcodes():
        if tag == "equal":
            kept[j1:j2] = old[i1:i2]
    kept = [line if line.endswith("\n") else f"{line}{newline}" for line in kept]
    if ends_file and not old[-1].endswith("\n"):
        kept[-1] = without_end(kept[-1])
    return kept


def unified_diff(path: str, old: Sequence[str], new: Sequence[str], *, first_line: int, limit_chars: int) -> str:
    """The unified diff of a part of a file whose first line has that number, bounded."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    parts = [f"--- {path}", f"+++ {path}"]
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
        parts.append(f"@@ -{_span(first_line + i1, i2 - i1)} +{_span(first_line + j1, j2 - j1)} @@")
        for tag, a1, a2, b1, b2 in group:
            removed, added = ("", " ") if tag == "equal" else ("-", "+")
            parts += [_shown(removed, line) for line in old[a1:a2] if removed]
            parts += [_shown(added, line) for line in new[b1:b2]]
    return cut_middle("\n".join(parts), limit_chars=limit_chars)


def _span(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first if count else first - 1},{count}"


def _shown(sign: str, line: str) -> str:
    return f"{sign}{without_end(line)}" + ("" if line.endswith("\n") else "\n\\ No newline at end of file")
