"""`ohsandbox run` and `demo`: an agent in a sandbox; the sandbox starts while this process still imports."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.cli.entrypoint import importing
from ohsandbox.cli.options.per_command import RunOptions
from ohsandbox.cli.options.typer_options import CHOOSE
from ohsandbox.cli.prompts.prompt import person_present, pick, read_task
from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.sandbox.runtime import make_runtime, placed
from ohsandbox.cli.session.resume import ResumedConversation, find_resumed
from ohsandbox.cli.settings.model import is_offline, read_settings, with_kept_server, with_model_of
from ohsandbox.cli.settings.model_check import check_model_name
from ohsandbox.cli.settings.project import use_project
from ohsandbox.cli.settings.run_settings import complete, settings_of
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.paths import check_apart, conversations_dir, new_id
from ohsandbox.settings import Settings
from ohsandbox.tool_flags import ToolFlags

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.runtime.results import PullProgress

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
    settings = complete(settings, person=person_present(no_tui=what.headless), file=what.settings)
    if told := check_model_name(settings):
        say(f"warning: {told}")
    task = read_task() if what.task == "-" else what.task
    what = replace(what, task=task)
    early = begin_early(what, settings, where) if resumed is None else None
    with early or contextlib.nullcontext() as begun:
        return (work or _work)(RunRequest(what, settings, where, resumed, begun))


def _settings_of_resumed(settings: Settings, what: RunOptions, resumed: ResumedConversation) -> Settings:
    """Return the settings with the model and the policy of the resumed conversation, unless options name others."""
    if what.model is None:
        given = {"api_key": what.api_key, "base_url": what.base_url, "price": what.price}
        settings = with_model_of(settings, resumed.model).with_flags(**given)
        settings = with_kept_server(settings, conversations_dir() / resumed.id)
    if what.confirm is None:
        from ohsandbox.cli.commands import confirm  # noqa: PLC0415 - as `_work`

        settings = settings.with_flags(confirm=confirm.kept_policy(conversations_dir() / resumed.id))
    return settings


def _chosen(what: RunOptions) -> str:
    """Let the person choose a conversation from a list; return its id.

    Raises:
        UsageError: nobody is there to choose, nothing can be resumed, or the person left.
    """
    from ohsandbox.cli.session.travel import resumable, row_of  # noqa: PLC0415 - as `_work`

    if not person_present(no_tui=what.headless):
        raise UsageError("--resume needs an ID where nobody can choose. --autoresume takes the newest.")
    if not (found := resumable()):
        raise UsageError("There is no conversation to resume. `ohsandbox run` begins one.")
    chosen = pick("Resume which conversation? This directory's come first.", [row_of(one) for one in found])
    if chosen is None:
        raise UsageError("No conversation was chosen.")
    return found[chosen].id


def run_demo(asked: SandboxOptions, *, no_tui: bool, work: Callable[[RunRequest], int] | None = None) -> int:
    """Run the script in a fresh sandbox; return 0 only if each step gives the expected result. work: see `run_task`."""
    own = read_settings(None)
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle, network="none")
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        where = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(where.with_settings(settings))
        return (work or _work)(RunRequest(RunOptions(task=_DEMO_TASK, no_tui=no_tui), settings, where))


def _work(run: RunRequest) -> int:
    with importing():
        from ohsandbox.cli.commands.plain_run import work_plainly  # noqa: PLC0415 - the sandbox starts meanwhile
    return work_plainly(run)


# --- a sandbox that starts early ------------------------------------------------------------------

_ASKED_S = 0.2
"""At most so long nothing else is done: until the engine is asked to start the container each import here delays that,
as threads take turns; from then on it works alone, for some 0.25 s."""
_PROGRESS_S = 0.1
"""Interval, in seconds, at which the progress of a pull is shown."""


class EarlyStart:
    """A `with` block that starts the sandbox of a new conversation; an unclaimed sandbox is removed at the end."""

    def __init__(self, options: SandboxOptions) -> None:
        """Store the options, already completed from the settings; the engine is not contacted yet."""
        self.began = time.monotonic()
        self.options = options
        self.conversation_id = new_id()
        self.runtime = make_runtime(options, self.conversation_id, progress=self._note)
        self._progress: PullProgress | None = None
        self._error: BaseException | None = None
        self._is_asked = threading.Event()
        self._is_taken = False
        self._thread = threading.Thread(target=self._start, name="ohsandbox-early-start", daemon=True)

    def __enter__(self) -> Self:
        self.runtime.while_starting = self._is_asked.set
        self._thread.start()
        self._is_asked.wait(_ASKED_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_taken:
            return
        if self.runtime.start_cancel is not None:
            self.runtime.start_cancel.set()
        self._thread.join()
        self.runtime.close()

    def finish(self, show: Callable[[PullProgress], None]) -> None:
        """Wait until the first process of the sandbox runs; the caller must close the sandbox from then on.

        show is called in this thread with the progress of a pull.

        Raises:
            OhsandboxError: as `Runtime.start`.
        """
        while self._thread.is_alive():
            self._thread.join(_PROGRESS_S)
            if self._progress is not None and self._thread.is_alive():
                show(self._progress)
        if self._error is not None:
            raise self._error
        self._is_taken = True

    def _note(self, progress: PullProgress) -> None:
        self._progress = progress

    def _start(self) -> None:
        try:
            self.runtime.start()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
            return
        finally:
            self._is_asked.set()
        with contextlib.suppress(OhsandboxError):  # the next process says why
            self.runtime.snippet(b":")  # whoever looks at files finds the first process, a worker


def begin_early(what: RunOptions, settings: Settings, where: SandboxOptions) -> EarlyStart | None:
    """Return the sandbox of a new conversation, to be entered; None if a later check could still refuse the run.

    So it is for a task alone, in a new container of an image that ends with the run, without what is read or checked
    later: secrets, instructions, MCP servers, a choice of tools, a limit on cost, a script in a model's place.

    Raises:
        UsageError: one of the workspace and the conversation's directory contains the other.
    """
    full = where.with_settings(settings)
    given = (
        full.attach, full.keep, full.copies, full.branch, full.build, full.services,
        settings.secrets, settings.instructions, settings.mcp_config, settings.max_cost_usd,
    )  # fmt: skip
    if what.task is None or any(given) or settings.tools != ToolFlags() or is_offline(settings.model or ""):
        return None
    found = EarlyStart(full)
    if found.runtime.start_cancel is None:  # it takes no time worth a thread
        return None
    if full.workspace is not None:
        check_apart(conversations_dir() / found.conversation_id, full.workspace)
    return found
