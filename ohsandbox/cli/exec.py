"""`ohsandbox exec`: one command in a sandbox, its streams ours, its exit code ours."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import threading
import time
import tty
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.runtime import make_runtime, started
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.channel import Stream
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal, whole_prefix
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.cli.options import ExecOptions, SandboxOptions
    from ohsandbox.runtime.channel import Channel

TIMED_OUT = 124
"""As timeout(1) of coreutils has it."""
READ_BYTES = 65536
"""What a pipe holds."""
_PIPES_SCRIPT = 'exec "$@"'
"""A shell in between makes a missing program exit code 127 on every backend."""
_TERMINAL_SCRIPT = 'stty rows "$1" cols "$2" 2>/dev/null; shift 2; exec "$@"'


def run_command(command: Sequence[str], options: ExecOptions, where: SandboxOptions) -> int:
    """Run the command; its exit code, or 124 if options.timeout_s ended it.

    Our stdin is its stdin unless that is a terminal. With a terminal of its own it owns ours, as with ssh; without one,
    what it prints reaches a terminal cleaned of escapes, and a file or pipe byte by byte.
    """
    for pair in options.env or ():
        if "=" not in pair[1:]:
            raise UsageError(f"Invalid --env {pair!r}: expected NAME=VALUE.")
    env = dict(pair.split("=", 1) for pair in options.env or ())
    if options.user is not None and not options.user:
        raise UsageError("--user is empty. Name a user of the image or a numeric id, or leave it out.")
    if options.user and not where.backend.users:
        raise UsageError(f"--user {options.user!r} needs a container. Leave it out, or --runtime {where.runtime}.")
    runtime = make_runtime(where.checked().with_settings(Settings.load()))
    with_tty = sys.stdin.isatty() and sys.stdout.isatty() if options.tty is None else options.tty
    argv = ["/bin/sh", "-c", _PIPES_SCRIPT, "sh", *command]
    if with_tty:
        columns, rows = _terminal_size()
        argv = ["/bin/sh", "-c", _TERMINAL_SCRIPT, "sh", str(rows), str(columns), *command]
        env = {"TERM": os.environ.get("TERM", "dumb")} | env
    if where.copies and sys.stderr.isatty():
        say(f"The command works on a copy of {where.workspace}, which is deleted when it ends.")
    with started(runtime, warn=say):
        channel = runtime.open_channel(argv, tty=with_tty, env=env, user=options.user)
        with channel, _killed_on_error(channel), _raw_terminal(wanted=with_tty and sys.stdin.isatty()):
            if sys.stdin.isatty() and not with_tty:  # it would be typed text that nobody asked for
                channel.close_stdin()
            else:
                threading.Thread(target=_feed, args=(channel,), kwargs={"with_tty": with_tty}, daemon=True).start()
            return _relay(channel, options.timeout_s, raw=with_tty)


def _terminal_size() -> tuple[int, int]:
    """Columns and rows of our terminal; not shutil's, which believes COLUMNS and LINES first."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stdout.fileno())
    return 80, 24


@contextlib.contextmanager
def _killed_on_error(channel: Channel) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed pipe end the command as well: an attached container lives on."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OhsandboxError):
            channel.kill()
        raise


@contextlib.contextmanager
def _raw_terminal(*, wanted: bool) -> Iterator[None]:
    """Our terminal hands every key on, Ctrl-C included."""
    if not wanted:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _feed(channel: Channel, *, with_tty: bool) -> None:
    with contextlib.suppress(OSError, OhsandboxError):  # the command has ended, or we have no stdin
        while data := os.read(0, READ_BYTES):
            channel.write(data)
    with contextlib.suppress(OSError, OhsandboxError):
        channel.write(b"\x04") if with_tty else channel.close_stdin()


def _relay(channel: Channel, timeout_s: float | None, *, raw: bool) -> int:
    """Copy output until the command ends; its exit code."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    writers = {stream: _StreamWriter(stream, raw=raw) for stream in Stream}

    def left_s() -> float | None:
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    try:
        while chunks := channel.read(left_s()):
            for stream, data in chunks:
                writers[stream].write(data)
        if chunks is not None:  # it ended
            for writer in writers.values():
                writer.finish()
            return channel.wait(left_s())
    except TimeoutError:
        pass
    channel.kill()
    say(f"the command was killed after {timeout_s:g} s (--timeout).")
    return TIMED_OUT


class _StreamWriter:
    """One of our output streams."""

    def __init__(self, stream: Stream, *, raw: bool) -> None:
        self._descriptor = int(stream)
        self._is_cleaned = not raw and os.isatty(self._descriptor)
        self._held = b""

    def write(self, data: bytes) -> None:
        """All of data, or what of it can be shown already."""
        if self._is_cleaned:
            data = self._held + data
            count = whole_prefix(data)
            data, self._held = _cleaned(data[:count]), data[count:]
        self._write_all(data)

    def finish(self) -> None:
        """What was held back."""
        self._write_all(_cleaned(self._held))

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def _cleaned(data: bytes) -> bytes:
    return sanitize_for_terminal(data.decode("utf-8", "surrogateescape")).encode("utf-8", "replace")
