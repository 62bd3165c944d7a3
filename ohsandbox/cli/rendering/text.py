"""Foreign text made safe to print: nothing that a model or a sandbox wrote reaches a terminal in another way.

`safe`, `safe_line` and `words` delete nothing, they spell out; `output` is for what a program printed.
"""

from __future__ import annotations

from ohsandbox.cli.rendering.masking import masked
from ohsandbox.review_text import on_one_line, visible
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal

TAB_COLUMNS = 8


def safe(text: object) -> str:
    """Foreign text that may be printed, on its lines, with nothing deleted: see `review_text`. Tabs are spaces."""
    return visible(masked(str(text))).expandtabs(TAB_COLUMNS)


def safe_line(text: object, *, limit_chars: int = 200) -> str:
    """Foreign text on one line, a newline spelt out, cut to limit_chars: a name in a list, a cell, a command."""
    return cut(on_one_line(visible(masked(str(text)))), limit_chars)


def words(text: object, *, limit_chars: int = 200) -> str:
    """Prose on one line, cut to limit_chars: between words one blank, whatever stood there."""
    return cut(" ".join(visible(masked(str(text))).split()), limit_chars)


def output(text: object) -> str:
    """What a program printed, as its terminal would show it: no escape or control but newlines, tabs as spaces."""
    return masked(sanitize_for_terminal(str(text))).expandtabs(TAB_COLUMNS)


def cut(line: str, limit_chars: int) -> str:
    """The line, or its beginning and an ellipsis."""
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"


def size(count: int) -> str:
    """Bytes as people say them."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
