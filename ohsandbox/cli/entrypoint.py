"""The process around a command: its standard streams, its signals, its error line and its exit code.

0 success · 1 run failed · 2 usage error · 3 conversation open in another process · 4 engine or sandbox unavailable
5 model or provider error · 6 calls wait for confirmation
129 SIGHUP: the terminal was closed · 130 Ctrl-C · 143 SIGTERM, or the reader of our output has gone
131 and other numbers above 128: that signal came while a terminal of a sandbox was open
"""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import re
import select
import signal
import stat
import sys
import termios
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAILED, WAITING, INTERRUPTED, TERMINATED = 1, 6, 130, 143
PASSED, NOT_REACHED, BAD_INPUT, INFRASTRUCTURE, MODEL = 0, 1, 2, 4, 5
"""The exit codes of an evaluation."""
_SIGNALED = 128
"""Added to a signal's number to make an exit code, as shells do."""
DEBUG_VARIABLE = "OHSANDBOX_DEBUG"
MAX_VALUE_CHARS = 100
"""Longest part of an invalid value that a message quotes."""
_PERMISSION = "Make it writable for you, or set HOME to a directory that is."
_ROOM = "Make room on the disk (of ~/.ohsandbox, or where the output goes), and try again."
_REMEDIES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EMFILE: "Raise the limit with `ulimit -n`.",
}
"""Remedies for errors of the system, which are neither our fault nor the command's."""
_NEW_OBJECTS = 50_000
"""Threshold of the garbage collector; with Python's default of 700 it takes another 0.03 s of a `run`."""
_INVALID = "Invalid value for"
_EXPECTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}
"""Our words by pydantic's error type; pydantic's own speak of inputs and integers."""

closed_streams: set[int] = set()
"""Descriptors of stdin, stdout and stderr that were closed (`>&-`) when this process began."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Keep imported objects away from the garbage collector: of 150,000 objects that stay, none is garbage.

    Scanning them takes 0.17 of the 0.83 s of processor time of a `run`, and 0.13 s at its end.
    """
    gc.set_threshold(_NEW_OBJECTS)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived, or a command ended by SIGINT.

    It is a BaseException, like KeyboardInterrupt: no error handler may swallow it.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.exit_code = _SIGNALED + number


def prepare_streams() -> None:
    """Open /dev/null for closed standard streams, and make stdout print `?` for characters that it cannot encode.

    Otherwise the next file that is opened gets a closed one's number, and what is printed reaches a log or a socket.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            closed_streams.add(number)
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - the process's own
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def set_debug(value: bool) -> None:  # noqa: FBT001 - an option's callback
    """Make errors print their traceback from now on."""
    if value:
        os.environ[DEBUG_VARIABLE] = "1"


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run the command; return its exit code, or that of its error, which is explained on stderr."""
    try:
        with _terminating_signals():
            code = command()
            sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the process's last frame
        if code := _code_of_lost_output(error):
            _discard_output()
            return code
        return show_error(error)
    return code if isinstance(code, int) else 0


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's final garbage collection of all imported objects, which takes 0.05 s."""
    gc.freeze()
    sys.exit(code)


def show_error(error: BaseException) -> int:
    """Print the error's line (with --debug, its traceback too) to stderr; return its exit code."""
    from ohsandbox.cli.rendering.text import safe  # noqa: PLC0415 - only an error is printed with it; `--help` does without

    with contextlib.suppress(OSError):
        if os.environ.get(DEBUG_VARIABLE, "") not in {"", "0"}:
            print(safe("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        print(f"ohsandbox: {line_of_error(error)}", file=sys.stderr, flush=True)
    return code_of(error)


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    code = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", FAILED)
    return code if isinstance(code, int) else FAILED


def line_of_error(error: BaseException) -> str:
    """Return fact, value and remedy on one line that is safe to print."""
    from ohsandbox.cli.rendering.text import masked  # noqa: PLC0415 - only an error is printed with it; `--help` does without
    from ohsandbox.review_text import visible  # noqa: PLC0415 - only an error is printed with it; `--help` does without

    return visible(" ".join(re.split(r"[ \t\n]+", masked(_sentences(error)).strip(" \t\n"))))


def _sentences(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "Interrupted."
    if isinstance(error, Terminated):
        return "Interrupted." if error.exit_code == INTERRUPTED else "Terminated."
    if isinstance(error, OhsandboxError | SystemExit):
        return str(error)
    if hasattr(error, "format_message"):  # typer's usage errors; their class is private to it
        fact = _with_value(error.format_message(), error.__cause__)
        context = getattr(error, "ctx", None)
        command = "ohsandbox" if context is None else context.command_path
        return f"{fact}{'' if fact.endswith(('.', '?')) else '.'} Try `{command} --help`."
    if isinstance(error, OSError) and error.strerror:
        file_name = f": {os.fsdecode(error.filename)!r}" if isinstance(error.filename, str | bytes) else ""
        remedy = _REMEDIES.get(error.errno or 0, "The system refused it; --debug shows where.")
        return f"{error.strerror}{file_name}. {remedy}"
    return f"{type(error).__name__}: {error}. This is a fault of ohsandbox; --debug shows where."


def _with_value(message: str, cause: Any) -> str:
    """Add the invalid value to typer's message; the value is in the validation error that typer caught."""
    if not message.startswith(_INVALID) or not hasattr(cause, "errors"):
        return message
    error = cause.errors()[0]
    value = repr(error["input"])
    shown = value if len(value) <= MAX_VALUE_CHARS else f"{value[: MAX_VALUE_CHARS - 1]}…"
    if expected := _EXPECTED.get(error["type"]):
        message = message.replace(error["msg"], f"expected {expected.format_map(error.get('ctx') or {})}")
    return message.replace(_INVALID, f"Invalid value {shown} for", 1).replace(": Value error, ", ": ", 1)


def _code_of_lost_output(error: BaseException) -> int:
    """Return the exit code if the error is that nobody reads our output any more, or that our terminal is gone; else 0.

    A BrokenPipeError may also come from a process of the sandbox, which is a fault to be shown. typer makes a
    SystemExit(1) of one. A terminal that is closed sends SIGHUP, but its error may be seen before, or while what the
    signal interrupted is cleaned up.
    """
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if isinstance(cause, BrokenPipeError) and any(map(_is_hung_up, (1, 2))):
        return TERMINATED
    number = cause.args[0] if isinstance(cause, OSError | termios.error) and cause.args else None
    is_terminal_gone = number == errno.EIO and any(
        _is_terminal(descriptor) and _is_hung_up(descriptor) for descriptor in (0, 1, 2)
    )
    return _SIGNALED + signal.SIGHUP if is_terminal_gone else 0


def _is_terminal(descriptor: int) -> bool:
    """Return whether it is a character device; isatty(3) fails for a terminal that is gone."""
    try:
        return stat.S_ISCHR(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _is_hung_up(descriptor: int) -> bool:
    """Return whether the other end of a pipe, socket or terminal is closed."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poller.poll(0))


def _discard_output() -> None:
    """Discard buffered output, so that the interpreter's flush succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


@contextlib.contextmanager
def _terminating_signals() -> Iterator[None]:
    """Raise Terminated on the first SIGTERM or SIGHUP; later signals must not interrupt the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if not raised.is_set():
            raised.set()
            raise Terminated(number)

    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in old_handlers.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
