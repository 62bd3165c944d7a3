"""`ohsandbox run` and `demo`: a task, or a talk, for an agent in a sandbox."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ohsandbox.cli import confirm
from ohsandbox.cli.copied import offer_changes
from ohsandbox.cli.model import read_settings, with_kept_server, with_model_of
from ohsandbox.cli.model_check import check_model_name
from ohsandbox.cli.options_commands import RunOptions
from ohsandbox.cli.picker import pick
from ohsandbox.cli.project import use_project
from ohsandbox.cli.prompt import open_prompt, person_present, read_task
from ohsandbox.cli.rendering.headless import AnswerView, JsonView, PipedView, open_view
from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.run_settings import complete, settings_of
from ohsandbox.cli.runtime import ResumedConversation, find_resumed, make_runtime, placed
from ohsandbox.cli.session import RunSession
from ohsandbox.cli.session_travel import resumable, row_of
from ohsandbox.cli.slash_commands import HELP_LINE, SessionContext, is_command, message_of, run_command
from ohsandbox.cli.typer_options import CHOOSE
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import conversations_dir
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.cli.rendering.view import View

DEMO_TASK = "Write a small Python module that merges overlapping intervals. Test it, and show that it works."


class Work(Protocol):
    """Does what `run` was asked for, with settings that are complete."""

    def __call__(
        self, what: RunOptions, settings: Settings, where: SandboxOptions, resumed: ResumedConversation | None
    ) -> int:
        """The exit code of the last run."""


def run_task(what: RunOptions, where: SandboxOptions, *, work: Work | None = None) -> int:
    """Run the task, or ask for messages until the person leaves; the exit code of the last run.

    work is what does it on the interactive screen; None prints blocks or lines, one below the other.
    """
    if what.autoresume and what.resume is not None:
        raise UsageError("--resume names a conversation, and --autoresume takes the newest. Give one of them.")
    if what.task is not None and not what.task.strip():
        raise UsageError("TASK is empty. Write what to do, or leave it out to be asked.")
    if what.as_json and what.quiet:
        raise UsageError(
            "--json and --quiet exclude each other: the last line of --json has the answer. Leave one out."
        )
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
    where = (where if project is None else project.over(where, is_resumed=resumed is not None)).checked()
    where = placed(where)
    make_runtime(where.with_settings(settings))  # what is wrong with the options is said before anything is asked
    settings = complete(settings, person=person_present(no_tui=what.headless), file=what.settings)
    if told := check_model_name(settings):
        say(f"warning: {told}")
    task = read_task() if what.task == "-" else what.task
    return (work or _work)(replace(what, task=task), settings, where, resumed)


def _settings_of_resumed(settings: Settings, what: RunOptions, resumed: ResumedConversation) -> Settings:
    """With the model that it asked last, and what it was asked about, where nothing else is said now."""
    if what.model is None:
        given = {"api_key": what.api_key, "base_url": what.base_url, "price": what.price}
        settings = with_model_of(settings, resumed.model).with_flags(**given)
        settings = with_kept_server(settings, conversations_dir() / resumed.id)
    if what.confirm is None:
        settings = settings.with_flags(confirm=confirm.kept_policy(conversations_dir() / resumed.id))
    return settings


def _chosen(what: RunOptions) -> str:
    """The id of the conversation that a person chooses from a list.

    Raises:
        UsageError: nobody is there to choose, nothing can be resumed, or the person left.
    """
    if not person_present(no_tui=what.headless):
        raise UsageError("--resume needs an ID where nobody can choose. --autoresume takes the newest.")
    if not (found := resumable()):
        raise UsageError("There is no conversation to resume. `ohsandbox run` begins one.")
    chosen = pick("Resume which conversation? This directory's come first.", [row_of(one) for one in found])
    if chosen is None:
        raise UsageError("No conversation was chosen.")
    return found[chosen].id


def run_demo(asked: SandboxOptions, *, no_tui: bool, work: Work | None = None) -> int:
    """Work the script through in a fresh sandbox; 0 only if everything in it went as it says. work is as in a run."""
    own = read_settings(None)
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle, network="none")
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        where = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(where.with_settings(settings))
        return (work or _work)(RunOptions(task=DEMO_TASK, no_tui=no_tui), settings, where, None)


def _work(what: RunOptions, settings: Settings, where: SandboxOptions, resumed: ResumedConversation | None) -> int:
    """The run itself, with settings that are complete; what is resumed ends with its run where it does not talk."""
    person = person_present(no_tui=what.headless)
    code = 0
    with RunSession(what, settings, _open_view(what), person=person) as session:
        session.open(where, resumed)
        if what.task is not None:
            code = session.say(what.task, in_talk=False)
        elif resumed is not None:
            code = session.go_on(in_talk=person and what.talks)
        if what.task is None and what.talks and not code:
            code = _talk(session, open_prompt())
    offer_changes(session.unapplied)
    return code


def _open_view(what: RunOptions) -> View:
    """At a terminal the screen. Else stdout is for the answer, which another program reads, and stderr for the rest."""
    if what.as_json:
        return JsonView()
    if what.quiet:
        return AnswerView()
    return PipedView() if not (what.no_tui or sys.stdout.isatty()) else open_view(no_tui=what.no_tui)


def _talk(session: RunSession, ask: Callable[[], str]) -> int:
    """Messages until the person leaves; the code of the last run, where stopping one is not a failure."""
    context = SessionContext(session)
    if sys.stdin.isatty():
        context.show(HELP_LINE)
    code, interrupted = 0, not sys.stdin.isatty()
    while True:
        try:
            text = ask()
        except EOFError:
            return code
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            context.show("Ctrl-C again leaves.")
            continue
        if is_command(text):
            if not run_command(context, text):
                return code
        elif text.strip():
            code = session.say(message_of(text).strip(), in_talk=True)
            interrupted = session.conversation.status() is ConversationStatus.CANCELED
