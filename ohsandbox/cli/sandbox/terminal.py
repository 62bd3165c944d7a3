"""Connects our terminal to a process in a sandbox: keys, output and the window's size pass unchanged, as with ssh."""

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
"""Bytes read at once: the capacity of a pipe."""
JOIN_S = 1.0
"""How long, in seconds, to wait for a thread; only an engine that does not answer takes longer."""
_SCREEN_SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,24})([hl])")
_SWITCH_BYTES = 28
"""Length of the longest mode switch, since output may be cut anywhere."""
_ALTERNATE_SCREENS = frozenset({47, 1047, 1049})
_CONTROLS = re.compile(rb"[\x0e\x1b\x90\x98\x9b\x9d-\x9f]")
"""Bytes that begin a control sequence or string, or change the character set."""
_QUERY = re.compile(rb"\x1b(?:\[[>=?0-9;]*[cntx]|[PZ\]])")
"""Sequences that a terminal may answer as if something was typed."""
_ANSWER_S = 0.1
"""How long, in seconds, a terminal may take to answer, also across an ssh connection."""
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
"""Restores the usual modes (DEC's and xterm's numbers), also if none was changed."""
_ENDING = (
    signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU,
)  # fmt: skip
"""Signals that end us, besides SIGTERM, SIGHUP and SIGINT, which every command handles."""
_PASSED_VARIABLES = ("TERM", "COLORTERM")
"""Variables that tell a program what the terminal can do; it reads the size from the terminal."""
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
"""A terminal that the image's database lacks (such as kitty in Debian's ncurses-base) is named xterm, or full-screen
programs would refuse it. The size is set before the program asks for it; without `stty`, `Channel.resize` sets it soon
after."""


def terminal_argv(command: Sequence[str], *, prepare: str = "") -> list[str]:
    """Return the argv that runs the command at a terminal of our terminal's size, after the shell lines of prepare."""
    columns, rows = terminal_size()
    return ["/bin/sh", "-c", prepare + _SCRIPT, "sh", str(rows), str(columns), *command]


def terminal_environment() -> dict[str, str]:
    """Return our variables that say what the terminal can do."""
    return {"TERM": "dumb"} | {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}


def terminal_size() -> tuple[int, int]:
    """Return our terminal's columns and rows, 80 and 24 by default; unlike shutil's, it ignores COLUMNS."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(sys.stdout.fileno())
        if size.columns and size.lines:  # a serial line does not know its size
            return size.columns, size.lines
    return 80, 24


def attach_terminal(channel: Channel, timeout_s: float | None = None) -> int:
    """Connect our stdin and stdout to a process at a terminal of its own until it ends; return its exit code.

    Our terminal is raw meanwhile: each key goes to the process, also Ctrl-C. Keys typed after its end stay unread,
    but not the terminal's answers to it.

    Raises:
        TimeoutError: the process still runs after timeout_s seconds.
        SandboxUnavailable: the sandbox is gone.
    """
    with _raw_terminal(), _screen_restored() as screen, _keys_passed(channel), _size_followed(channel):
        clock = Countdown(timeout_s)
        while chunks := channel.read(clock.left_s):
            for _, data in chunks:
                screen.note(data)
                write_to_terminal(sys.stdout.fileno(), data)
            clock.check()
        if chunks is None:
            raise TimeoutError
        return channel.wait(clock.left_s)


class Countdown:
    """A deadline timeout_s seconds from now, or none."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """Return the remaining seconds, at least 0; None without a deadline."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raise TimeoutError once the deadline has passed."""
        if self.left_s == 0:
            raise TimeoutError


@contextlib.contextmanager
def killed_on_error(channel: Channel) -> Iterator[None]:
    """Kill the process on Ctrl-C, SIGTERM and a closed pipe; in a container it would go on."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OhsandboxError):
            channel.kill()
        raise


def write_to_terminal(descriptor: int, data: bytes) -> None:
    """Write all of data to one of our streams, however slow its reader is."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program made our terminal non-blocking
            select.select([], [descriptor], [])


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Make our stdin pass on every key as it is typed, if it is a terminal; restore it on every exit but SIGKILL."""
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
    """Set the terminal's modes, also while another job has the terminal, where SIGTTOU would stop us."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    with contextlib.suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)  # TCSADRAIN waits for a reader that may be gone
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


@contextlib.contextmanager
def _ending_signals_raised() -> Iterator[None]:
    """Make signals that would end us at once, such as SIGQUIT from another terminal, raise Terminated."""
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
    """Tracks what a program's output may have changed in our terminal."""

    def __init__(self) -> None:
        self._is_touched = self._is_alternate = False
        self._tail = b""

    def note(self, data: bytes) -> None:
        """Examine a piece of output."""
        self._is_touched = self._is_touched or _CONTROLS.search(data) is not None
        recent = self._tail + data
        for numbers, switch in _SCREEN_SWITCH.findall(recent):
            if not _ALTERNATE_SCREENS.isdisjoint(int(number) for number in numbers.split(b";") if number):
                self._is_alternate = switch == b"h"
        self._tail = recent[-_SWITCH_BYTES:]

    def undoing(self) -> bytes:
        """Return the bytes that restore the usual state; none if the output had no control sequence."""
        leave = b"\x1b[?1049l" if self._is_alternate else b""
        return leave.join([_RESET[:3], _RESET[3:]]) if self._is_touched else b""

    @property
    def awaits_answer(self) -> bool:
        """Return whether the terminal may be about to answer the last output."""
        return _QUERY.search(self._tail) is not None


@contextlib.contextmanager
def _screen_restored() -> Iterator[_ScreenState]:
    """Undo alternate screen, mouse reports and hidden text after a program, and drop the answer to its last query.

    Such an answer would appear as input of the shell that we return to.
    """
    state = _ScreenState()
    try:
        yield state
    finally:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            write_to_terminal(sys.stdout.fileno(), state.undoing())
            if state.awaits_answer:
                time.sleep(_ANSWER_S)
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def _keys_passed(channel: Channel) -> Iterator[None]:
    """Pass our stdin to the process in a thread."""
    stop, stopped = os.pipe()
    threading.Thread(target=_pass_keys, args=(channel, stop), name="ohsandbox-keys", daemon=True).start()
    try:
        yield
    finally:
        os.close(stopped)


def _pass_keys(channel: Channel, stop: int) -> None:
    """Pass keys until the other end of the pipe `stop` is closed; a write may block if the process reads nothing."""
    keys = sys.stdin.fileno()
    try:
        while stop not in (ready := select.select([keys, stop], [], [])[0]):
            with contextlib.suppress(BlockingIOError):  # as in write_to_terminal
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
    """Set the size of the process's terminal to ours, now and on each change, in a thread."""
    changes: SimpleQueue[int | None] = SimpleQueue()  # whose `put` a signal handler may call at any point
    old_handler = signal.signal(signal.SIGWINCH, lambda number, _: changes.put(number))
    follower = threading.Thread(target=_follow_size, args=(channel, changes), name="ohsandbox-size", daemon=True)
    follower.start()
    changes.put(signal.SIGWINCH)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, old_handler)
        changes.put(None)
        follower.join(JOIN_S)


def _follow_size(channel: Channel, changes: SimpleQueue[int | None]) -> None:
    """Apply sizes until None arrives; of many changes at once, only the last one is applied."""
    while changes.get() is not None:
        while not changes.empty():
            if changes.get() is None:
                return
        with contextlib.suppress(OhsandboxError):  # `read` tells of a sandbox that is gone
            channel.resize(*terminal_size())
