"""`ohsandbox exec` and `shell`: run a program in a sandbox with our streams or terminal, and return its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.prompts.prompt import person_present
from ohsandbox.cli.rendering.text import hide, progress_text, safe_line, say
from ohsandbox.cli.sandbox.network_words import blocked_reported_at_end
from ohsandbox.cli.sandbox.runtime import full_options, make_runtime, place_of, print_kept, started_runtime
from ohsandbox.cli.sandbox.sandbox_ports import opened_ports
from ohsandbox.cli.sandbox.terminal import (
    READ_BYTES,
    Countdown,
    attach_terminal,
    killed_on_error,
    terminal_argv,
    terminal_environment,
    terminal_size,
    write_to_terminal,
)
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.channel import KILLED, Stream
from ohsandbox.runtime.shell.terminal import sanitize_for_terminal, whole_prefix
from ohsandbox.secrets import Secrets, parse_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.cli.options.per_command import ExecOptions, ShellOptions
    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.channel import Channel
    from ohsandbox.runtime.results import PullProgress

TIMED_OUT = 124
"""Exit code of a timeout, as in timeout(1) of coreutils."""
_PIPES_SCRIPT = 'exec "$@"'
"""A shell around the command makes the exit code of a missing program 127 on every backend."""


def run_command(command: Sequence[str], options: ExecOptions, where: SandboxOptions) -> int:
    """Run the command; return its exit code, or 124 if options.timeout_s ended it.

    Our stdin is its stdin unless that is a terminal. With a terminal of its own it owns ours, as with ssh; without one,
    what it prints reaches a terminal cleaned of escapes, and a file or pipe byte by byte.
    """
    env = options.checked_environment(where)
    full, _ = full_options(where, None, command="exec", person=person_present())
    runtime = make_runtime(full, progress=_build_step_printer())
    with_tty = sys.stdin.isatty() and sys.stdout.isatty() if options.tty is None else options.tty
    argv = ["/bin/sh", "-c", _PIPES_SCRIPT, "sh", *command]
    if with_tty:
        argv, env = terminal_argv(command), terminal_environment() | env
    if full.copies and sys.stderr.isatty():
        say(f"The command works on a copy of {full.workspace}, which is deleted when it ends.")
    with (
        started_runtime(runtime, warn=say, setup=full),
        blocked_reported_at_end(runtime, "ohsandbox exec --allow", say),
        opened_ports(runtime, full, say),
        runtime.open_channel(argv, tty=with_tty, env=env, user=options.user) as channel,
        killed_on_error(channel),
    ):
        try:
            code = (attach_terminal if with_tty else _relay)(channel, options.timeout_s)
        except TimeoutError:
            channel.kill()
            say(f"the command was killed after {options.timeout_s:g} s (--timeout).")
            return TIMED_OUT
        if code == KILLED:
            runtime.check_alive()
        return code


def _build_step_printer() -> Callable[[PullProgress], None]:
    """Print each step of a build once; the progress of a pull is not printed between a command's own lines."""
    told = 0

    def print_step(progress: PullProgress) -> None:
        nonlocal told
        if progress.status == "building" and progress.layers_done > told:
            told = progress.layers_done
            say(progress_text(progress))

    return print_step


def _feed(channel: Channel) -> None:
    with contextlib.suppress(OSError, OhsandboxError):  # the command has ended, or we have no stdin
        while data := os.read(0, READ_BYTES):
            channel.write(data)
    with contextlib.suppress(OSError, OhsandboxError):
        channel.close_stdin()


def _relay(channel: Channel, timeout_s: float | None) -> int:
    """Copy input and output until the command ends and return its exit code; raise TimeoutError after timeout_s."""
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
    """Writes a program's output to one of our output streams."""

    def __init__(self, stream: Stream) -> None:
        self._descriptor = int(stream)
        self._is_cleaned = os.isatty(self._descriptor)
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write data, except for a trailing part that cannot be shown yet."""
        if self._is_cleaned:
            data = self._held + data
            count = whole_prefix(data)
            data, self._held = _cleaned(data[:count]), data[count:]
        write_to_terminal(self._descriptor, data)

    def finish(self) -> None:
        """Write the part that was held back."""
        write_to_terminal(self._descriptor, _cleaned(self._held))


def _cleaned(data: bytes) -> bytes:
    return sanitize_for_terminal(data.decode("utf-8", "surrogateescape")).encode("utf-8", "replace")


# --- ohsandbox shell ------------------------------------------------------------------------------

_QUIET = "PAGER GIT_PAGER GIT_TERMINAL_PROMPT DEBIAN_FRONTEND PIP_NO_INPUT"
"""Variables that keep an agent's commands from asking and paging; they are unset when a person is at the terminal."""
_PREPARE = """
unset {quiet}
[ -n "$SHELL" ] || SHELL=$(command -v bash || echo /bin/sh)
export SHELL
"""
_A_SHELL = ("/bin/sh", "-c", 'exec "$SHELL"')
"""Not a login shell, because /etc/profile of Debian and Alpine replaces the image's PATH."""


def open_terminal(program: Sequence[str], options: ShellOptions, where: SandboxOptions) -> int:
    """Run the program, or a shell, at our terminal until it ends; return its exit code.

    Raises:
        UsageError: our stdin or stdout is not a terminal, or an option is wrong; nothing ran.
        SandboxUnavailable: the sandbox does not start, or it is gone.
    """
    if missing := [name for name in ("stdin", "stdout") if not getattr(sys, name).isatty()]:
        raise UsageError(
            f"`ohsandbox shell` needs a terminal, and {missing[0]} is not a terminal. "
            "Use `ohsandbox exec -- PROGRAM`, and `exec -t` for a program that needs a terminal."
        )
    full, settings = full_options(where, options.settings, command="shell", person=True)
    secrets = Secrets.load(settings.secrets | parse_flags(options.secrets or ()))
    hide(secrets.masker)
    own = options.checked_environment(where)
    for warning in secrets.warnings:
        say(f"warning: {warning}")
    runtime, began = make_runtime(full, progress=lambda progress: _status(progress_text(progress))), time.monotonic()
    with started_runtime(runtime, warn=say, setup=full, tell=_print_setup_line), opened_ports(runtime, full, say):
        _status("")
        say(f"{place_of(runtime, full)}, ready in {time.monotonic() - began:.1f} s")
        _print_terms(full, secrets)
        quiet = " ".join(name for name in _QUIET.split() if name not in own)
        argv = terminal_argv(program or _A_SHELL, prepare=_PREPARE.format(quiet=quiet))
        environment = terminal_environment() | secrets.environment() | own
        with (
            blocked_reported_at_end(runtime, "ohsandbox shell --allow", say),
            runtime.open_channel(argv, tty=True, env=environment, user=options.user) as channel,
            killed_on_error(channel),
        ):
            code = attach_terminal(channel)
        if code == KILLED:
            runtime.check_alive()
        _print_end(runtime, full)
    return code


def _print_terms(full: SandboxOptions, secrets: Secrets) -> None:
    """Print what a person should know before the program takes over the screen."""
    if secrets.names:
        say(
            f"Secrets in its environment: {', '.join(secrets.names)}. What prints one shows it: a screen is not masked."
        )
    if full.copies:
        fate = "stays in the container" if full.keep else "is deleted with the container (--keep keeps both)"
        say(f"It works on a copy of {full.workspace}, which {fate} at the end.")


def _print_end(runtime: Runtime, full: SandboxOptions) -> None:
    if notices := runtime.take_notices():
        say(notices)
    print_kept(runtime, full, "shell", say)


def _print_setup_line(line: str) -> None:
    _status("")
    say(line)


def _status(text: str) -> None:
    """Show the current step on a line of our terminal, which the next step overwrites."""
    if sys.stderr.isatty():
        columns, _ = terminal_size()
        os.write(sys.stderr.fileno(), f"\r\x1b[K{safe_line(text, limit_chars=columns - 1)}".encode())
