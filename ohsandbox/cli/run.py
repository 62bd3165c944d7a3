"""`ohsandbox run`: a task, or a talk, for an agent in a sandbox."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.agent import Agent
from ohsandbox.cli import approvals
from ohsandbox.cli.confirm import answer_at_terminal, keep_policy, kept_policy, waiting_line
from ohsandbox.cli.entrypoint import FAILED, INTERRUPTED, WAITING, explain
from ohsandbox.cli.mcp_servers import with_mcp_file
from ohsandbox.cli.model import complete, model_config, with_model_of
from ohsandbox.cli.options import SandboxOptions
from ohsandbox.cli.presenter import Presenter
from ohsandbox.cli.prompt import confirm, open_prompt, person_present, read_task
from ohsandbox.cli.rendering.masking import open_secrets
from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.cli.rendering.view import open_view
from ohsandbox.cli.resume import ResumedConversation, find_resumed, leave_on_exit, save_options
from ohsandbox.cli.runtime import make_runtime, progress_text, started, tell_copy, tell_news
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.policy import policy_of
from ohsandbox.errors import EngineUnavailable, SandboxUnavailable, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import open_model
from ohsandbox.paths import check_apart, conversations_dir
from ohsandbox.persistence.layout import new_id
from ohsandbox.secrets import parse_flags
from ohsandbox.settings import Settings
from ohsandbox.tools.flags import ToolFlags

if TYPE_CHECKING:
    from ohsandbox.cli.options import RunOptions
    from ohsandbox.cli.prompt import Prompt
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.runtime.base import Runtime

HELP = (
    "/exit or Ctrl-D leaves, Ctrl-C stops what the agent does, /approvals lists what you allowed from now on, "
    "/help shows this. Anything else goes to the agent."
)


def run_task(what: RunOptions, where: SandboxOptions) -> int:
    """Run the task, or ask for messages until the person leaves; the exit code of the last run.

    Raises:
        OhsandboxError: whatever ended it.
        KeyboardInterrupt: the person left by Ctrl-C.
    """
    if what.autoresume and what.resume is not None:
        raise UsageError("--resume names a conversation, and --autoresume takes the newest. Give one of them.")
    if what.task is not None and not what.task.strip():
        raise UsageError("TASK is empty. Write what to do, or leave it out to be asked.")
    settings = _settings(what)
    resumed = None
    if what.autoresume or what.resume is not None:
        resumed = find_resumed(what.resume, where)
        where, settings = resumed.where, with_model_of(settings, resumed.model)
        if what.confirm is None:
            settings = settings.with_flags(confirm=kept_policy(conversations_dir() / resumed.id))
    where = where.checked()
    make_runtime(where.with_settings(settings))  # what is wrong with the options is said before anything is asked
    person = person_present(no_tui=what.no_tui)
    settings = complete(settings, person=person)
    task = read_task() if what.task == "-" else what.task
    return work(
        task,
        settings,
        where,
        no_tui=what.no_tui,
        tool_choice=what.tool_choice,
        resumed=resumed,
        talks=what.talks,
    )


def work(
    task: str | None,
    settings: Settings,
    where: SandboxOptions,
    *,
    no_tui: bool,
    tool_choice: str = "auto",
    resumed: ResumedConversation | None = None,
    talks: bool = True,
) -> int:
    """The run itself, with settings that are complete. task None asks for messages; resumed is what is resumed.

    What is resumed ends with its run where it does not talk.

    Raises:
        OhsandboxError: whatever ended it.
    """
    view = open_view(no_tui=no_tui)
    secrets = open_secrets(settings, view)
    model = open_model(model_config(settings).model_copy(update={"stream": view.wants_stream}))
    model.preload()
    if model.note:
        view.info(f"{model.name}: {model.note}")
    person = person_present(no_tui=no_tui)
    tools = None if settings.tools == ToolFlags() else settings.tools.names()
    conversation = Conversation(
        Agent(
            model, tools, system_prompt_extensions=instructions(settings.instructions), mcp_config=settings.mcp_config
        ),
        conversation_id=new_id() if resumed is None else resumed.id,
        settings=settings,
        tool_choice=tool_choice,
        secrets=secrets,
    )
    if where.copies and not settings.checkpoints:
        raise UsageError('--copy brings changes back by checkpoints, and "checkpoints" is false. Switch them on.')
    if where.workspace is not None and where.backend.isolated and not where.copies:
        check_apart(conversation.directory, where.workspace)  # before a sandbox is started
    with contextlib.ExitStack() as stack:
        if resumed is not None:
            stack.callback(conversation.close)
            conversation.start()  # a log that is open elsewhere or damaged is told before any sandbox is touched
            view.info(f"Conversation {resumed.id} goes on: {resumed.title or 'no title'}")
        runtime, full = _enter_sandbox(stack, view, settings, where, conversation, person=person)
        conversation.runtime = runtime
        policy = settings.confirm or _usual_confirmation(runtime, person=person)
        conversation.confirmation = policy_of(policy)
        answer = answer_at_terminal if person else None
        presenter = Presenter(conversation, view, echo=task is not None or not sys.stdin.isatty(), answer=answer)
        stack.push(leave_on_exit(presenter, runtime, view, stays=bool(full.keep or full.attach)))
        stack.callback(_tell_waiting, presenter)
        stack.callback(presenter.close)
        stack.callback(presenter.tell_where)
        if where.copies:
            tell_copy(view, runtime, where)
            stack.callback(_tell_apply, view, presenter, where)
        conversation.start()
        keep_policy(conversation.directory, policy)
        if runtime.resumed is None or runtime.resumed.how != "same":
            save_options(conversation.directory, full, runtime)
        if task is not None:
            return _code_after(presenter.run(task), presenter)
        code = 0 if resumed is None else _continue(presenter, person=person and talks)
        return _talk(presenter, open_prompt(), view) if talks and not code else code


def _settings(what: RunOptions) -> Settings:
    if what.api_key:
        _warn("--api-key is visible to every user of this machine (`ps`). Prefer the settings or the environment.")
    settings = Settings.load(
        what.settings,
        model=what.model,
        api_key=what.api_key,
        base_url=what.base_url,
        max_iterations=what.max_iterations,
        max_time_s=what.max_time_s,
        max_tokens=what.max_tokens,
        max_cost_usd=what.max_cost_usd,
        confirm=what.confirm,
    )
    for warning in settings.warnings:
        _warn(warning)
    return with_mcp_file(settings, what.mcp_config).with_flags(
        tools=settings.tools.switched(on=what.enable or (), off=what.disable or ()),
        secrets=settings.secrets | parse_flags(what.secrets or ()) or None,
        instructions=None if what.instructions is None else str(what.instructions),
    )


def _warn(text: str) -> None:
    print(f"ohsandbox: warning: {safe_line(text, limit_chars=1000)}", file=sys.stderr, flush=True)


def _enter_sandbox(
    stack: contextlib.ExitStack,
    view: View,
    settings: Settings,
    where: SandboxOptions,
    conversation: Conversation,
    *,
    person: bool,
) -> tuple[Runtime, SandboxOptions]:
    """A started sandbox that the stack closes. Without an engine a person is asked whether this host will do."""
    began = time.monotonic()
    full = where.with_settings(settings)
    view.status("starting the sandbox")
    runtime = make_runtime(
        full, conversation_id=conversation.id, progress=lambda progress: view.status(progress_text(progress))
    )
    try:
        stack.enter_context(started(runtime, past=conversation.resume_state, warn=view.warn))
    except EngineUnavailable:
        view.status("")
        if not person or conversation.resume_state.has_worked or where.runtime is not None or where.attach is not None:
            raise
        if not confirm("No Docker engine answers. Work on THIS HOST instead, with no container around the agent?"):
            raise
        host = SandboxOptions(runtime="cli", workspace=where.workspace, host_workdir=where.host_workdir)
        runtime = stack.enter_context(started(make_runtime(host), warn=view.warn))
        full = replace(full, runtime="cli")
    finally:
        view.status("")
    view.info(f"{_place(runtime, full)}, ready in {time.monotonic() - began:.1f} s")
    if full.keep and "keep" in full.backend.options:
        stack.callback(_tell_kept, view, getattr(runtime, "name", runtime.id))
    return runtime, full


def _tell_apply(view: View, presenter: Presenter, where: SandboxOptions) -> None:
    if presenter.has_worked:
        view.info(f"It worked on a copy. See what it changed: ohsandbox diff {presenter.conversation.id}")
        target = safe_line(Path(where.workspace or ".").resolve())
        view.info(f"Bring that to {target}: ohsandbox apply {presenter.conversation.id}")


def _place(runtime: Runtime, full: SandboxOptions) -> str:
    if not runtime.isolated:
        return f"This host, in {runtime.workdir}"
    name = getattr(runtime, "name", "") or runtime.id
    if full.attach:
        return f"Container {name}, attached"
    return f"Container {name} of {full.image}, network {full.network}"


def _tell_kept(view: View, name: str) -> None:
    view.info(f"Container {name} is kept. Go on in it: ohsandbox run --attach {name}")
    view.info(f"Remove it: docker rm -f {name} (or all that are kept: ohsandbox gc --kept)")


def _continue(presenter: Presenter, *, person: bool) -> int:
    """Do what the conversation was cut off from. A run that a person had stopped waits for what the person says."""
    if person and presenter.conversation.status() is ConversationStatus.CANCELED:
        return 0
    status = presenter.go_on()
    if person:
        _code_in_talk(status, presenter)
        return 0
    return _code_after(status, presenter)


def _talk(presenter: Presenter, prompt: Prompt, view: View) -> int:
    """Messages until the person leaves; the code of the last run, where stopping one is no failure."""
    if sys.stdin.isatty():
        view.info(HELP)
    code, interrupted = 0, not sys.stdin.isatty()
    while True:
        try:
            text = prompt.ask().strip()
        except EOFError:
            return code
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            view.info("Ctrl-C again leaves.")
            continue
        if text == "/exit":
            return code
        if text == "/help":
            view.info(HELP)
        elif text.split()[:1] == [approvals.COMMAND]:
            approvals.take_command(presenter.conversation, text, view.info)
        elif text:
            status = presenter.run(text)
            interrupted = status is ConversationStatus.CANCELED
            code = _code_in_talk(status, presenter)
            tell_news(presenter.conversation.runtime, view.warn)


def _usual_confirmation(runtime: Runtime, *, person: bool) -> str:
    """What asks where nobody said: in a container its wall is the answer, and on this host somebody must be there."""
    return "risky" if person and not runtime.isolated else "never"


def _code_in_talk(status: ConversationStatus, presenter: Presenter) -> int:
    """What the run came to; the person reads of an error and may go on, unless the sandbox is gone."""
    error = presenter.conversation.error
    if isinstance(error, SandboxUnavailable):
        raise error
    if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        return WAITING
    if status is not ConversationStatus.ERROR:
        return 0
    return explain(error) if error is not None else FAILED


def _tell_waiting(presenter: Presenter) -> None:
    if presenter.conversation.status() is ConversationStatus.WAITING_FOR_CONFIRMATION:
        print(f"ohsandbox: {waiting_line(presenter.conversation)}", file=sys.stderr, flush=True)


def _code_after(status: ConversationStatus, presenter: Presenter) -> int:
    """The exit code of a single run.

    Raises:
        BaseException: what ended it with ERROR, so that it is explained once all is cleaned up.
    """
    error = presenter.conversation.error
    if status is ConversationStatus.CANCELED:
        return INTERRUPTED
    if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        return WAITING
    if status is ConversationStatus.ERROR and error is not None:
        raise error
    return FAILED if status in {ConversationStatus.ERROR, ConversationStatus.RUNNING} else 0


TASK = "Write a small Python module that merges overlapping intervals. Test it, and show that it works."


def run_demo(asked: SandboxOptions, *, no_tui: bool) -> int:
    """Work the script through in a fresh sandbox; 0 only if everything in it went as it says.

    Raises:
        ScriptError: a command of the script gave another result than the script expects.
        OhsandboxError: as `run`.
    """
    own = Settings.load()
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        where = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(where.with_settings(settings))
        return work(TASK, settings, where, no_tui=no_tui)


MAX_BYTES = 64 * 1024
"""About 16,000 tokens, which every request carries."""


def instructions(file: str | None) -> list[str]:
    """The file's text, marked as what it is; nothing where no file is named.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 text, or is larger than MAX_BYTES.
    """
    if file is None:
        return []
    try:
        data = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"Instructions file {file!r} cannot be read: {error.strerror}. Name a text file.") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"Instructions file {file!r} has {len(data)} bytes, more than {MAX_BYTES}. Shorten it.")
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"Instructions file {file!r} is not UTF-8 text (byte {error.start}). Convert it.") from None
    return [f"# Instructions of the user\n{text}"] if text else []
