"""Our terminal, handed to a process of a sandbox: keys, output and the window's size pass unchanged, as with ssh."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Never

from ohsandbox.cli.entrypoint import Terminated
from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.runtime.channel import Channel

READ_BYTES = 65536
"""What a pipe holds."""
JOIN_S = 1.0
"""For a thread that only an engine which does not answer can hold up."""
_SCREEN_SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,24})([hl])")
_SWITCH_BYTES = 28
"""The longest one: output is cut anywhere."""
_ALTERNATE_SCREENS = frozenset({47, 1047, 1049})
_CONTROLS = re.compile(rb"[\x0e\x1b\x90\x98\x9b\x9d-\x9f]")
"""What begins a control sequence or string, or changes the character set."""
_QUERY = re.compile(rb"\x1b(?:\[[>=?0-9;]*[cntx]|[PZ\]])")
"""What a terminal answers, or may answer, by typing."""
_ANSWER_S = 0.1
"""Time of a terminal, also one at the end of an ssh connection, to answer."""
_RESET = b"".join(
    [
        b"\x18\x1b\\",  # CAN and ST end a sequence or string that was left open, in which what follows would vanish
        b"\x1b7\x1b[r\x1b8",  # no scrolling region, which also moves the cursor
        b"\x1b[0m\x1b(B\x1b)B\x0f\x1b[4l\x1b[20l\x1b>",  # plain and visible text, ASCII, no insertion, usual keypad
        b"".join(b"\x1b[?%dl" % mode for mode in (1, 5, 66, 69, 2004, 2026)),  # keys, colours, margins, paste, updates
        b"".join(b"\x1b[?%dl" % mode for mode in (9, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 9001)),
        b"\x1b[?7h\x1b[?25h",  # lines wrap, and the cursor is seen
        b"\x1b[<u\x1b[>4m",  # the keyboard protocols of kitty and xterm
    ]
)
"""Brings back the usual modes (DEC's and xterm's numbers); one that was never left is no different after it."""
_ENDING = (
    signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU,
)  # fmt: skip
"""Besides SIGTERM, SIGHUP and SIGINT, which every command answers."""
_PASSED_VARIABLES = ("TERM", "COLORTERM")
"""What a program asks to know the terminal's abilities; the size it asks of the terminal itself."""
_SCRIPT = """
ohs_known() {
  for ohs_d in /etc/terminfo /lib/terminfo /usr/share/terminfo /usr/lib/terminfo; do
    [ ! -e "$ohs_d/${1%"${1#?}"}/$1" ] || return 0
  done
  return 1
}
ohs_known "$TERM" || ! ohs_known xterm-256color || TERM=xterm-256color
stty rows "$1" cols "$2" 2>/dev/null
shift 2
exec "$@"
"""
"""A terminal that the image's database lacks (kitty's, say, in Debian's ncurses-base) is told as xterm, or full-screen
programs would refuse it. The size is set before the program asks for it; without `stty`, `Channel.resize` sets it soon
after."""


def terminal_argv(command: Sequence[str], *, prepare: str = "") -> list[str]:
    """Argv of a process that is the command, at a terminal of our terminal's size, after lines of shell."""
    columns, rows = terminal_size()
    return ["/bin/sh", "-c", prepare + _SCRIPT, "sh", str(rows), str(columns), *command]


def terminal_environment() -> dict[str, str]:
    """The variables of ours that say what our terminal can do."""
    return {"TERM": "dumb"} | {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}


def terminal_size() -> tuple[int, int]:
    """Columns and rows of our terminal, 80 and 24 where it has none; not shutil's, which believes COLUMNS first."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(sys.stdout.fileno())
        if size.columns and size.lines:  # a serial line does not know its size
            return size.columns, size.lines
    return 80, 24


def attend(channel: Channel, timeout_s: float | None = None) -> int:
    """Connect our stdin and stdout with a process at a terminal of its own, until it ends; its exit code.

    Our terminal is raw meanwhile: each key is the process's, Ctrl-C included. Keys typed after its end stay unread,
    but not the terminal's answers to it.

    Raises:
        TimeoutError: it still runs after timeout_s seconds.
        SandboxUnavailable: the sandbox went away.
    """
    with _raw_terminal(), _screen_restored() as screen, _keys_passed(channel), _size_followed(channel):
        clock = Countdown(timeout_s)
        while chunks := channel.read(clock.left_s):
            for _, data in chunks:
                screen.note(data)
                write_all(sys.stdout.fileno(), data)
            clock.check()
        if chunks is None:
            raise TimeoutError
        return channel.wait(clock.left_s)


class Countdown:
    """A point in time, timeout_s seconds from now, or none."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """Seconds until then, at least 0; None without one."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raise TimeoutError once it has passed."""
        if self.left_s == 0:
            raise TimeoutError


@contextlib.contextmanager
def killed_on_error(channel: Channel) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed pipe end the process as well: an attached container lives on."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OhsandboxError):
            channel.kill()
        raise


def write_all(descriptor: int, data: bytes) -> None:
    """All of data to one of our streams, however slow its reader is."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program made our terminal non-blocking
            select.select([], [descriptor], [])


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Our stdin, if it is a terminal, gives every key on as it is typed; restored on every way out but SIGKILL."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield
        return
    restore = partial(_set_modes, descriptor, termios.tcgetattr(descriptor))
    atexit.register(restore)  # a second signal may cut the `finally` short
    try:
        with _ending_signals_raised():
            tty.setraw(descriptor, termios.TCSANOW)  # what was typed meanwhile is for the program
            yield
    finally:
        restore()
        atexit.unregister(restore)


def _set_modes(descriptor: int, modes: list[Any]) -> None:
    """Also where another job has the terminal by now: SIGTTOU would stop us in the middle of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    with contextlib.suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)  # TCSADRAIN waits for a reader that may be gone
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _ending_signals_raised() -> Iterator[None]:
    """Signals that would end us on the spot, as SIGQUIT of another terminal, raise Terminated instead."""
    numbers = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _raise_terminated)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise_terminated(number: int, _frame: object) -> Never:
    raise Terminated(number)


class _ScreenState:
    """What a program's output may have changed in our terminal."""

    def __init__(self) -> None:
        self._is_touched = self._is_alternate = False
        self._tail = b""

    def note(self, data: bytes) -> None:
        """Look at a piece of output."""
        self._is_touched = self._is_touched or _CONTROLS.search(data) is not None
        seen = self._tail + data
        for numbers, switch in _SCREEN_SWITCH.findall(seen):
            if not _ALTERNATE_SCREENS.isdisjoint(int(number) for number in numbers.split(b";") if number):
                self._is_alternate = switch == b"h"
        self._tail = seen[-_SWITCH_BYTES:]

    def undoing(self) -> bytes:
        """What brings back the usual state; nothing after output without control sequences."""
        leave = b"\x1b[?1049l" if self._is_alternate else b""
        return leave.join([_RESET[:3], _RESET[3:]]) if self._is_touched else b""

    @property
    def awaits_answer(self) -> bool:
        """Whether the last output may have asked the terminal something."""
        return _QUERY.search(self._tail) is not None


@contextlib.contextmanager
def _screen_restored() -> Iterator[_ScreenState]:
    """A program leaves no alternate screen, mouse reports or hidden text behind, and no answer to its last question.

    Such an answer would be typed into the shell that we return to.
    """
    state = _ScreenState()
    try:
        yield state
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            write_all(sys.stdout.fileno(), state.undoing())
            if state.awaits_answer:
                time.sleep(_ANSWER_S)
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def _keys_passed(channel: Channel) -> Iterator[None]:
    """A thread passes our stdin to the process."""
    stop, stopped = os.pipe()
    threading.Thread(target=_pass_keys, args=(channel, stop), name="ohsandbox-keys", daemon=True).start()
    try:
        yield
    finally:
        os.close(stopped)


def _pass_keys(channel: Channel, stop: int) -> None:
    """Until the other end of the pipe `stop` is closed. A write to a process that reads nothing may block till then."""
    keys = sys.stdin.fileno()
    try:
        while stop not in (ready := select.select([keys, stop], [], [])[0]):
            with contextlib.suppress(BlockingIOError):  # as in write_all
                if data := os.read(ready[0], READ_BYTES):
                    channel.write(data)
                else:
                    channel.write(b"\x04")
                    return
    except (OSError, OhsandboxError):
        pass  # the process has ended, or our terminal is gone
    finally:
        os.close(stop)


@contextlib.contextmanager
def _size_followed(channel: Channel) -> Iterator[None]:
    """A thread gives the process's terminal the size of ours, now and whenever that changes."""
    changes: SimpleQueue[int | None] = SimpleQueue()  # whose `put` a signal handler may call at any point
    before = signal.signal(signal.SIGWINCH, lambda number, _: changes.put(number))
    follower = threading.Thread(target=_follow_size, args=(channel, changes), name="ohsandbox-size", daemon=True)
    follower.start()
    changes.put(signal.SIGWINCH)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        changes.put(None)
        follower.join(JOIN_S)


def _follow_size(channel: Channel, changes: SimpleQueue[int | None]) -> None:
    """Until None comes. Of many changes at once, as when a window is drawn larger by hand, the last one counts."""
    while changes.get() is not None:
        while not changes.empty():
            if changes.get() is None:
                return
        with contextlib.suppress(OhsandboxError):  # `read` tells of a sandbox that is gone
            channel.resize(*terminal_size())
