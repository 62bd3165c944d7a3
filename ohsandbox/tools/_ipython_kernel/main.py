"""Sets up the kernel's process as cells expect it, and runs them in a loop."""
# ruff: noqa: T201, BLE001, PLC0415 - cells raise anything, and what may be missing loads late

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import os
import signal
import sys
import time
from collections.abc import Callable  # noqa: TC003 - one program in the sandbox
from typing import Any, NoReturn

from ohsandbox.tools._ipython_kernel.display import PyplotFinder, gallery, show_figures, summary
from ohsandbox.tools._ipython_kernel.ipython import IPythonShell
from ohsandbox.tools._ipython_kernel.plain import PlainShell

OUTPUT = os.dup(2)
"""A copy of standard error that stays open when a cell closes or redirects descriptors 1 and 2."""
IGNORED_STATUS = 113
"""Exit code of a kernel whose cell continued after every exception that was raised in it."""
HEED_S = 0.5
"""Time for a cell to end after CellStopped is raised in it."""


class CellStopped(BaseException):
    """Ends a cell that catches KeyboardInterrupt and continues."""

    __module__ = "builtins"  # tracebacks then name it without our module


def refuse_input(_: object = "") -> NoReturn:
    raise EOFError("input() gets no answer here: nobody sits at the keyboard. Put the value into the code.")


def open_streams() -> None:
    """Open unbuffered text streams, so that output of print, child processes and C code arrives in order."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw: Any = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def keep_lines_whole() -> None:
    """In a forked child, write each line in one piece, because the parent writes at the same time."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def c_library() -> Any:
    """Return libc, with its stdout sent line by line; None if there is none."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, 1, 0)
    except Exception:
        return None
    return library


def ignore_interrupts() -> None:
    """Ignore interrupts between cells, by a handler: child processes would inherit SIG_IGN (execve(2))."""
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGXCPU, lambda *_: None)


def make_stopper() -> Callable[[int, Any], None]:
    """The handler of the signal after SIGINT: raises CellStopped, and ends the kernel of a cell that catches that too.

    Library code that does not return to Python has caught nothing: no handler runs, and it may continue.
    """
    first = None

    def stop(*_: object) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first > HEED_S:
            os._exit(IGNORED_STATUS)
        first = first or time.monotonic()
        raise CellStopped("the cell caught KeyboardInterrupt and went on")

    return stop


def prepare() -> None:
    """Set up all that a cell may expect of its process."""
    ignore_interrupts()
    os.environ.setdefault("MPLBACKEND", "agg")
    builtins.input = refuse_input
    sys.argv = [""]
    sys.meta_path.insert(0, PyplotFinder())
    open_streams()
    os.register_at_fork(after_in_child=keep_lines_whole)
    with contextlib.suppress(Exception):
        import faulthandler

        faulthandler.enable(OUTPUT)


def make_shell() -> IPythonShell | PlainShell:
    if importlib.util.find_spec("IPython") is not None:
        try:
            return IPythonShell()
        except Exception as error:
            print(f"IPython does not work here, so plain Python is used: {summary(error)}", file=sys.stderr)
    return PlainShell()


def run_cell(shell: IPythonShell | PlainShell, code: str) -> BaseException | None:
    """Run one interruptible cell; return the exception that ended it."""
    pid = os.getpid()
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGXCPU, make_stopper())
            error = shell.run(code)
            try:
                show_figures()
            except Exception as failure:
                print(f"A figure cannot be shown: {summary(failure)}", file=sys.stderr)
        finally:
            ignore_interrupts()
    except (KeyboardInterrupt, CellStopped) as interrupt:
        error = interrupt
    if os.getpid() != pid:  # a forked child that left its cell ends: there is only one kernel
        os._exit(0 if error is None else 1)
    return error


def finish_cell(library: Any, mark: str) -> None:
    """Flush all printed output, then send the mark; undo what the cell did to descriptors 1 and 2."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if library is not None:
        library.fflush(None)
    os.dup2(OUTPUT, 1)
    os.dup2(OUTPUT, 2)
    if any(getattr(stream, "closed", False) for stream in (sys.stdout, sys.stderr)):
        open_streams()
    os.write(OUTPUT, mark.encode())


def main(ready: Any, receive: Any, send: Any) -> None:
    """Answer requests `{code, mark}` with `{error, images}`."""
    prepare()
    library = c_library()
    shell = make_shell()
    sys.path.insert(0, "")
    ready({"ipython": getattr(shell, "version", None)})
    while (request := receive()) is not None:
        gallery.images, gallery.count = [], 0
        error = run_cell(shell, request["code"])
        finish_cell(library, request["mark"])
        send({"error": None if error is None else summary(error), "images": gallery.images})
