"""One line at the bottom of a terminal that says what is going on, and how long already."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
QUIET_S = 1.0
"""What takes no longer needs no seconds counted."""


class StatusLine:
    """A line that is rewritten in place with a carriage return and colours, and no other control.

    That makes it possible to hold, and to test, that a terminal receives no escape but ours.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._since = 0.0
        self._frame = 0
        self._cells = 0

    def set(self, text: str) -> None:
        """Show text from now on; an empty one removes the line."""
        self.clear()
        self._text, self._since = text, time.monotonic()
        self.draw()

    def draw(self) -> None:
        """Show the line as it stands now."""
        if not (self._text and self._console.is_terminal) or self._console.is_dumb_terminal:
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        elapsed_s = time.monotonic() - self._since
        timer = f" {elapsed_s:.0f} s" if elapsed_s >= QUIET_S else ""
        line = f"{FRAMES[self._frame]} {self._text}{timer}"
        width = max(1, self._console.width - 1)
        line = set_cell_size(line, min(width, cell_len(line)))
        self._write(set_cell_size(line, max(self._cells, cell_len(line))))
        self._cells = cell_len(line)

    def clear(self) -> None:
        """Leave an empty line, with the cursor at its beginning."""
        if self._cells:
            self._write(" " * self._cells)
            self._cells = 0

    def _write(self, line: str) -> None:
        self._console.print(Text(line, style="dim"), end="", soft_wrap=True)
        self._console.control(Control(ControlType.CARRIAGE_RETURN))
