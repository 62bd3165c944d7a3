"""`RichView`: a conversation at a terminal, in colours."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len, set_cell_size
from rich.control import Control
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from ohsandbox.cli.rendering import renderables
from ohsandbox.cli.rendering.events import Block, CallBlock, Form, MessageBlock, NoteBlock, ResultBlock
from ohsandbox.cli.rendering.markdown import StreamedMarkdown
from ohsandbox.cli.rendering.renderables import AnswerMarkdown, Glyphs, Rows
from ohsandbox.cli.rendering.tables import open_console, print_wrapped
from ohsandbox.cli.rendering.text import (
    MAX_LINE_CHARS,
    current_masker,
    joined_lines,
    output,
    prose_line,
    safe,
    safe_line,
    size,
    truncated,
)
from ohsandbox.cli.rendering.view import MAX_STATUS_CHARS, MODEL_WORKS, View, save_image

if TYPE_CHECKING:
    from datetime import date, datetime

    from rich.console import Console, RenderableType

    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

_MAX_FOLDED = 100
"""Number of folded blocks that can still be unfolded."""
_STATUS_MARGIN = 4
"""Columns kept free: the spinner, its blank, and the last column, where some terminals wrap."""
_ENDS_ANSWER = frozenset({"user_message", "status_update", "condensation"})
"""Events that mark the end of a streamed answer, also of one that was cut off and has no event."""


class RichView(View):
    """Shows blocks with a sign in the margin: the agent's messages, calls and results."""

    wants_stream = True

    def __init__(
        self, console: Console | None = None, *, forms: Form = Form.TERMINAL, line: BottomLine | None = None
    ) -> None:
        super().__init__(forms)
        self.console = console or open_console()
        self._line = line or _StatusLine(self.console, enabled=Form.STORED not in forms)
        self._answer: StreamedMarkdown | None = None
        self._glyphs = Glyphs.of(self.console)
        self._ends_blank = False
        """True if the last printed row is blank, so that the next block needs no blank line."""
        self._running = ""
        """The running call, in a few words."""
        self._is_stored = Form.STORED in forms
        self._told_on: date | None = None
        """The day of the last event shown, for a stored conversation."""
        self._stamp: datetime | None = None
        """The time of the stored event that is being shown, until it is printed."""
        self.unfolds_by = ""
        """How a person can see folded blocks, as in `Ctrl-O shows all`."""
        self.folded: deque[CallBlock | ResultBlock] = deque(maxlen=_MAX_FOLDED)
        """The newest folded blocks."""

    def unfold(self) -> bool:
        """Print the newest folded block whole, then remove it from the list; return False if there is none."""
        if not self.folded:
            return False
        block = self.folded.pop()
        if isinstance(block, CallBlock):
            self._print(renderables.command(block, self._glyphs, is_whole=True))
        else:
            self._print(renderables.result(block, self._glyphs, is_whole=True))
        return True

    def status(self, text: str) -> None:
        """Show the status at the bottom, with a spinner."""
        self._line.set(safe_line(text))

    def tick(self) -> None:
        """Turn the spinner."""
        self._line.draw()

    def text(self, text: Text) -> None:
        """Print coloured text; text to be copied unchanged, such as a patch, sets `no_wrap`."""
        self._print(text, wraps=not text.no_wrap)

    def stream(self, event: LLMEvent) -> None:
        """Print complete blocks of an answer; the unfinished end is shown in the bottom line."""
        if event.type == "delta":
            if self._answer is None:
                self._answer = StreamedMarkdown(current_masker())
            for block in self._answer.feed(event.text):
                self._print_markdown(block)
            self.show_tail(self._answer.tail)
        elif event.type == "retry" and self._answer is not None and self._answer.discard():
            self.info("The answer broke off here, and begins again:")

    def show_tail(self, text: str) -> None:
        """Show the unfinished block of an answer; an empty text clears it."""
        self._line.set(_end_of(text, self.console.width - _STATUS_MARGIN) or MODEL_WORKS)

    def output(self, event: OutputEvent) -> None:
        """Show the last line of a running call's output in the bottom line."""
        last = output(event.text).rstrip().rpartition("\n")[2].strip()
        if last:
            self._line.update(truncated(f"{self._running} {self._glyphs.more} {last}".lstrip(), MAX_LINE_CHARS))

    def show(self, event: SDKEvent) -> None:
        """Print the event's blocks."""
        if event.type in _ENDS_ANSWER and self._answer is not None:
            self._answer = None
            self.show_tail("")
        elif event.type == "tool_result":
            self.status(MODEL_WORKS)
        if self._is_stored:
            self._stamp = event.ts.astimezone()
        super().show(event)
        self._stamp = None

    def show_block(self, block: Block) -> None:
        """Print a block above the bottom line."""
        match block:
            case MessageBlock("user", raw):
                self._print(_with_sign(">", safe(raw), "bold", above=1))
            case MessageBlock(kind, raw):
                unshown = self._rest_of(raw)
                if kind == "answer" or unshown != raw:
                    self._print_markdown(unshown)
                elif raw.strip():
                    self._print(_with_sign(self._glyphs.said, safe(raw).strip(), above=1))
            case CallBlock():
                self._rest_of("")  # an answer without a thought has ended as well
                self._print(
                    rendered_markdown(block.text) if block.is_answer else renderables.command(block, self._glyphs)
                )
                self._keep(block)
                self._running = "" if block.is_answer else joined_lines(block.text, limit_chars=MAX_STATUS_CHARS)
                self._line.set(self._running)
            case ResultBlock():
                images = [self._saved(url) for url in block.images]
                self._print(renderables.result(block, self._glyphs, images=images, hint=self.unfolds_by))
                self._keep(block)
            case NoteBlock(text=text) if block.is_warning:
                self._print(_with_sign("!", text, "yellow", sign_style="bold yellow"))
            case NoteBlock(kind, text):
                self._print(Text(f"  {text}" if kind == "allowed" else text, style="dim"), wraps=True)

    def _keep(self, block: CallBlock | ResultBlock) -> None:
        if renderables.is_folded(block):
            self.folded.append(block)

    def _saved(self, url: str) -> str:
        """Save an image of a result; return a line that names its file."""
        if self.images_dir is None or (saved := save_image(url, self.images_dir)) is None:
            return "(an image)"
        return f"image, {size(saved.stat().st_size)}: {safe_line(saved, limit_chars=MAX_LINE_CHARS)}"

    def _rest_of(self, text: str) -> str:
        """Return the part of an answer that was not shown while it was written."""
        if self._answer is None:
            return text
        self.show_tail("")
        unshown = self._answer.end(text)
        self._answer = None
        return unshown

    def _print_markdown(self, text: str) -> None:
        if text.strip():
            self._print(rendered_markdown(safe(text)))

    def _stamped(self, renderable: RenderableType) -> RenderableType:
        """Add the event's time, once per event; a blank line stays above both."""
        at, self._stamp = self._stamp, None
        if at is not None and self._told_on != at.date():
            self._told_on = at.date()
            self.console.print(Text(f"{at:%A, %Y-%m-%d}", style="dim"))
        above = renderable.above if isinstance(renderable, Rows) else 0
        if isinstance(renderable, Rows):
            renderable.above = 0
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=len("00:00:00"), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text("" if at is None else f"{at:%H:%M:%S}", style="dim"), renderable)
        return Rows(grid, above=above)

    def _print(self, renderable: RenderableType, *, wraps: bool = False) -> None:
        """Print what; a Text, such as a command, stays unchanged for copying unless wraps is set."""
        self._line.clear()
        if isinstance(renderable, Rows) and self._ends_blank:
            renderable.above = 0
        self._ends_blank = isinstance(renderable, Rows) and renderable.below > 0
        if self._is_stored:
            renderable = self._stamped(renderable)
        if isinstance(renderable, Text) and wraps:
            print_wrapped(self.console, renderable)
        else:
            self.console.print(renderable, soft_wrap=isinstance(renderable, Text))
        self._line.draw()


def _with_sign(
    sign: str, text: str, style: str = "", *, sign_style: str = "bold cyan", above: int = 0
) -> RenderableType:
    """Return text with a sign before it; rows break between words."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(sign, style=sign_style), Text(text, style=style, overflow="fold"))
    return Rows(grid, above=above)


def rendered_markdown(text: str) -> RenderableType:
    """Render Markdown as models write it, with a blank line around it."""
    return Rows(AnswerMarkdown(text), above=1, below=1)


def _end_of(text: str, columns: int) -> str:
    """Return the last words of text, at most columns wide."""
    line = prose_line(text, limit_chars=sys.maxsize)
    while line and cell_len(line) > max(columns, 1):
        line = line[max(1, (cell_len(line) - columns) // 2) :]
    return line


FRAMES, ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
QUIET_S = 1.0
"""Activities shorter than this many seconds show no duration."""


class BottomLine(Protocol):
    """Shows a view's current activity."""

    def set(self, text: str) -> None:
        """Show text from now on; an empty text clears the line."""

    def update(self, text: str) -> None:
        """Replace the text of the current activity."""

    def draw(self) -> None:
        """Redraw the line."""

    def clear(self) -> None:
        """Make room for the next output."""


class _StatusLine:
    """A line that is rewritten in place, using only a carriage return and colours.

    A test can therefore check that the terminal receives no other escape sequence.
    """

    def __init__(self, console: Console, *, enabled: bool = True) -> None:
        self.console = console
        self._enabled = enabled and console.is_terminal and not console.is_dumb_terminal
        self._text, self._since = "", 0.0
        self._frame = self._cells = 0

    def set(self, text: str) -> None:
        """Show text from now on; an empty text removes the line."""
        self.clear()
        self._text, self._since = text, time.monotonic()
        self.draw()

    def update(self, text: str) -> None:
        """Replace the text; the duration keeps counting."""
        self.clear()
        self._text = text
        self.draw()

    def draw(self) -> None:
        """Redraw the line."""
        if not (self._text and self._enabled):
            return
        frames = ASCII_FRAMES if self.console.options.ascii_only else FRAMES
        self._frame = (self._frame + 1) % len(frames)
        elapsed_s = time.monotonic() - self._since
        timer = f" {elapsed_s:.0f} s" if elapsed_s >= QUIET_S else ""
        line = f"{frames[self._frame]} {self._text}{timer}"
        width = max(1, self.console.width - 1)
        line = set_cell_size(line, min(width, cell_len(line)))
        self._write(set_cell_size(line, max(self._cells, cell_len(line))))
        self._cells = cell_len(line)

    def clear(self) -> None:
        """Clear the line, with the cursor at its beginning."""
        if self._cells:
            self._write(" " * self._cells)
            self._cells = 0

    def _write(self, line: str) -> None:
        self.console.print(Text(line, style="dim"), end="", soft_wrap=True)
        self.console.control(Control(ControlType.CARRIAGE_RETURN))
