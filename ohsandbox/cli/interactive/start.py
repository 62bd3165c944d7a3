"""The start of an interactive session: the screen is shown before anything slow is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ohsandbox.cli.entrypoint import importing
from ohsandbox.cli.prompts.prompt import person_present, register_drawing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.commands.run import RunRequest
    from ohsandbox.cli.options.per_command import RunOptions
    from ohsandbox.cli.options.shared import SandboxOptions

_HISTORY_NAME = "history.jsonl"


def can_be_interactive(what: RunOptions) -> bool:
    """Return whether a person is at a terminal that can move its cursor."""
    return what.task != "-" and person_present(no_tui=what.headless) and not _is_dumb()


def run_interactive(what: RunOptions, where: SandboxOptions) -> int:
    """Run `ohsandbox run` at a terminal; return the exit code of the last run."""

    def begin(work: Callable[[RunRequest], int]) -> int:
        from ohsandbox.cli.commands.run import run_task  # noqa: PLC0415 - after the first paint

        return run_task(what, where, work=work)

    return on_screen(begin)


def on_screen(begin: Callable[[Callable[[RunRequest], int]], int]) -> int:
    """Call begin with a function that works on the interactive screen; return the exit code."""
    with importing():
        from ohsandbox.cli.interactive.input import InputHistory  # noqa: PLC0415 - only at a terminal, after the first paint
        from ohsandbox.cli.interactive.screen import Screen  # noqa: PLC0415 - only at a terminal, after the first paint
        from ohsandbox.paths import state_dir  # noqa: PLC0415 - only at a terminal, after the first paint

    with (
        Screen(history=InputHistory(state_dir() / _HISTORY_NAME, _masked)) as screen,
        register_drawing(screen.suspended),
    ):
        screen.show_status("starting")
        with importing():
            from ohsandbox.cli.interactive.interactive_session import InteractiveSession  # noqa: PLC0415 - only at a terminal, after the first paint

        screen.show_status("")
        session = InteractiveSession(screen)
        code = begin(session.work)
    if unapplied := session.unapplied:
        from ohsandbox.cli.commands.time_travel import offer_changes  # noqa: PLC0415 - few sessions have any

        offer_changes(unapplied)
    return code


def _masked(text: str) -> str:
    from ohsandbox.cli.rendering.text import masked  # noqa: PLC0415 - only at a terminal, after the first paint

    return masked(text)


def _is_dumb() -> bool:
    return os.environ.get("TERM", "") in {"", "dumb", "unknown"}
