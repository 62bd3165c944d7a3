"""Asking the person at the terminal, where there is one."""

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
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_S = 0.5
"""Whoever types while a question appears types on for longer than that: keys count after so much silence."""

_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Bracketed paste: the terminal puts marks around what is pasted (xterm control sequences, DECSET 2004)."""
_PASTED, _PASTE_END = "\x1b[200~", "\x1b[201~"

MAX_ANSWER_BYTES = 16_384
"""Of what is typed so much is taken: four lines as long as a terminal edits them."""


class Prompt(Protocol):
    """Asks for the next message."""

    def ask(self) -> str:
        """A line.

        Raises:
            EOFError: there are no more.
            KeyboardInterrupt: Ctrl-C.
        """


def person_present(*, no_tui: bool) -> bool:
    """Whether somebody can be asked: both ends are a terminal, and headless was not asked for."""
    return not no_tui and sys.stdin.isatty() and sys.stdout.isatty()


def open_prompt() -> Prompt:
    """A line editor at a terminal, else plain lines of stdin."""
    return _TerminalPrompt() if sys.stdin.isatty() and sys.stdout.isatty() else _LinePrompt()


def ask(question: str) -> str:
    """One answer, without blanks around it; empty for none."""
    try:
        return input(question).strip()
    except EOFError:
        return ""


def ask_secret(question: str) -> str:
    """An answer that is not shown."""
    try:
        return getpass.getpass(question).strip()
    except EOFError:
        return ""


class Typed(NamedTuple):
    """An answer."""

    text: str
    """Without blanks around it."""
    is_pasted: bool = False
    """It was pasted, all or some of it: so it was not typed in answer to the question."""


def confirm(question: str) -> bool:
    """A yes that a person typed after the question was shown; anything else is a no, and so is what is piped in."""
    try:
        said = answer_to(f"{question} [y/N] ")
    except EOFError:
        return False
    return said.text.lower() in {"y", "yes"} and not said.is_pasted


def answer_to(question: str) -> Typed:
    """A line that a person typed after the question, and all that was printed before it, had been shown.

    What was typed before is discarded, and so is what comes until nothing has come for QUIET_S: only then does the
    question appear. The terminal is read directly, so nothing that a buffer of Python holds can answer.

    Raises:
        EOFError: Ctrl-D, the terminal is gone, or stdin is none.
        KeyboardInterrupt: Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise EOFError
    terminal = sys.stdin.fileno()
    sys.stdout.flush()
    with contextlib.suppress(termios.error):  # the terminal is gone, which the reading tells
        if _discard(terminal):
            print("(What was typed before this question is discarded.)")
    print(f"{_PASTE_ON}{question}", end="", flush=True)
    try:
        line = _typed_line(terminal)
    finally:
        print(_PASTE_OFF, end="", flush=True)
    return Typed(line.replace(_PASTED, "").replace(_PASTE_END, "").strip(), is_pasted=_PASTED in line)


def _discard(terminal: int) -> bool:
    """Throw away what was typed, and what is typed until it has been quiet; whether something was."""
    with _unseen_keys(terminal):
        discarded = _waiting_bytes(terminal) > 0
        termios.tcflush(terminal, termios.TCIFLUSH)
        quiet_at = time.monotonic() + QUIET_S
        while (left_s := quiet_at - time.monotonic()) > 0:
            if not select.select([terminal], [], [], left_s)[0]:
                continue
            if not _read(terminal):
                return discarded
            discarded = True
            quiet_at = time.monotonic() + QUIET_S
    return discarded


def _waiting_bytes(terminal: int) -> int:
    """How much waits to be read."""
    return int.from_bytes(fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)), sys.byteorder)


@contextlib.contextmanager
def _unseen_keys(terminal: int) -> Iterator[None]:
    """Keys come one by one and are not echoed; Ctrl-C works. What waits at the end is thrown away."""
    before = termios.tcgetattr(terminal)
    mode = [*before]
    mode[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
    mode[_CHARACTERS] = [*before[_CHARACTERS]]
    mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, mode)  # an unfinished line can be read from now on, too
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


_LOCAL_MODES, _CHARACTERS = 3, 6
"""Where `termios.tcgetattr` has them."""


def _typed_line(terminal: int) -> str:
    """A line of the terminal's own line editing; one that is pasted is read to the end of what was pasted."""
    line, around, pasting = b"", b"", False
    while True:
        piece = _read(terminal)
        if not piece and not line:
            raise EOFError
        line = (line + piece)[:MAX_ANSWER_BYTES]
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


def read_task() -> str:
    """The task from stdin.

    Raises:
        UsageError: it is empty.
    """
    text = sys.stdin.read().strip()
    if not text:
        raise UsageError("TASK is '-' and stdin is empty. Pipe the task in, or write it as an argument.")
    return text


class _TerminalPrompt:
    """prompt_toolkit: history, editing, multi-line paste."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession  # noqa: PLC0415 - 0.1 s, for those who type

        self._session: PromptSession[str] = PromptSession()

    def ask(self) -> str:
        return str(self._session.prompt("> "))


class _LinePrompt:
    def ask(self) -> str:
        return input()
