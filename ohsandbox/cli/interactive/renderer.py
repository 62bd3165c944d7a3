"""A region at the end of the terminal's own scrollback, with text printed above it: output and renderer."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.renderer import Renderer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prompt_toolkit.application import Application
    from prompt_toolkit.layout import Layout


class FrameOutput(Vt100_Output):
    """Writes a frame to the terminal in one piece, so that no half-drawn frame is visible."""

    is_region = False
    """True if the next erasure starts at the region's first row."""
    _held = False

    @property
    def responds_to_cpr(self) -> bool:
        """False: the cursor's position is never queried, since the region's height depends only on its content."""
        return False

    @contextlib.contextmanager
    def frame(self) -> Iterator[None]:
        """Send everything written in the block at its end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.flush()

    def erase_down(self) -> None:
        """Erase from the cursor to the end.

        A region of several rows is erased row by row: tmux takes the erasure of a whole screen for one that
        should stay in its history.
        """
        if not self.is_region:
            super().erase_down()
            return
        self.erase_end_of_line()
        self.cursor_down(1)
        super().erase_down()
        self.cursor_up(1)

    def cursor_backward(self, amount: int) -> None:
        """Move the cursor without a backspace, so that a backspace in the output is never ours."""
        if amount:
            self.write_raw(f"\x1b[{amount}D")

    def flush(self) -> None:
        """Send the buffered output; inside `frame` it waits."""
        if not self._held:
            super().flush()


class InlineRenderer(Renderer):
    """Draws the region, and prints text from `add` above it.

    No rows are left behind when the region shrinks, or when the terminal becomes narrower and wraps its rows
    (all known terminals do; xterm cuts them off).
    """

    output: FrameOutput

    def __init__(self, style: Any, output: FrameOutput) -> None:
        super().__init__(style, output)
        self._above: list[str] = []
        self._lock = threading.Lock()
        self._columns = 0
        self._cursor = (0, 0)
        self._folds = "XTERM_VERSION" not in os.environ
        self.keeps_height = False
        """True to keep the region's height until something is printed, so that the bottom line does not jump."""

    def add(self, text: str) -> None:
        """Print text, which may be coloured, above the region with the next frame; callable from any thread."""
        with self._lock:
            self._above.append(text)

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:  # noqa: FBT001, FBT002 - as there
        """Draw a frame."""
        size = self.output.get_size()
        with self.output.frame():
            if self._above or size.columns != self._columns or self._is_lower(layout, size.columns, size.rows):
                self.erase()
            super().render(app, layout, is_done)
        self._columns = size.columns
        if (screen := self.last_rendered_screen) is not None:
            position = screen.get_cursor_position(layout.current_window)
            self._cursor = position.x, position.y

    def erase(self, leave_alternate_screen: bool = True) -> None:  # noqa: FBT001, FBT002 - as there
        """Remove the region, and print the text from `add`."""
        with self._lock:
            above, self._above = "".join(self._above), []
        with self.output.frame():
            if self.last_rendered_screen is not None:
                self.output.cursor_up(self._folded_rows())
                self.output.is_region = True
                super().erase(leave_alternate_screen)
                self.output.is_region = False
            if above:
                self.output.write_raw(above if above.endswith("\n") else above + "\n")
                self.output.reset_attributes()

    def _is_lower(self, layout: Layout, columns: int, rows: int) -> bool:
        screen = self.last_rendered_screen
        if screen is None or self.keeps_height:
            return False
        return layout.container.preferred_height(columns, rows).preferred < screen.height

    def _folded_rows(self) -> int:
        """Return how many rows the terminal made, by wrapping, of those above the cursor since they were drawn."""
        screen, columns = self.last_rendered_screen, max(self.output.get_size().columns, 1)
        if screen is None or not self._folds or columns >= self._columns:
            return 0
        x, y = self._cursor
        widths = [max((at for at, char in screen.data_buffer[row].items() if char.char.strip()), default=0)
                  for row in range(y)]  # fmt: skip
        return sum(width // columns for width in widths) + x // columns


class AboveStream(io.TextIOBase):
    """A standard stream whose lines are printed above the region."""

    encoding = "utf-8"

    def __init__(self, print_above: Callable[[str], None], is_drawn: Callable[[], bool], stream: TextIO) -> None:
        self._print, self._is_drawn, self._stream = print_above, is_drawn, stream
        self._part = ""

    def write(self, text: str) -> int:
        """Print the complete lines of text."""
        complete_lines, end, self._part = (self._part + text).rpartition("\n")
        if end:
            self._print(complete_lines + end)
        return len(text)

    def flush(self) -> None:
        """Print an unfinished line, such as a question, but only while the region is not drawn."""
        if self._part and not self._is_drawn():
            self._print(self._part)
            self._part = ""

    def isatty(self) -> bool:
        """Return True: the stream ends at a terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal's descriptor."""
        return self._stream.fileno()


def reported_size() -> Size:
    """Return the size that the terminal reports, ignoring environment variables."""
    with contextlib.suppress(OSError):  # it has gone
        columns, rows = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
        if columns and rows:
            return Size(rows=rows, columns=columns)
    return Size(rows=24, columns=80)
