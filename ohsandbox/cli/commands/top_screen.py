"""The screen of `ohsandbox top`: a live table and the actions on its rows.

Each action runs one of our commands at the terminal while the screen waits: questions, exit codes and what
is refused are those of the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.data_structures import Point
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.styles import Style
from rich.cells import cell_len, set_cell_size

from ohsandbox import host_programs
from ohsandbox.cli.entrypoint import Terminated
from ohsandbox.cli.prompts.prompt import ask, ask_yes_no
from ohsandbox.cli.rendering.text import age, safe_line, say, size
from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.sandboxes import remove_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.key_binding import KeyPressEvent

    from ohsandbox.cli.commands.top import Survey, TopRow

LOOK_S = 2.0
"""Interval, in seconds, of the engine's samples; logs are read twice as often."""
_NARROW_COLUMNS = 64
"""Width from which numbers fit beside the title and the activity."""
_WIDE_COLUMNS = 120
"""Width from which the network and the sandbox names fit."""
_PAGE_ROWS = 10
STYLE = Style.from_dict(
    {"head": "bold", "dim": "ansibrightblack", "waiting": "ansiyellow bold", "running": "ansigreen",
     "failed": "ansired", "chosen": "reverse", "told": "ansiyellow"}
)  # fmt: skip
KEYS = "↑↓ choose  ⏎ go on  s shell  d diff  l log  x stop  r remove  q quit"
_SHORT_KEYS = "↑↓⏎ s:shell d:diff l:log x:stop r:rm q"
"""The list of keys for a terminal of 40 columns."""


class TopScreen:
    """The rows of a survey on the whole terminal."""

    def __init__(self, survey: Survey, root: Path | None) -> None:
        """Show nothing yet. root is where our commands look for conversations; None is the default."""
        self._survey = survey
        self._directory = () if root is None else ("--dir", str(root))
        self._rows: list[TopRow] = []
        self._chosen = ""
        """Key of the selected row."""
        self._told = ""
        self._interrupted: set[str] = set()
        """Ids of the processes that have been interrupted once."""
        self._over = threading.Event()
        self._app: Application[None] = Application(
            layout=Layout(self._layout()), key_bindings=self._bindings(), full_screen=True, style=STYLE,
            refresh_interval=1.0, before_render=lambda _: self._fetch_rows(),
        )  # fmt: skip

    def run(self) -> int:
        """Show the screen until the person leaves; return the exit code."""
        for act, every_s in ((self._survey.ask_engine, LOOK_S), (self._survey.read_logs, LOOK_S / 2)):
            threading.Thread(target=self._repeat, args=(act, every_s), daemon=True).start()
        old_handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        old_handlers = {
            number: handler for number, handler in old_handlers.items() if handler is not signal.SIG_IGN
        }  # nohup
        try:
            self._app.run(pre_run=lambda: self._exit_on(old_handlers))
        finally:
            self._over.set()
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
        return 0

    def _exit_on(self, numbers: Iterable[int]) -> None:
        """End the event loop on signals from within: it would report an exception of a handler and wait for a key."""

        def leave(number: int) -> None:
            with contextlib.suppress(Exception):  # prompt_toolkit's, of a loop that is ending already
                self._app.exit(exception=Terminated(number))

        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, leave, number)

    def _repeat(self, act: Callable[[], None], every_s: float) -> None:
        while not self._over.is_set():
            act()
            self._app.invalidate()
            self._over.wait(every_s)

    # --- what is shown ----------------------------------------------------------------------------

    def _layout(self) -> HSplit:
        table = FormattedTextControl(
            self._table, focusable=True, show_cursor=False, get_cursor_position=lambda: Point(0, self._index)
        )
        return HSplit([
            Window(FormattedTextControl(self._summary), height=1),
            ConditionalContainer(
                Window(FormattedTextControl(self._fault), height=1), filter=Condition(lambda: bool(self._survey.fault))
            ),
            Window(FormattedTextControl(lambda: [("class:head", self._line(_HEADINGS))]), height=1),
            Window(table, wrap_lines=False),
            Window(FormattedTextControl(self._details), height=4, wrap_lines=False),
            Window(FormattedTextControl(self._key_help), height=1),
        ])  # fmt: skip

    @property
    def _columns(self) -> int:
        return self._app.output.get_size().columns

    @property
    def _index(self) -> int:
        keys = [row.key for row in self._rows]
        return keys.index(self._chosen) if self._chosen in keys else 0

    @property
    def _row(self) -> TopRow | None:
        return self._rows[self._index] if self._rows else None

    def _fetch_rows(self) -> None:
        """Take the rows before each frame, so that all parts of the frame show the same data."""
        index = self._index
        self._rows = self._survey.rows()
        if self._rows and self._chosen not in {row.key for row in self._rows}:
            self._chosen = self._rows[min(index, len(self._rows) - 1)].key

    def _key_help(self) -> StyleAndTextTuples:
        return [("class:dim", KEYS if self._columns >= len(KEYS) else _SHORT_KEYS)]

    def _summary(self) -> StyleAndTextTuples:
        """Return the first line of the screen."""
        rows = self._rows
        waiting = sum(row.state == "waiting" for row in rows)
        memory = sum(row.usage.memory_bytes for row in rows if row.usage)
        sandboxes = _count(sum(row.sandbox is not None for row in rows), "sandbox", "es")
        counts = [
            f"{sum(row.is_at_work for row in rows)} at work",
            sandboxes if self._survey.has_asked else "asking for sandboxes",
            _count(sum(row.conversation is not None for row in rows), "conversation", "s"),
            f"CPU {sum(row.cpu or 0.0 for row in rows):.0%}",
            f"memory {size(memory)}",
        ]
        wait = f"{waiting} {'waits' if waiting == 1 else 'wait'} for you"
        asks: StyleAndTextTuples = [("class:waiting", wait), ("", " · ")] if waiting else []
        return [*asks, ("", " · ".join(counts))]

    def _fault(self) -> StyleAndTextTuples:
        return [("class:failed", _fit(safe_line(self._survey.fault), self._columns))]

    def _table(self) -> StyleAndTextTuples:
        if not self._rows:
            nothing = "Nothing is here yet. Start something: ohsandbox run TASK" if self._survey.has_asked else ""
            return [("class:dim", nothing)]
        lines: StyleAndTextTuples = []
        for row in self._rows:
            chosen = " class:chosen" if row.key == self._chosen else ""
            is_ours = row.conversation is not None or (row.sandbox is not None and row.sandbox.ours)
            state = row.state if is_ours and row.state in {"waiting", "running", "failed"} else "dim"
            lines.append((f"class:{state}{chosen}", self._line(row.cells()) + "\n"))
        return lines

    def _line(self, cells: dict[str, str]) -> str:
        """Lay out the cells in their columns; the title and the activity share the remaining width."""
        columns = self._columns
        widths = _WIDE if columns >= _WIDE_COLUMNS else _NARROW if columns >= _NARROW_COLUMNS else _NARROWEST
        fixed = [_fit(cells[name], width) for name, width in widths.items()]
        free_columns = max(0, self._columns - sum(widths.values()) - len(widths) - 1)
        title = free_columns * 2 // 5
        return " ".join([*fixed, _fit(cells["TITLE"], title), _fit(cells["DOES"], free_columns - title)])

    def _details(self) -> StyleAndTextTuples:
        row = self._row
        if row is None:
            return [("", "")]
        sandbox, usage = row.sandbox, row.usage
        sandbox_text = (
            "no sandbox" if sandbox is None else safe_line(f"{sandbox.name} ({sandbox.state}) of {sandbox.image}")
        )
        net = "" if usage is None else f"network: {size(usage.received_bytes)} in, {size(usage.sent_bytes)} out"
        blocked = f"{_count(row.blocked, 'host', 's')} blocked (ohsandbox net)" if row.blocked else ""
        memory = "" if usage is None else f"memory {size(usage.memory_bytes)} of {size(usage.memory_limit_bytes)}"
        open_in = f"process {row.holder}" if row.holder else ""
        last = f"last event {age(row.since)} ago" if row.conversation else ""
        rows_of_details = [
            "─" * self._columns,
            " · ".join(filter(None, [row.conversation or "no conversation", row.model, open_in, last])),
            " · ".join(filter(None, [sandbox_text, memory, net, blocked])),
            safe_line(self._told) or row.doing,
        ]
        shown: StyleAndTextTuples = [
            ("class:told" if self._told and number == len(rows_of_details) - 1 else "class:dim" if not number else "",
             _fit(fact, self._columns) + "\n")
            for number, fact in enumerate(rows_of_details)
        ]  # fmt: skip
        return shown

    # --- keys -------------------------------------------------------------------------------------

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        def on(*names: str) -> Callable[[Callable[[TopRow], None]], None]:
            def add(act: Callable[[TopRow], None]) -> None:
                def handle(_: KeyPressEvent) -> None:
                    self._told = ""
                    if (row := self._row) is not None:
                        act(row)

                for name in names:
                    keys.add(name)(handle)

            return add

        for names, rows in (
            (("down", "j"), 1), (("up", "k"), -1), (("pagedown",), _PAGE_ROWS), (("pageup",), -_PAGE_ROWS),
            (("home", "g"), -1_000_000), (("end", "G"), 1_000_000),
        ):  # fmt: skip
            on(*names)(lambda _, rows=rows: self._move(rows))  # type: ignore[misc] # a default binds the number
        on("enter")(self._go_on)
        on("s")(self._shell)
        on("d")(self._diff)
        on("l")(self._log)
        on("x")(self._stop)
        on("r", "delete")(self._remove)
        for name in ("q", "c-c", "c-d"):
            keys.add(name)(lambda event: event.app.exit())
        keys.add("<sigint>")(lambda _: None)  # for the command in front, which has the terminal
        return keys

    def _move(self, rows: int) -> None:
        self._chosen = self._rows[max(0, min(len(self._rows) - 1, self._index + rows))].key

    # --- acts -------------------------------------------------------------------------------------

    def _go_on(self, row: TopRow) -> None:
        """Resume a conversation; follow it instead if another process has it open."""
        if row.conversation is None:
            self._shell(row)
        elif row.holder is not None:
            self._run("conversations", "show", "--follow", *self._directory, row.conversation)
        elif self._directory:
            self._told = "A conversation of another directory is gone on with by OHSANDBOX_HOME."
        else:
            self._run("run", "--resume", row.conversation)

    def _shell(self, row: TopRow) -> None:
        if row.sandbox is None or row.sandbox.state != "running":
            self._told = "A shell needs a running sandbox, and this conversation has none."
        else:
            self._run("shell", "--attach", row.sandbox.name, pause=False)

    def _diff(self, row: TopRow) -> None:
        if row.conversation is None:
            self._told = "Only a conversation has a diff."
        else:
            self._run("diff", *self._directory, row.conversation)

    def _log(self, row: TopRow) -> None:
        if row.conversation is None:
            self._told = "Only a conversation has a log."
        else:
            self._run("conversations", "show", *self._directory, row.conversation)

    def _stop(self, row: TopRow) -> None:
        """Send SIGINT to the row's process, and SIGTERM the second time: a program behind a shell ignores SIGINT."""
        holder = row.holder
        if holder is None or not holder.isdecimal() or not row.is_at_work:
            self._told = "No process of this machine is at work on it."
            return
        number = signal.SIGTERM if holder in self._interrupted else signal.SIGINT
        signal_name = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"

        def stop() -> None:
            if not ask_yes_no(f"Stop {row.title!r} ({signal_name} to process {holder})?"):
                return
            self._interrupted.add(holder)
            self._told = f"Process {holder} was told to stop. If it goes on, x tells it more firmly."
            try:
                os.kill(int(holder), number)
            except OSError as error:
                self._told = f"Process {holder} was not stopped: {error.strerror}."

        self._in_terminal(stop)

    def _remove(self, row: TopRow) -> None:
        """Remove the sandbox; without one, delete the conversation, for which the command itself asks."""
        sandbox = row.sandbox
        if sandbox is None:
            self._run("conversations", *self._directory, "delete", row.conversation or "", pause=False)
            return

        def remove() -> None:
            used = f", which process {safe_line(row.holder)} uses," if row.holder else ""
            if ask_yes_no(f"Remove sandbox {safe_line(sandbox.name)}{used} and the files in it, for good?"):
                try:
                    remove_sandbox(sandbox)
                    self._told = f"{sandbox.name} is removed."
                except OhsandboxError as error:
                    self._told = str(error)

        self._in_terminal(remove)

    def _run(self, *words: str, pause: bool = True) -> None:
        """Run one of our commands at the terminal; with pause, its output stays until Enter."""

        def run() -> None:
            argv = [sys.executable, "-P", "-m", "ohsandbox", *words]
            code = subprocess.run(argv, env=os.environ | {"PATH": host_programs.person_path()}, check=False).returncode
            if pause or code:
                say(f"`ohsandbox {words[0]}` ended with {code}." if code else "That was all.")
                with contextlib.suppress(KeyboardInterrupt):
                    ask("Enter goes back to the table. ")

        self._in_terminal(run)

    def _in_terminal(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            await run_in_terminal(act, in_executor=True)

        self._app.create_background_task(run())


_HEADINGS = {
    name: name
    for name in ("STATE", "CPU", "MEMORY", "NET", "COST", "AGE", "SANDBOX", "TITLE", "DOES")
}  # fmt: skip
_NARROWEST = {"STATE": 8}
_NARROW = {"STATE": 11, "CPU": 4, "MEMORY": 7, "COST": 7, "AGE": 6}
_WIDE = {"STATE": 11, "CPU": 5, "MEMORY": 7, "NET": 17, "COST": 8, "AGE": 6, "SANDBOX": 20}
"""Width of each column in characters."""


def _count(number: int, noun: str, ending: str) -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def _fit(text: str, columns: int) -> str:
    """Return the text in exactly this many columns; an ellipsis marks a cut."""
    if cell_len(text) <= columns or columns < 1:
        return set_cell_size(text, max(0, columns))
    return set_cell_size(text, columns - 1) + "…"
