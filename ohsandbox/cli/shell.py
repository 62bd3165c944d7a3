"""`ohsandbox shell`: a terminal of any program in a sandbox: a shell, an editor, a coding agent."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.network_words import blocked_told_at_end
from ohsandbox.cli.ports import opened_ports
from ohsandbox.cli.project import use_project
from ohsandbox.cli.rendering.text import hide, progress_text, safe_line, say
from ohsandbox.cli.runtime import check_placed, make_runtime, place_of, started_runtime, tell_kept
from ohsandbox.cli.terminal import attend, killed_on_error, terminal_argv, terminal_environment, terminal_size
from ohsandbox.errors import UsageError
from ohsandbox.runtime.channel import KILLED
from ohsandbox.secrets import Secrets, parse_flags
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.cli.options_commands import ShellOptions
    from ohsandbox.runtime.base import Runtime

_QUIET = "PAGER GIT_PAGER GIT_TERMINAL_PROMPT DEBIAN_FRONTEND PIP_NO_INPUT"
"""Variables by which a sandbox keeps commands of an agent from asking and paging; here a person answers."""
_PREPARE = """
unset {quiet}
[ -n "$SHELL" ] || SHELL=$(command -v bash || echo /bin/sh)
export SHELL
"""
_A_SHELL = ("/bin/sh", "-c", 'exec "$SHELL"')
"""Not a login shell: the /etc/profile of Debian and Alpine replaces the PATH that the image sets."""


def open_terminal(program: Sequence[str], options: ShellOptions, where: SandboxOptions) -> int:
    """Run the program, or a shell, at our terminal until it ends; its exit code.

    Raises:
        UsageError: our stdin or stdout is no terminal, or an option is wrong; nothing ran.
        SandboxUnavailable: the sandbox does not start, or went away.
    """
    if missing := [name for name in ("stdin", "stdout") if not getattr(sys, name).isatty()]:
        raise UsageError(
            f"`ohsandbox shell` needs a terminal, and {missing[0]} is none. "
            "Use `ohsandbox exec -- PROGRAM` for a program that needs none, and `exec -t` to give it one all the same."
        )
    project = use_project(where, options.settings, person=True)
    settings = Settings.load(options.settings, project=project.layer if project else None)
    full = (project.applied_to(where) if project else where).checked().with_settings(settings)
    secrets = Secrets.load(settings.secrets | parse_flags(options.secrets or ()))
    hide(secrets.masker)
    own = options.checked_environment(where)
    for warning in (*settings.warnings, *secrets.warnings):
        say(f"warning: {warning}")
    check_placed(full, "shell")
    runtime, began = make_runtime(full, progress=lambda progress: _status(progress_text(progress))), time.monotonic()
    with started_runtime(runtime, warn=say, setup=full, tell=_tell_setup), opened_ports(runtime, full, say):
        _status("")
        say(f"{place_of(runtime, full)}, ready in {time.monotonic() - began:.1f} s")
        _tell_terms(full, secrets)
        quiet = " ".join(name for name in _QUIET.split() if name not in own)
        argv = terminal_argv(program or _A_SHELL, prepare=_PREPARE.format(quiet=quiet))
        environment = terminal_environment() | secrets.environment() | own
        with (
            blocked_told_at_end(runtime, "ohsandbox shell --allow", say),
            runtime.open_channel(argv, tty=True, env=environment, user=options.user) as channel,
            killed_on_error(channel),
        ):
            code = attend(channel)
        if code == KILLED:
            runtime.check_alive()
        _tell_end(runtime, full)
    return code


def _tell_terms(full: SandboxOptions, secrets: Secrets) -> None:
    """What a person should know before the program has the screen."""
    if secrets.names:
        say(
            f"Secrets in its environment: {', '.join(secrets.names)}. What prints one shows it: a screen is not masked."
        )
    if full.copies:
        fate = "stays in the container" if full.keep else "is deleted with the container (--keep keeps both)"
        say(f"It works on a copy of {full.workspace}, which {fate} at the end.")


def _tell_end(runtime: Runtime, full: SandboxOptions) -> None:
    if notices := runtime.take_notices():
        say(notices)
    tell_kept(runtime, full, "shell", say)


def _tell_setup(line: str) -> None:
    _status("")
    say(line)


def _status(text: str) -> None:
    """What goes on, on a line of our terminal that the next one replaces."""
    if sys.stderr.isatty():
        columns, _ = terminal_size()
        os.write(sys.stderr.fileno(), f"\r\x1b[K{safe_line(text, limit_chars=columns - 1)}".encode())
