"""`ohsandbox run` and `demo`: an agent in a sandbox; the sandbox starts while this process still imports."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.entrypoint import importing
from ohsandbox.cli.options.per_command import RunOptions
from ohsandbox.cli.options.typer_options import CHOOSE
from ohsandbox.cli.prompts.prompt import person_present, pick, read_task
from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.sandbox.early_start import EarlyStart, begin_early
from ohsandbox.cli.sandbox.runtime import make_runtime, placed
from ohsandbox.cli.session.resume import ResumedConversation, find_resumed
from ohsandbox.cli.settings.model import read_settings, with_kept_server, with_model_of
from ohsandbox.cli.settings.model_check import check_model_name
from ohsandbox.cli.settings.project import use_project
from ohsandbox.cli.settings.run_settings import complete_settings, settings_of
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.options.shared import SandboxOptions

_DEMO_TASK = "Write a small Python module that merges overlapping intervals. Test it, and show that it works."


class RunRequest(NamedTuple):
    """The arguments of `run`, with complete settings."""

    what: RunOptions
    settings: Settings
    where: SandboxOptions
    resumed: ResumedConversation | None = None
    begun: EarlyStart | None = None
    """The sandbox, if it is starting already."""


def run_task(what: RunOptions, where: SandboxOptions, *, work: Callable[[RunRequest], int] | None = None) -> int:
    """Run the task, or ask for messages until the person leaves; return the exit code of the last run.

    work runs it on the interactive screen; None prints it block by block or line by line.
    """
    if what.autoresume and what.resume is not None:
        raise UsageError("--resume names a conversation, and --autoresume takes the newest. Give one of them.")
    if what.task is not None and not what.task.strip():
        raise UsageError("TASK is empty. Write what to do, or leave it out to be asked.")
    if what.as_json and what.quiet:
        raise UsageError(
            "--json and --quiet exclude each other: the last line of --json has the answer. Leave one out."
        )
    if what.port is not None and not what.view and not person_present(no_tui=what.headless):
        raise UsageError("--port needs --view, where nobody can type /view. Use both, or neither.")
    if what.talks and what.task is None and (what.as_json or what.quiet) and sys.stdin.isatty():
        if not (what.resume or what.autoresume):
            raise UsageError("--json and --quiet ask nothing, so they need a TASK, or messages on stdin.")
        what = replace(what, talks=False)
    if what.resume == CHOOSE:
        what = replace(what, resume=_chosen(what))
    resumed = find_resumed(what.resume, where) if what.autoresume or what.resume is not None else None
    where = where if resumed is None else resumed.where
    project = use_project(where, what.settings, person=person_present(no_tui=what.headless))
    settings = settings_of(what, project)
    if resumed is not None:
        settings = _settings_of_resumed(settings, what, resumed)
    where = (where if project is None else project.applied_to(where, is_resumed=resumed is not None)).checked()
    where = placed(where)
    make_runtime(where.with_settings(settings))  # what is wrong with the options is said before anything is asked
    settings = complete_settings(settings, person=person_present(no_tui=what.headless), file=what.settings)
    if warning := check_model_name(settings):
        say(f"warning: {warning}")
    task = read_task() if what.task == "-" else what.task
    what = replace(what, task=task)
    early = begin_early(what, settings, where) if resumed is None else None
    with early or contextlib.nullcontext() as early_start:
        return (work or _work)(RunRequest(what, settings, where, resumed, early_start))


def _settings_of_resumed(settings: Settings, options: RunOptions, resumed: ResumedConversation) -> Settings:
    """Return the settings with the model and the policy of the resumed conversation, unless options name others."""
    if options.model is None:
        model_flags = {"api_key": options.api_key, "base_url": options.base_url, "price": options.price}
        settings = with_model_of(settings, resumed.model).with_flags(**model_flags)
        settings = with_kept_server(settings, conversations_dir() / resumed.id)
    if options.confirm is None:
        from ohsandbox.cli.session.approvals import kept_policy  # noqa: PLC0415 - slow, and the sandbox starts meanwhile

        settings = settings.with_flags(confirm=kept_policy(conversations_dir() / resumed.id))
    return settings


def _chosen(options: RunOptions) -> str:
    """Let the person choose a conversation from a list; return its id.

    Raises:
        UsageError: nobody is there to choose, nothing can be resumed, or the person left.
    """
    from ohsandbox.cli.session.travel import resumable, row_of  # noqa: PLC0415 - slow, and the sandbox starts meanwhile

    if not person_present(no_tui=options.headless):
        raise UsageError("--resume needs an ID where nobody can choose. --autoresume takes the newest.")
    if not (conversations := resumable()):
        raise UsageError("No conversation can be resumed. `ohsandbox run` begins one.")
    chosen = pick(
        "Resume which conversation? This directory's come first.",
        [row_of(conversation) for conversation in conversations],
    )
    if chosen is None:
        raise UsageError("No conversation was chosen. Use --resume ID, or leave --resume out for a new one.")
    return conversations[chosen].id


def run_demo(asked: SandboxOptions, *, no_tui: bool, work: Callable[[RunRequest], int] | None = None) -> int:
    """Run the script in a fresh sandbox; return 0 only if each step gives the expected result. work: see `run_task`."""
    own = read_settings(None)
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle, network="none")
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        sandbox_options = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(sandbox_options.with_settings(settings))
        return (work or _work)(RunRequest(RunOptions(task=_DEMO_TASK, no_tui=no_tui), settings, sandbox_options))


def _work(run: RunRequest) -> int:
    with importing():
        from ohsandbox.cli.commands.plain_run import run_plain  # noqa: PLC0415 - slow, and the sandbox starts meanwhile
    return run_plain(run)
