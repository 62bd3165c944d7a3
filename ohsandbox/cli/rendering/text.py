"""Foreign text made safe to print: nothing that a model or a sandbox wrote reaches a terminal in another way.

`safe`, `safe_line` and `words` delete nothing, they spell out; `output` is for what a program printed. In all of them
the values of secrets are masked.
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
"""Of a line of ours that names a path, which is at most 4096 bytes."""
_maskers = [Masker()]
"""Of this process, which is one command: it knows what must not be printed also after a run has failed."""


def hide(masker: Masker) -> None:
    """Mask what is printed and logged from now on."""
    _maskers[:] = [masker]
    if logging.lastResort is not None:
        for old in [*logging.lastResort.filters]:
            logging.lastResort.removeFilter(old)
        logging.lastResort.addFilter(MaskingFilter(masker))


def current_masker() -> Masker:
    """What must not be printed now."""
    return _maskers[0]


def masked(text: str) -> str:
    """The text as it may be printed."""
    return current_masker().mask_cut(text)


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
    from ohsandbox.runtime.shell.terminal import sanitize_for_terminal  # noqa: PLC0415 - an error line does without

    return masked(sanitize_for_terminal(str(text))).expandtabs(TAB_COLUMNS)


class Lines:
    """Output that comes in pieces, given to tell line by line, as it came."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._held = ""

    def add(self, text: str) -> None:
        """Tell each line that is whole now."""
        *whole, self._held = (self._held + text).split("\n")
        for line in whole:
            self._tell(line)

    def finish(self) -> None:
        """Tell what has no end of line."""
        if self._held:
            self._tell(self._held)


def say(text: object) -> None:
    """A line of ours on stderr, of text that is not made safe yet; that nobody reads it is not an error."""
    with contextlib.suppress(OSError):
        print(f"ohsandbox: {safe_line(text, limit_chars=MAX_LINE_CHARS)}", file=sys.stderr, flush=True)  # noqa: T201


def cut(line: str, limit_chars: int) -> str:
    """The line, or its beginning and an ellipsis."""
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"


def age(when: datetime) -> str:
    """The time since then, in the largest unit that fits."""
    seconds = max(0, int((datetime.now(UTC) - when).total_seconds()))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    return next((f"{seconds // length} {unit}" for unit, length in units if seconds >= length), "0 s")


def size(count: int) -> str:
    """Bytes in SI units."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:  # noqa: PLR2004 - SI
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def progress_text(progress: PullProgress) -> str:
    """The progress of a pull or a build on one line."""
    if progress.status == "building":
        step = f"step {progress.layers_done} of {progress.layers_total}: " if progress.layers_total else ""
        return f"{progress.image}: building, {step}{progress.detail}"
    if progress.status == "starting":
        return f"{progress.image}: {progress.detail}"
    if progress.status == "waiting":
        return f"{progress.image}: waits for another pull or build of it"
    done = f" {size(progress.done_bytes)} of {size(progress.total_bytes)}" if progress.total_bytes else ""
    layers = f", {progress.layers_done} of {progress.layers_total} layers" if progress.layers_total else ""
    return f"{progress.image}: {progress.status}{done}{layers}"
