"""`RichView`: a conversation in a terminal, in colours."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.control import Control
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import ControlType
from rich.text import Text

from ohsandbox.cli.rendering.events import Block, CallBlock, Form, MessageBlock, NoteBlock, ResultBlock
from ohsandbox.cli.rendering.markdown import StreamedMarkdown
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import current_masker, cut, safe, safe_line, words
from ohsandbox.cli.rendering.view import MODEL_WORKS, View
from ohsandbox.review_text import on_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

MAX_COMMAND_LINES = 12
"""A heredoc is shown by its beginning; the log has it whole."""
MAX_OUTPUT_LINES = 15
"""The end of an output, where failures stand."""
MAX_LINE_CHARS = 400
"""About five rows; a minified file is not for reading."""
MAX_STATUS_CHARS = 60
STATUS_MARGIN = 4
"""The spinner, its blank, and the last column, which some terminals fold."""
_GUTTER = (0, 0, 0, 2)
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
        self._line = line or StatusLine(self.console, enabled=Form.STORED not in forms)
        self._answer: StreamedMarkdown | None = None

    def status(self, text: str) -> None:
        """At the bottom, with a spinner."""
        self._line.set(safe_line(text))

    def tick(self) -> None:
        """Turn the spinner."""
        self._line.draw()

    def text(self, text: Text) -> None:
        """In its colours."""
        self._print(text)

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
        self._line.set(_end_of(text, self.console.width - STATUS_MARGIN) or MODEL_WORKS)

    def show(self, event: SDKEvent) -> None:
        """Its blocks."""
        if event.type in _ENDS_ANSWER:
            self._answer = None
        elif event.type == "tool_result":
            self.status(MODEL_WORKS)
        super().show(event)

    def show_block(self, block: Block) -> None:
        """Print it above the line at the bottom."""
        match block:
            case MessageBlock("user", raw):
                self._print(_block(">", safe(raw), "bold"))
            case MessageBlock(kind, raw):
                rest = self._rest_of(raw)
                if kind == "answer" or rest != raw:
                    self._print_markdown(rest)
                elif raw.strip():
                    self._print(_block("\n●", safe(raw).strip(), ""))
            case CallBlock():
                self._rest_of("")  # an answer without a thought has ended as well
                self._print(markdown(block.text) if block.is_answer else _command(block))
                self._line.set("" if block.is_answer else cut(on_one_line(block.text), MAX_STATUS_CHARS))
            case ResultBlock():
                self._print(_output(block))
            case NoteBlock(text=text) if block.is_warning:
                self._print(Text(f"! {text}", style="yellow"))
            case NoteBlock(kind, text):
                self._print(Text(f"  {text}" if kind == "allowed" else text, style="dim"))

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

    def _print(self, what: RenderableType) -> None:
        self._line.clear()
        self.console.print(what, soft_wrap=isinstance(what, Text))  # a path that is wrapped cannot be copied
        self._line.draw()


def _block(sign: str, text: str, style: str) -> RenderableType:
    lines = Text(f"{sign} ", style=f"bold cyan {style}".strip())
    return lines.append(text.replace("\n", "\n  "), style=style or "default")


def _command(call: CallBlock) -> RenderableType:
    shown = call.text.split("\n")
    kept = [_cut(line) for line in shown[:MAX_COMMAND_LINES]]
    if len(shown) > len(kept):
        kept.append(f"… {len(shown) - len(kept)} more lines")
    text = Text(f"{call.sign} ", style="bold green" if call.sign in "$>" else "bold blue")
    return text.append("\n  ".join(kept), style="dim" if call.sign == "*" else "bold")


def _output(result: ResultBlock) -> RenderableType:
    lines = [line.rstrip() for line in result.text.strip("\n").splitlines()]
    body = Text(style="dim" if result.ok else "")
    if len(lines) > MAX_OUTPUT_LINES:
        body.append(f"… {len(lines) - MAX_OUTPUT_LINES} lines above\n", style="italic")
    body.append("\n".join(_cut(line) for line in lines[-MAX_OUTPUT_LINES:]))
    sign, style = ("✓", "green") if result.ok else ("✗", "red")
    footer = Text(f"{sign} {' · '.join(result.summary)}", style=style)
    return Padding(Group(body, footer) if lines else footer, _GUTTER)


def markdown(text: str) -> RenderableType:
    """Markdown, as models write it. No hyperlinks: they are operating system commands to a terminal."""
    return Padding(Markdown(text, hyperlinks=False), (1, 0, 1, 0))


def _end_of(text: str, columns: int) -> str:
    """The last words of text, on a line at most columns wide."""
    line = words(text, limit_chars=sys.maxsize)
    while line and cell_len(line) > max(columns, 1):
        line = line[max(1, (cell_len(line) - columns) // 2) :]
    return line


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line)} characters)"


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
QUIET_S = 1.0
"""What takes no longer needs no seconds counted."""


class BottomLine(Protocol):
    """Where a view says what is going on."""

    def set(self, text: str) -> None:
        """Show text from now on; an empty one for nothing."""

    def draw(self) -> None:
        """Show it as it stands now."""

    def clear(self) -> None:
        """Make room for what is printed next."""


class StatusLine:
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

    def draw(self) -> None:
        """Show the line as it stands now."""
        if not (self._text and self._enabled):
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        elapsed_s = time.monotonic() - self._since
        timer = f" {elapsed_s:.0f} s" if elapsed_s >= QUIET_S else ""
        line = f"{FRAMES[self._frame]} {self._text}{timer}"
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
