"""`ohsandbox exec`: one command in a sandbox, its streams ours, its exit code ours."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from ohsandbox.cli.model import read_settings
from ohsandbox.cli.network_words import blocked_told_at_end
from ohsandbox.cli.ports import opened_ports
from ohsandbox.cli.project import use_project
from ohsandbox.cli.prompt import person_present
from ohsandbox.cli.rendering.text import progress_text, say
from ohsandbox.cli.runtime import check_placed, make_runtime, started_runtime
from ohsandbox.cli.terminal import (
    READ_BYTES,
    Countdown,
    attend,
    killed_on_error,
    terminal_argv,
    terminal_environment,
    write_all,
)
from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.channel import KILLED, Stream
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal, whole_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.cli.options_commands import ExecOptions
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.results import PullProgress

TIMED_OUT = 124
"""As timeout(1) of coreutils has it."""
_PIPES_SCRIPT = 'exec "$@"'
"""A shell in between makes a missing program exit code 127 on every backend."""


def run_command(command: Sequence[str], options: ExecOptions, where: SandboxOptions) -> int:
    """Run the command; its exit code, or 124 if options.timeout_s ended it.

    Our stdin is its stdin unless that is a terminal. With a terminal of its own it owns ours, as with ssh; without one,
    what it prints reaches a terminal cleaned of escapes, and a file or pipe byte by byte.
    """
    env = options.checked_environment(where)
    project = use_project(where, None, person=person_present())
    where = (project.applied_to(where) if project else where).checked()
    settings = read_settings(None, project=project.layer if project else None)
    full = where.with_settings(settings)
    check_placed(full, "exec")
    runtime = make_runtime(full, progress=_tell_steps())
    with_tty = sys.stdin.isatty() and sys.stdout.isatty() if options.tty is None else options.tty
    argv = ["/bin/sh", "-c", _PIPES_SCRIPT, "sh", *command]
    if with_tty:
        argv, env = terminal_argv(command), terminal_environment() | env
    if where.copies and sys.stderr.isatty():
        say(f"The command works on a copy of {where.workspace}, which is deleted when it ends.")
    with (
        started_runtime(runtime, warn=say, setup=where),
        blocked_told_at_end(runtime, "ohsandbox exec --allow", say),
        opened_ports(runtime, full, say),
        runtime.open_channel(argv, tty=with_tty, env=env, user=options.user) as channel,
        killed_on_error(channel),
    ):
        try:
            code = (attend if with_tty else _relay)(channel, options.timeout_s)
        except TimeoutError:
            channel.kill()
            say(f"the command was killed after {options.timeout_s:g} s (--timeout).")
            return TIMED_OUT
        if code == KILLED:
            runtime.check_alive()
        return code


def _tell_steps() -> Callable[[PullProgress], None]:
    """Say each step of a build once; what a pull does is not told between a command's own lines."""
    told = 0

    def tell(progress: PullProgress) -> None:
        nonlocal told
        if progress.status == "building" and progress.layers_done > told:
            told = progress.layers_done
            say(progress_text(progress))

    return tell


def _feed(channel: Channel) -> None:
    with contextlib.suppress(OSError, OhsandboxError):  # the command has ended, or we have no stdin
        while data := os.read(0, READ_BYTES):
            channel.write(data)
    with contextlib.suppress(OSError, OhsandboxError):
        channel.close_stdin()


def _relay(channel: Channel, timeout_s: float | None) -> int:
    """Copy input and output until the command ends; its exit code, or TimeoutError."""
    if sys.stdin.isatty():  # it would be typed text that nobody asked for
        channel.close_stdin()
    else:
        threading.Thread(target=_feed, args=(channel,), daemon=True).start()
    writers = {stream: _StreamWriter(stream) for stream in Stream}
    clock = Countdown(timeout_s)
    while chunks := channel.read(clock.left_s):
        for stream, data in chunks:
            writers[stream].write(data)
        clock.check()
    if chunks is None:
        raise TimeoutError
    for writer in writers.values():
        writer.finish()
    return channel.wait(clock.left_s)


class _StreamWriter:
    """One of our output streams."""

    def __init__(self, stream: Stream) -> None:
        self._descriptor = int(stream)
        self._is_cleaned = os.isatty(self._descriptor)
        self._held = b""

    def write(self, data: bytes) -> None:
        """All of data, or what of it can be shown already."""
        if self._is_cleaned:
            data = self._held + data
            count = whole_prefix(data)
            data, self._held = _cleaned(data[:count]), data[count:]
        write_all(self._descriptor, data)

    def finish(self) -> None:
        """What was held back."""
        write_all(self._descriptor, _cleaned(self._held))


def _cleaned(data: bytes) -> bytes:
    return sanitize_for_terminal(data.decode("utf-8", "surrogateescape")).encode("utf-8", "replace")
