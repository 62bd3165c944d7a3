"""The rows below the scrollback: live output, status, queued lines, input, bottom line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from prompt_toolkit.application.current import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.styles import Style

if TYPE_CHECKING:
    from collections.abc import Callable

    from prompt_toolkit.widgets import SearchToolbar, TextArea

TICK_S = 0.12
"""Interval, in seconds, between two positions of the spinner."""
_MAX_MENU_ROWS = 6
_MAX_QUEUED_ROWS = 3
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
KEYS = (
    ("Enter", "sends"),
    ("Alt-Enter", "a new line; Ctrl-J too"),
    ("Shift-Tab", "what is asked; plan mode"),
    ("Tab", "completes / @ and ! words"),
    ("Up, Down", "earlier, or queued, texts"),
    ("Ctrl-R", "searches earlier texts"),
    ("Esc, Ctrl-C", "stop; the draft stays"),
    ("Ctrl-O", "shows folded output"),
    ("Ctrl-X Ctrl-E", "opens $EDITOR"),
    ("Ctrl-D", "leaves; Ctrl-Z: the shell"),
    ("/", "a command, as in /help"),
    ("!", "runs it in the sandbox"),
    ("@", "attaches a file or image"),
)
"""The keys that `?` lists at an empty line."""
STYLE = Style.from_dict(
    {
        "bar": "fg:ansibrightblack",
        "status": "fg:ansicyan",
        "queued": "fg:ansibrightblack italic",
        "key": "bold",
        "text-area.prompt": "bold fg:ansicyan",
        "hint": "fg:ansiyellow",
        "completion-menu": "bg:default fg:ansibrightblack",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bold reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default fg:default",
    }
)


class SentLine(NamedTuple):
    """A line that a person sent."""

    text: str
    shown: str
    """The line with long pastes folded."""


class Region:
    """The rows around the input. All text given must be safe to print; any thread may set what is shown."""

    def __init__(self, queued: Callable[[], list[SentLine]]) -> None:
        """Lay nothing out yet. queued returns the lines that are sent but not read yet, oldest first."""
        self.status = ""
        """The current activity; empty for none."""
        self.live = ""
        """Coloured rows between the scrollback and the status: the text being written or printed now."""
        self.bar: Callable[[int], str] = lambda _columns: ""
        """Returns the bottom line for a terminal of the given width."""
        self.can_stop = False
        """True if Esc stops the current activity, as Ctrl-C does."""
        self.hint = ""
        """Text shown instead of the bottom line."""
        self.shows_keys = False
        """True if the keys are listed above the input."""
        self._queued = queued
        self._since = self._shown_from = 0.0

    def show_status(self, text: str, *, after_s: float = 0.0) -> None:
        """Show an activity and its duration, now or after after_s seconds; an empty text clears it."""
        if not text or not self.status:
            self._since = time.monotonic()
        self._shown_from = time.monotonic() + after_s
        self.status = text

    @property
    def shows_status(self) -> bool:
        """Return whether an activity is due to be shown."""
        return bool(self.status) and time.monotonic() >= self._shown_from

    @property
    def columns(self) -> int:
        """The usable width, without the last column: such rows do not wrap while the terminal keeps its width."""
        return max(get_app().output.get_size().columns - 1, 1)

    def rows(self, typed: TextArea, search: SearchToolbar) -> HSplit:
        """Return the layout around the input and its search."""

        def row(text: Callable[[], Any], *, when: Callable[[], object], **options: Any) -> ConditionalContainer:
            window = Window(FormattedTextControl(text), dont_extend_height=True, wrap_lines=False, **options)
            return ConditionalContainer(window, Condition(lambda: bool(when())))

        return HSplit(
            [
                Window(height=Dimension(min=0, preferred=0)),  # takes the room that is kept while something is going on
                row(self._live_rows, when=lambda: self.live),
                row(self._status_row, when=lambda: self.shows_status, height=1),
                row(self._queued_rows, when=self._queued),
                row(self._key_rows, when=lambda: self.shows_keys),
                Window(height=1),
                typed,
                search,
                CompletionsMenu(max_height=_MAX_MENU_ROWS),
                Window(height=Dimension(max=1, preferred=1)),
                Window(FormattedTextControl(self._bottom_row), height=1, wrap_lines=False),
            ]
        )

    def _live_rows(self) -> ANSI:
        rows = max(get_app().output.get_size().rows // 3, 3)
        return ANSI("\n".join(self.live.split("\n")[-rows:]))

    def _status_row(self) -> Any:
        elapsed_s = int(time.monotonic() - self._since)
        frame = FRAMES[int(time.monotonic() / TICK_S) % len(FRAMES)]
        keys = " · Esc stops" if self.can_stop else ""
        after = f"  {elapsed_s} s{keys}" if elapsed_s else f"  {keys.removeprefix(' · ')}"
        text = _cut(self.status, self.columns - 2 - len(after))
        return [("class:status", f"{frame} {text}"), ("class:bar", after)]

    def _queued_rows(self) -> Any:
        lines = self._queued()
        rows = [f"queued: {' '.join(line.shown.split())}" for line in lines[-_MAX_QUEUED_ROWS:]]
        rows[-1] += "  (Up edits it)"
        return [("class:queued", "\n".join(_cut(row, self.columns) for row in rows))]

    def _key_rows(self) -> Any:
        width = max(len(key) for key, _ in KEYS) + 2
        rows = max(get_app().output.get_size().rows - 6, 1)
        parts = []
        for key, does in KEYS[:rows]:
            parts += [("class:key", f"{key:<{width}}"), ("", f"{_cut(does, self.columns - width)}\n")]
        parts[-1] = ("", parts[-1][1].rstrip("\n"))
        return parts

    def _bottom_row(self) -> Any:
        if self.hint:
            return [("class:hint", self.hint[: self.columns])]
        return [("class:bar", self.bar(self.columns))]


def input_height() -> Dimension:
    """Return the height of the input: at most half of the terminal."""
    return Dimension(min=1, max=max(get_app().output.get_size().rows // 2, 1))


def _cut(text: str, columns: int) -> str:
    columns = max(columns, 1)
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
