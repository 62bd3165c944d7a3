"""The last line that a running call has printed, for a person who waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ohsandbox.runtime.shell.terminal import clean, sanitize_for_terminal, whole_prefix

if TYPE_CHECKING:
    from ohsandbox.secrets import Masker

MAX_LINE_CHARS = 200
"""A client shows progress on one line of a terminal or of a side bar."""

TAIL_BYTES = 4096
"""Of the output so much is looked at: twenty such lines, or one with colours."""


def last_line(tail: bytes, masker: Masker | None = None) -> str:
    """The last line with something on it of a growing stream's tail; what is unfinished in it waits."""
    if masker and len(tail) >= TAIL_BYTES:  # it may begin within a secret
        line_break = re.search(rb"[\r\n]", tail)
        tail = tail[line_break.end() :] if line_break else b""
    text = clean(tail[: whole_prefix(tail)])
    if masker:
        text = masker.before_gap(masker.mask(text))
    for line in reversed(sanitize_for_terminal(text).split("\n")):
        if words := " ".join(line.split()):
            return words if len(words) <= MAX_LINE_CHARS else f"{words[: MAX_LINE_CHARS - 1]}…"
    return ""
