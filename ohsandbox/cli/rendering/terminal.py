"""`RichView`: a conversation in a terminal, in colours."""

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
from ohsandbox.cli.rendering.text import MAX_LINE_CHARS, current_masker, cut, output, safe, safe_line, size, words
from ohsandbox.cli.rendering.view import MAX_STATUS_CHARS, MODEL_WORKS, View, save_image
from ohsandbox.review_text import on_one_line

if TYPE_CHECKING:
    from datetime import date, datetime

    from rich.console import Console, RenderableType

    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

_MAX_FOLDED = 100
"""So many folded blocks can be unfolded."""
_STATUS_MARGIN = 4
"""The spinner, its blank, and the last column, which some terminals fold."""
_ENDS_ANSWER = frozenset({"user_message", "status_update", "condensation"})
"""Events before which an answer that was being written has ended, or was cut off and has no event."""


class RichView(View):
    """Blocks with a sign in the margin: what the agent said, did and saw."""

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
        """The last row that was printed is blank: none is needed above the next block."""
        self._running = ""
        """The call that is on, in a few words."""
        self._is_stored = Form.STORED in forms
        self._told_on: date | None = None
        """The day of the event that was shown last, of a stored conversation."""
        self._stamp: datetime | None = None
        """The time of the event of a stored conversation that is being shown, until it is told."""
        self.unfolds_by = ""
        """How a person sees all of what was folded, as `Ctrl-O shows all`."""
        self.folded: deque[CallBlock | ResultBlock] = deque(maxlen=_MAX_FOLDED)
        """The newest blocks that were not shown whole."""

    def unfold(self) -> bool:
        """Print the newest block that was folded, whole; False where there is none. Again for the one before it."""
        if not self.folded:
            return False
        block = self.folded.pop()
        if isinstance(block, CallBlock):
            self._print(renderables.command(block, self._glyphs, is_whole=True))
        else:
            self._print(renderables.result(block, self._glyphs, is_whole=True))
        return True

    def status(self, text: str) -> None:
        """At the bottom, with a spinner."""
        self._line.set(safe_line(text))

    def tick(self) -> None:
        """Turn the spinner."""
        self._line.draw()

    def text(self, text: Text) -> None:
        """In its colours; one that is to be copied as it is, as a patch, says `no_wrap`."""
        self._print(text, wraps=not text.no_wrap)

    def stream(self, event: LLMEvent) -> None:
        """Blocks of an answer as soon as they are whole; what is being written runs through the line at the bottom."""
        if event.type == "delta":
            if self._answer is None:
                self._answer = StreamedMarkdown(current_masker())
            for block in self._answer.feed(event.text):
                self._print_markdown(block)
            self.show_tail(self._answer.tail)
        elif event.type == "retry" and self._answer is not None and self._answer.void():
            self.info("The answer broke off here, and begins again:")

    def show_tail(self, text: str) -> None:
        """Show the block of an answer that is being written; an empty text for none."""
        self._line.set(_end_of(text, self.console.width - _STATUS_MARGIN) or MODEL_WORKS)

    def output(self, event: OutputEvent) -> None:
        """The last line of what runs, in the line at the bottom."""
        last = output(event.text).rstrip().rpartition("\n")[2].strip()
        if last:
            self._line.update(cut(f"{self._running} {self._glyphs.more} {last}".lstrip(), MAX_LINE_CHARS))

    def show(self, event: SDKEvent) -> None:
        """Its blocks."""
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
        """Print it above the line at the bottom."""
        match block:
            case MessageBlock("user", raw):
                self._print(_said(">", safe(raw), "bold", above=1))
            case MessageBlock(kind, raw):
                rest = self._rest_of(raw)
                if kind == "answer" or rest != raw:
                    self._print_markdown(rest)
                elif raw.strip():
                    self._print(_said(self._glyphs.said, safe(raw).strip(), above=1))
            case CallBlock():
                self._rest_of("")  # an answer without a thought has ended as well
                self._print(markdown(block.text) if block.is_answer else renderables.command(block, self._glyphs))
                self._keep(block)
                self._running = "" if block.is_answer else cut(on_one_line(block.text), MAX_STATUS_CHARS)
                self._line.set(self._running)
            case ResultBlock():
                images = [self._saved(url) for url in block.images]
                self._print(renderables.result(block, self._glyphs, images=images, hint=self.unfolds_by))
                self._keep(block)
            case NoteBlock(text=text) if block.is_warning:
                self._print(_said("!", text, "yellow", sign_style="bold yellow"))
            case NoteBlock(kind, text):
                self._print(Text(f"  {text}" if kind == "allowed" else text, style="dim"), wraps=True)

    def _keep(self, block: CallBlock | ResultBlock) -> None:
        if renderables.is_folded(block):
            self.folded.append(block)

    def _saved(self, url: str) -> str:
        """A line about an image of a result, with the file that it is in from now on."""
        if self.images_dir is None or (saved := save_image(url, self.images_dir)) is None:
            return "(an image)"
        return f"image, {size(saved.stat().st_size)}: {safe_line(saved, limit_chars=MAX_LINE_CHARS)}"

    def _rest_of(self, text: str) -> str:
        """What of an answer's text has not been shown while it was written."""
        if self._answer is None:
            return text
        self.show_tail("")
        rest = self._answer.end(text)
        self._answer = None
        return rest

    def _print_markdown(self, text: str) -> None:
        if text.strip():
            self._print(markdown(safe(text)))

    def _stamped(self, what: RenderableType) -> RenderableType:
        """It beside the time of its event, once for each; a blank line above it stays above both."""
        at, self._stamp = self._stamp, None
        if at is not None and self._told_on != at.date():
            self._told_on = at.date()
            self.console.print(Text(f"{at:%A, %Y-%m-%d}", style="dim"))
        above = what.above if isinstance(what, Rows) else 0
        if isinstance(what, Rows):
            what.above = 0
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=len("00:00:00"), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text("" if at is None else f"{at:%H:%M:%S}", style="dim"), what)
        return Rows(grid, above=above)

    def _print(self, what: RenderableType, *, wraps: bool = False) -> None:
        """Print it; a Text, such as a command, as it is, so that it can be copied, or with breaks between words."""
        self._line.clear()
        if isinstance(what, Rows) and self._ends_blank:
            what.above = 0
        self._ends_blank = isinstance(what, Rows) and what.below > 0
        if self._is_stored:
            what = self._stamped(what)
        if isinstance(what, Text) and wraps:
            print_wrapped(self.console, what)
        else:
            self.console.print(what, soft_wrap=isinstance(what, Text))
        self._line.draw()


def _said(sign: str, text: str, style: str = "", *, sign_style: str = "bold cyan", above: int = 0) -> RenderableType:
    """Words behind a sign; a row ends between two of them."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text(sign, style=sign_style), Text(text, style=style, overflow="fold"))
    return Rows(grid, above=above)


def markdown(text: str) -> RenderableType:
    """Markdown, as models write it, with a blank line around it."""
    return Rows(AnswerMarkdown(text), above=1, below=1)


def _end_of(text: str, columns: int) -> str:
    """The last words of text, on a line at most columns wide."""
    line = words(text, limit_chars=sys.maxsize)
    while line and cell_len(line) > max(columns, 1):
        line = line[max(1, (cell_len(line) - columns) // 2) :]
    return line


FRAMES, ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
QUIET_S = 1.0
"""What takes no longer needs no seconds counted."""


class BottomLine(Protocol):
    """Where a view says what is going on."""

    def set(self, text: str) -> None:
        """Show text from now on; an empty one for nothing."""

    def update(self, text: str) -> None:
        """Show text in the place of the last one, which goes on."""

    def draw(self) -> None:
        """Show it as it stands now."""

    def clear(self) -> None:
        """Make room for what is printed next."""


class _StatusLine:
    """A line that is rewritten in place with a carriage return and colours, and no other control.

    That makes it possible to hold, and to test, that a terminal receives no escape but ours.
    """

    def __init__(self, console: Console, *, enabled: bool = True) -> None:
        self.console = console
        self._enabled = enabled and console.is_terminal and not console.is_dumb_terminal
        self._text, self._since = "", 0.0
        self._frame = self._cells = 0

    def set(self, text: str) -> None:
        """Show text from now on; an empty one removes the line."""
        self.clear()
        self._text, self._since = text, time.monotonic()
        self.draw()

    def update(self, text: str) -> None:
        """Show text in the place of the last one, whose time runs on."""
        self.clear()
        self._text = text
        self.draw()

    def draw(self) -> None:
        """Show the line as it stands now."""
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
        """Leave an empty line, with the cursor at its beginning."""
        if self._cells:
            self._write(" " * self._cells)
            self._cells = 0

    def _write(self, line: str) -> None:
        self.console.print(Text(line, style="dim"), end="", soft_wrap=True)
        self.console.control(Control(ControlType.CARRIAGE_RETURN))
