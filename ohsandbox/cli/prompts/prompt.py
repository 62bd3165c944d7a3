"""Asking the person at the terminal, if there is one: yes or no, a line, a choice of rows."""

# ruff: noqa: T201 - it talks to a person
from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import select
import sys
import termios
import time
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prompt_toolkit.key_binding import KeyPressEvent

QUIET_S = 0.5
"""Keys count only after this many seconds without input: a person who was typing types on for a while."""
LOOK_EVERY_S = 0.25
"""Interval, in seconds, at which a question checks whether it is still open."""
_MAX_ANSWER_BYTES = 16_384
"""Longest input that is read: four lines as long as a terminal edits them."""
_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Switch bracketed paste on and off: the terminal marks pasted text (xterm control sequences, DECSET 2004)."""
_PASTED, _PASTE_END = "\x1b[200~", "\x1b[201~"

_LOCAL_MODES, _CHARACTERS = 3, 6
"""Indices in the result of `termios.tcgetattr`."""


_YES = frozenset({"y", "yes"})

_terminal: list[Callable[[], contextlib.AbstractContextManager[None]]] = [contextlib.nullcontext]
"""Entered around each question, so that a program that draws on the terminal pauses."""


@contextlib.contextmanager
def register_drawing(leave: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Register a drawing program for the block; leave returns the context in which it does not use the terminal."""
    _terminal.append(leave)
    try:
        yield
    finally:
        _terminal.pop()


def _exclusive_terminal() -> contextlib.AbstractContextManager[None]:
    """Return a context in which nothing but its body draws on the terminal and reads from it."""
    return _terminal[-1]()


def open_prompt() -> Callable[[], str]:
    """Return a function that asks for the next message: a line editor at a terminal, else plain lines of stdin.

    The function raises EOFError if there are no more, and KeyboardInterrupt at Ctrl-C.
    """
    if not person_present():
        return input
    from prompt_toolkit import PromptSession  # noqa: PLC0415 - 0.1 s, for those who type

    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")


def person_present(*, no_tui: bool = False) -> bool:
    """Return whether somebody can be asked: stdin and stdout are terminals, and the run is not headless."""
    return not no_tui and sys.stdin.isatty() and sys.stdout.isatty()


def read_task() -> str:
    """Read the task from stdin."""
    text = sys.stdin.read().strip()
    if not text:
        raise UsageError("TASK is '-' and stdin is empty. Pipe the task in, or write it as an argument.")
    return text


def ask(question: str) -> str:
    """Return one answer, stripped of blanks; empty for Enter alone, which takes the default.

    Raises:
        KeyboardInterrupt: Ctrl-C or Ctrl-D, which both leave.
    """
    return _line_of(input, question)


def ask_secret(question: str) -> str:
    """Return an answer that is not echoed; raises like `ask`."""
    return _line_of(getpass.getpass, question)


def _line_of(read: Callable[[str], str], question: str) -> str:
    try:
        with _exclusive_terminal():
            return read(question).strip()
    except EOFError:
        raise KeyboardInterrupt from None


def ask_yes_no(question: str) -> bool:
    """Return True only for a yes that was typed after the question was shown; piped input is a no."""
    return answer_yes_no(question) is True


def answer_yes_no(question: str) -> bool | None:
    """Ask like `ask_yes_no`; None if there was no answer: Ctrl-D, pasted text, nobody there."""
    answer = _word(f"{question} [y/N] ")
    return None if answer is None else answer in _YES


def _word(question: str) -> str | None:
    """Return the typed answer in lower case; None if it does not count."""
    try:
        typed = answer_to(question)
    except EOFError:
        return None
    return None if typed.is_pasted else typed.text.lower()


def ask_with_default_yes(question: str) -> bool:
    """Ask about something harmless: Enter means yes. Text typed before the question, or pasted, is not an answer."""
    while True:
        try:
            typed = answer_to(f"{question} [Y/n] ")
        except EOFError:
            return False
        if not typed.is_pasted and typed.text.lower() in {"", "n", "no", *_YES}:
            return typed.text.lower() in {"", *_YES}


def is_agreed(question: str, *, what: str, yes: bool, show_diff: Callable[[], None] | None = None) -> bool:
    """Ask before something that cannot be undone, unless yes (`--yes`) is set. "d" shows the diff and asks again.

    Raises:
        UsageError: nobody can be asked; the message begins with `what`.
    """
    if not (yes or person_present()):
        raise UsageError(f"{what}, which a person confirms at a terminal. Use --yes.")
    if yes or show_diff is None:
        return yes or ask_yes_no(question)
    while (answer := _word(f"{question} [y/N, d: diff] ")) in {"d", "diff"}:
        show_diff()
    return answer in _YES


class Typed(NamedTuple):
    """An answer."""

    text: str
    """The text, stripped of blanks."""
    is_pasted: bool = False
    """True if any of it was pasted, so that it was not typed in answer to the question."""


class AnsweredElsewhere(Exception):  # noqa: N818 - it is none
    """The question needs no answer any more."""


def answer_to(question: str, *, until: Callable[[], bool] | None = None) -> Typed:
    """Return a line that was typed after the question, and everything printed before it, had been shown.

    Earlier input is discarded, and so is all input until none has come for QUIET_S; only then does the
    question appear. The terminal is read directly, so nothing that a buffer of Python holds can answer.

    until: polled; returns whether the answer has come from elsewhere.

    Raises:
        AnsweredElsewhere: until returned True.
        EOFError: Ctrl-D, or stdin is not a terminal or its terminal is gone.
        KeyboardInterrupt: Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise EOFError
    with _exclusive_terminal():
        return _answer_to(question, sys.stdin.fileno(), until or (lambda: False))


def _answer_to(question: str, terminal: int, until: Callable[[], bool]) -> Typed:
    sys.stdout.flush()
    with contextlib.suppress(termios.error):  # the terminal is gone, which the reading tells
        if _discard(terminal):
            print("(What was typed before this question is discarded.)")
    print(f"{_PASTE_ON}{question}", end="", flush=True)
    try:
        line = _typed_line(terminal, until)
    finally:
        print(_PASTE_OFF, end="", flush=True)
    return Typed(line.replace(_PASTED, "").replace(_PASTE_END, "").strip(), is_pasted=_PASTED in line)


def _discard(terminal: int) -> bool:
    """Discard input until none has come for QUIET_S; return whether there was any."""
    with _unseen_keys(terminal):
        waiting = fcntl.ioctl(terminal, termios.FIONREAD, bytes(4))
        discarded = int.from_bytes(waiting, sys.byteorder) > 0
        termios.tcflush(terminal, termios.TCIFLUSH)
        quiet_at = time.monotonic() + QUIET_S
        while select.select([terminal], [], [], max(0.0, quiet_at - time.monotonic()))[0]:
            if not _read(terminal):
                break
            discarded = True
            quiet_at = time.monotonic() + QUIET_S
    return discarded


@contextlib.contextmanager
def _unseen_keys(terminal: int) -> Iterator[None]:
    """Read keys one by one, without echo; Ctrl-C works. Unread input is discarded at the end."""
    old_mode = termios.tcgetattr(terminal)
    mode = [*old_mode]
    mode[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
    mode[_CHARACTERS] = [*old_mode[_CHARACTERS]]
    mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, mode)  # an unfinished line can be read from now on, too
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, old_mode)


def _typed_line(terminal: int, until: Callable[[], bool]) -> str:
    """Return a line of the terminal's own line editing; a pasted text is read to its end."""
    line, around, pasting = b"", b"", False
    while True:
        while not select.select([terminal], [], [], LOOK_EVERY_S)[0]:
            if until():
                raise AnsweredElsewhere
        piece = _read(terminal)
        if not piece and not line:
            raise EOFError
        line = (line + piece)[:_MAX_ANSWER_BYTES]
        around = around[1 - len(_PASTED) :] + piece  # a mark may come in two pieces
        began, ended = around.rfind(_PASTED.encode()), around.rfind(_PASTE_END.encode())
        if began != ended:  # one of them is there
            pasting = began > ended
        if not piece or (piece.endswith(b"\n") and not pasting):
            return line.decode("utf-8", "replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: it is gone
        return b""


# --- choosing -------------------------------------------------------------------------------------

HINT = "(Arrows or a number choose, Enter takes it, Esc leaves.)"


def pick(title: str, rows: Sequence[str]) -> int | None:
    """Return the index of the row that the person chose; None if they left. Rows must be printable, and at least one.

    Use it only for choices that can be undone or are confirmed later.
    """
    from prompt_toolkit.application import create_app_session  # noqa: PLC0415 - 0.1 s, only for a person who chooses
    from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415 - 0.1 s, only for a person who chooses
    from prompt_toolkit.output import create_output  # noqa: PLC0415 - 0.1 s, only for a person who chooses
    from prompt_toolkit.shortcuts import choice  # noqa: PLC0415 - 0.1 s, only for a person who chooses

    keys = KeyBindings()

    @keys.add("escape")
    @keys.add("q")
    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(result=-1)

    options = [(at, row) for at, row in enumerate(rows)]
    with _exclusive_terminal(), create_app_session(output=create_output(sys.__stdout__)):
        try:
            chosen = choice(f"{title}\n{HINT}", options=options, default=0, key_bindings=keys)
        except (KeyboardInterrupt, EOFError):
            return None
    return None if chosen < 0 else chosen
