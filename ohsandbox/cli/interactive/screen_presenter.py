"""A conversation on a `Screen`: finished blocks above the input, the text being written or printed below them."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group

from ohsandbox.cli.rendering.events import MessageBlock, ResultBlock
from ohsandbox.cli.rendering.renderables import INDENT, Rows, tail
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.terminal import RichView, rendered_markdown
from ohsandbox.cli.rendering.text import safe
from ohsandbox.cli.session.presenter import Presenter
from ohsandbox.cli.session.slash_commands import is_command
from ohsandbox.events import ConversationStatus, SDKEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ohsandbox.cli.interactive.attachments import OutgoingMessage
    from ohsandbox.cli.interactive.region import SentLine
    from ohsandbox.cli.interactive.screen import Screen
    from ohsandbox.cli.interactive.status_bar import StatusBar
    from ohsandbox.cli.rendering.events import Block
    from ohsandbox.conversation import Conversation
    from ohsandbox.conversation.live_output import OutputEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.network.audit import NetworkDecision

MAX_LIVE_ROWS = 8
"""Largest number of rows of a running call's output."""
_WAITS_FOR_MODEL = "waits for the model"
LONG_S = 15.0
"""After a run or wait of this many seconds the person may look elsewhere, so the bell rings."""
_PAINT_S = 0.15
"""Shortest time, in seconds, between two layouts of an answer that is being written."""


class ScreenView(RichView):
    """Prints blocks above the screen's input; the block that is being written is right above the status."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(open_console(), line=_ScreenLine(screen))
        self.unfolds_by = "Ctrl-O shows all"
        screen.unfold = self.unfold
        self._screen = screen
        self._tail = ""
        self._painted_at = 0.0

    def show_tail(self, text: str) -> None:
        """Lay out the text as Markdown, now or at the next tick."""
        self._tail = text
        if not text:
            self._screen.show_live("")
        elif time.monotonic() - self._painted_at >= _PAINT_S:
            self._paint()

    def output(self, event: OutputEvent) -> None:
        """Show the last lines of output above the status."""
        rows = Rows(Group(*tail(event.text, rows=MAX_LIVE_ROWS)), indent=INDENT)
        self._screen.show_live(_ansi(rows, self.console.width - 1))

    def show_block(self, block: Block) -> None:
        """Print a block. A call's live output is dropped, because the result holds it."""
        if isinstance(block, ResultBlock):
            self._screen.show_live("")
        super().show_block(block)

    def tick(self) -> None:
        """Show the text written since the last tick."""
        if self._tail and time.monotonic() - self._painted_at >= _PAINT_S:
            self._paint()

    def _paint(self) -> None:
        self._painted_at = time.monotonic()
        above = "" if self._ends_blank else "\n"  # as it will stand when it is whole
        self._screen.show_live(above + rendered(safe(self._tail), self.console.width - 1))


class _ScreenLine:
    """Shows a view's status on the screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def set(self, text: str) -> None:
        self._screen.show_status(text)

    def update(self, text: str) -> None:
        """Do nothing: the screen shows a call's output above its status."""

    def draw(self) -> None:
        """Do nothing: the screen draws the status with each frame."""

    def clear(self) -> None:
        """Do nothing: the screen makes room by itself."""


def rendered(text: str, columns: int) -> str:
    """Return Markdown, made safe to print, as rows with colours."""
    return _ansi(rendered_markdown(text), columns)


def _ansi(renderable: RenderableType, columns: int) -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=max(columns, 1), highlight=False, markup=False, emoji=False
    )  # fmt: skip
    console.print(renderable, soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").split("\n"))


class ScreenPresenter(Presenter):
    """A presenter that also reads input while the agent works: a message reaches the agent with its next request."""

    def __init__(
        self,
        conversation: Conversation,
        view: ScreenView,
        *,
        screen: Screen,
        bar: StatusBar,
        answer: Callable[[Conversation], bool] | None,
        command: Callable[[SentLine], object],
        message: Callable[[SentLine], OutgoingMessage],
        each_tick: Callable[[], None],
    ) -> None:
        """Start listening to the conversation and the person.

        Args:
            conversation: as in `Presenter`.
            view: shows it on screen.
            answer: asks about pending calls.
            screen: a line typed on it while the agent works is a message or a command.
            bar: counts the events.
            command: runs a line that begins with `/` or `!`.
            message: turns any other line into a message for the agent.
            each_tick: is called at each tick while the agent works.
        """
        self._screen, self._bar, self._command, self._message = screen, bar, command, message
        self._each_tick = each_tick
        self.rings = False
        """Whether the terminal's bell rings when a question is asked, or a run ends, after a long wait."""
        self._since = time.monotonic()
        """Monotonic time of the person's last message to the agent."""
        super().__init__(conversation, view, echo=False, answer=answer)

    def show_line(self, line: str) -> None:
        """Print a line, immediately if the prompt is waiting for input: nothing else would be printed then."""
        if self._screen.is_reading and not self._screen.is_suspended:
            self.view.info(line)
        else:
            super().show_line(line)

    def _shown(self, begin: Callable[[], object], *, word: str = "") -> ConversationStatus:
        self._screen.region.can_stop = self._screen.renderer.keeps_height = True
        self._since = time.monotonic()
        try:
            ended = super()._shown(begin, word=word)
            self._ring()
            return ended
        finally:
            self._screen.region.can_stop = self._screen.renderer.keeps_height = False
            self._screen.show_live("")

    def _show_decision(self, decision: NetworkDecision) -> None:
        self._bar.blocked += not decision.allowed
        super()._show_decision(decision)

    def _is_answered(self) -> bool:
        self._bar.waits_for = "waits for your answer"
        if self.conversation.status() is ConversationStatus.WAITING_FOR_CONFIRMATION:
            self._ring()
        is_answered = super()._is_answered()
        self._since = time.monotonic()
        return is_answered

    def _ring(self) -> None:
        if self.rings and time.monotonic() - self._since >= LONG_S:
            self._screen.ring()

    def _read_input(self) -> None:
        self._each_tick()
        if self.conversation.status() is ConversationStatus.WAITING_FOR_CONFIRMATION:
            return  # a message would reject what waits: it comes after the answer
        while (line := self._screen.poll()) is not None:
            if line.text.startswith("!") or is_command(line.text):
                self._command(line)
            else:
                self.view.show_block(MessageBlock("user", line.shown))
                self.conversation.send_message(*self._message(line))
                self.view.info("  sent while the agent works: it reads this before its next step")

    def _show(self, event: SDKEvent | LLMEvent) -> bool:
        if isinstance(event, SDKEvent):
            self._bar.add(event)
        over = super()._show(event)
        if isinstance(event, SDKEvent):
            waits_for = _WAITS_FOR.get(event.type, self._bar.waits_for)
            self._bar.waits_for = "waits for a tool" if self._calls and waits_for == _WAITS_FOR_MODEL else waits_for
        if not over:
            self._read_input()
        return over


_WAITS_FOR = {
    "tool_call": "waits for a tool",
    "tool_result": _WAITS_FOR_MODEL,
    "user_message": _WAITS_FOR_MODEL,
    "status_update": _WAITS_FOR_MODEL,
    "retry": "waits for the model, again",
}
