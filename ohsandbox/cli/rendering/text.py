"""Make foreign text safe to print: text of a model or sandbox reaches a terminal only through these functions.

`safe`, `safe_line` and `prose_line` spell out control characters; `output` is for a program's output. In all of them
secrets are masked.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ohsandbox.review_text import on_one_line, visible
from ohsandbox.secrets import Masker, MaskingFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.results import PullProgress

TAB_COLUMNS = 8
MAX_LINE_CHARS = 5000
"""Longest line of ours that names a path, which has at most 4096 bytes."""
LINE_SIGN = " ⏎ "
"""What stands for line breaks of a command that is shown on one line, where ` | ` is a pipe."""
_maskers = [Masker()]
"""The maskers of this process, which runs one command. They stay active after a run has failed."""


def hide(masker: Masker) -> None:
    """Mask the masker's secrets in everything printed and logged from now on."""
    _maskers[:] = [masker]
    if logging.lastResort is not None:
        for old in [*logging.lastResort.filters]:
            logging.lastResort.removeFilter(old)
        logging.lastResort.addFilter(MaskingFilter(masker))


def current_masker() -> Masker:
    """Return the masker in use."""
    return _maskers[0]


def masked(text: str) -> str:
    """Return the text with secrets masked."""
    return current_masker().mask_cut(text)


def safe(text: object) -> str:
    """Return foreign text safe to print, lines kept, with nothing deleted (see `review_text`); tabs become spaces."""
    return visible(masked(str(text))).expandtabs(TAB_COLUMNS)


def safe_line(text: object, *, limit_chars: int = 200) -> str:
    """Return foreign text on one line, newlines spelled out, cut to limit_chars: for names and cells."""
    return truncated(on_one_line(visible(masked(str(text)))), limit_chars)


def joined_lines(shown: str, *, limit_chars: int = 200) -> str:
    """Return the output of `safe` on one line, cut to limit_chars, a sign between its lines: for running commands.

    A question about a command shows its lines.
    """
    return truncated(LINE_SIGN.join(filter(None, map(str.strip, shown.split("\n")))), limit_chars)


def prose_line(text: object, *, limit_chars: int = 200) -> str:
    """Return prose on one line, cut to limit_chars, with single blanks between words."""
    return truncated(" ".join(visible(masked(str(text))).split()), limit_chars)


def output(text: object) -> str:
    """Return a program's output as its terminal would show it: newlines stay, tabs become spaces, escapes go."""
    from ohsandbox.runtime.shell.terminal import sanitize_for_terminal  # noqa: PLC0415 - an error line does without

    return masked(sanitize_for_terminal(str(text))).expandtabs(TAB_COLUMNS)


class Lines:
    """Collects output that comes in pieces, and calls tell with each line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._held = ""

    def add(self, text: str) -> None:
        """Add a piece; call tell with each complete line."""
        *complete_lines, self._held = (self._held + text).split("\n")
        for line in complete_lines:
            self._tell(line)

    def finish(self) -> None:
        """Call tell with the last, unterminated line."""
        if self._held:
            self._tell(self._held)


def say(text: object) -> None:
    """Print text, made safe, as a line on stderr. A closed stderr is ignored."""
    with contextlib.suppress(OSError):
        print(f"ohsandbox: {safe_line(text, limit_chars=MAX_LINE_CHARS)}", file=sys.stderr, flush=True)  # noqa: T201


def truncated(line: str, limit_chars: int) -> str:
    """Return the line, or its beginning and an ellipsis."""
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"


def age(when: datetime) -> str:
    """Return the time since then, in the largest unit that fits; "in 3 d" if it is to come: a clock was wrong."""
    seconds = int((datetime.now(UTC) - when).total_seconds())
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    amount = next((f"{abs(seconds) // length} {unit}" for unit, length in units if abs(seconds) >= length), "0 s")
    return f"in {amount}" if seconds < 0 else amount


def size(count: int) -> str:
    """Return a number of bytes in SI units."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def progress_text(progress: PullProgress) -> str:
    """Return the progress of a pull or a build on one line."""
    if progress.status == "building":
        step = f"step {progress.layers_done} of {progress.layers_total}: " if progress.layers_total else ""
        return f"{progress.image}: building, {step}{progress.detail}"
    if progress.status == "starting":
        return f"{progress.image}: {progress.detail}"
    if progress.status == "waiting":
        return f"{progress.image}: waits for another pull or build of it"
    bytes_text = f" {size(progress.done_bytes)} of {size(progress.total_bytes)}" if progress.total_bytes else ""
    layers = f", {progress.layers_done} of {progress.layers_total} layers" if progress.layers_total else ""
    return f"{progress.image}: {progress.status}{bytes_text}{layers}"
