"""`ohsandbox run` and `demo`: a task, or a talk, for an agent in a sandbox."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.agent import Agent
from ohsandbox.cli import confirm
from ohsandbox.cli.entrypoint import FAILED, INTERRUPTED, WAITING, explain
from ohsandbox.cli.mcp_servers import with_mcp_file
from ohsandbox.cli.model import complete, read_settings, with_model_of
from ohsandbox.cli.options import RunOptions, SandboxOptions
from ohsandbox.cli.presenter import Presenter
from ohsandbox.cli.prompt import ask_yes_no, open_prompt, person_present, read_task
from ohsandbox.cli.rendering.text import hide, say
from ohsandbox.cli.rendering.view import open_view
from ohsandbox.cli.runtime import (
    ResumedConversation,
    find_resumed,
    leave_on_exit,
    make_runtime,
    place_of,
    progress_text,
    save_options,
    started,
    tell_copy,
    tell_kept,
    tell_news,
)
from ohsandbox.cli.skill_servers import ask_about_servers
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.policy import policy_of
from ohsandbox.errors import EngineUnavailable, SandboxUnavailable, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import open_model
from ohsandbox.paths import check_apart, conversations_dir
from ohsandbox.persistence.layout import new_id
from ohsandbox.secrets import Secrets, host_keys, parse_flags
from ohsandbox.settings import Settings
from ohsandbox.tools.tool_flags import ToolFlags

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.cli.rendering.view import View
    from ohsandbox.runtime.base import Runtime

HELP = (
    "/exit or Ctrl-D leaves, Ctrl-C stops what the agent does, /approvals lists what you allowed from now on, "
    "/help shows this. Anything else goes to the agent."
)
DEMO_TASK = "Write a small Python module that merges overlapping intervals. Test it, and show that it works."
MAX_INSTRUCTIONS_BYTES = 64 * 1024
"""About 16,000 tokens, which every request carries."""


def run_task(what: RunOptions, where: SandboxOptions) -> int:
    """Run the task, or ask for messages until the person leaves; the exit code of the last run."""
    if what.autoresume and what.resume is not None:
        raise UsageError("--resume names a conversation, and --autoresume takes the newest. Give one of them.")
    if what.task is not None and not what.task.strip():
        raise UsageError("TASK is empty. Write what to do, or leave it out to be asked.")
    settings = settings_of(what)
    resumed = None
    if what.autoresume or what.resume is not None:
        resumed = find_resumed(what.resume, where)
        where, settings = resumed.where, with_model_of(settings, resumed.model)
        if what.confirm is None:
            settings = settings.with_flags(confirm=confirm.kept_policy(conversations_dir() / resumed.id))
    where = where.checked()
    make_runtime(where.with_settings(settings))  # what is wrong with the options is said before anything is asked
    settings = complete(settings, person=person_present(no_tui=what.no_tui))
    task = read_task() if what.task == "-" else what.task
    return _work(replace(what, task=task), settings, where, resumed)


def run_demo(asked: SandboxOptions, *, no_tui: bool) -> int:
    """Work the script through in a fresh sandbox; 0 only if everything in it went as it says."""
    own = read_settings(None)
    settings = Settings(model="scripted:demo", image=own.image, ca_bundle=own.ca_bundle)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-demo-") as directory:
        where = replace(asked, host_workdir=Path(directory)).checked()
        make_runtime(where.with_settings(settings))
        return _work(RunOptions(task=DEMO_TASK, no_tui=no_tui), settings, where, None)


def settings_of(what: RunOptions) -> Settings:
    """The settings with what the options say; a key among them is warned of."""
    if what.api_key:
        advice = "Prefer the settings or the environment."
        say(f"warning: --api-key is visible to every user of this machine (`ps`). {advice}")
    names = "model", "api_key", "base_url", "max_iterations", "max_time_s", "max_tokens", "max_cost_usd"
    asking = "confirm", "skill_servers"
    settings = read_settings(what.settings, **{name: getattr(what, name) for name in (*names, *asking)})
    return with_mcp_file(settings, what.mcp_config).with_flags(
        tools=settings.tools.switched(on=what.enable or (), off=what.disable or ()),
        secrets=settings.secrets | parse_flags(what.secrets or ()) or None,
        instructions=None if what.instructions is None else str(what.instructions),
    )


def _work(what: RunOptions, settings: Settings, where: SandboxOptions, resumed: ResumedConversation | None) -> int:
    """The run itself, with settings that are complete; what is resumed ends with its run where it does not talk."""
    view = open_view(no_tui=what.no_tui)
    person = person_present(no_tui=what.no_tui)
    conversation = _make_conversation(settings, view, what.tool_choice, resumed)
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
        # where nobody said what asks: a container's wall is the answer, and on this host somebody must be there
        policy = settings.confirm or ("risky" if person and not runtime.isolated else "never")
        conversation.confirmation = policy_of(policy)
        echo = what.task is not None or not sys.stdin.isatty()
        answer = confirm.answer_at_terminal if person else None
        presenter = Presenter(conversation, view, echo=echo, answer=answer)
        stack.push(leave_on_exit(presenter, runtime, stays=bool(full.keep or full.attach)))
        stack.callback(confirm.tell_waiting, conversation)
        stack.callback(presenter.close)
        stack.callback(presenter.tell_where)
        if where.copies:
            tell_copy(view, runtime, where)
            stack.callback(_tell_apply, presenter, where)
        conversation.start()
        confirm.keep_policy(conversation.directory, policy)
        if person:
            ask_about_servers(conversation)
        if runtime.resumed is None or runtime.resumed.how != "same":
            save_options(conversation.directory, full, runtime)
        if what.task is not None:
            return _exit_code(presenter.run(what.task), presenter)
        code = 0 if resumed is None else _continue(presenter, in_talk=person and what.talks)
        return _talk(presenter, open_prompt()) if what.talks and not code else code


def _make_conversation(
    settings: Settings, view: View, tool_choice: str, resumed: ResumedConversation | None
) -> Conversation:
    secrets = Secrets.load(settings.secrets)
    key = settings.resolved_api_key()
    hide(secrets.hiding(host_keys() | ({"api_key": key} if key else {})).masker)
    for warning in secrets.warnings:
        view.warn(warning)
    if secrets.names:
        view.info(f"Secrets in the environment of commands: {', '.join(secrets.names)}")
    model = open_model(settings.llm_config().model_copy(update={"stream": view.wants_stream}))
    model.preload()
    if model.note:
        view.info(f"{model.name}: {model.note}")
    tools = None if settings.tools == ToolFlags() else settings.tools.names()
    prompt = instructions_of(settings.instructions)
    return Conversation(
        Agent(model, tools, system_prompt_extensions=prompt, mcp_config=settings.mcp_config),
        conversation_id=new_id() if resumed is None else resumed.id,
        settings=settings,
        tool_choice=tool_choice,
        secrets=secrets,
    )


def instructions_of(file: str | None) -> list[str]:
    """The file's text, marked as what it is; nothing where no file is named."""
    if file is None:
        return []
    what = f"Instructions file {file!r}"
    try:
        data = Path(file).expanduser().read_bytes()
        text = data.decode().strip()
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}. Name a text file.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text (byte {error.start}). Convert it.") from None
    if len(data) > MAX_INSTRUCTIONS_BYTES:
        raise UsageError(f"{what} has {len(data)} bytes, more than {MAX_INSTRUCTIONS_BYTES}. Shorten it.")
    return [f"# Instructions of the user\n{text}"] if text else []


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
    full, past = where.with_settings(settings), conversation.resume_state
    view.status("starting the sandbox")
    runtime = make_runtime(full, conversation.id, progress=lambda progress: view.status(progress_text(progress)))
    try:
        stack.enter_context(started(runtime, past=past, warn=view.warn))
    except EngineUnavailable:
        view.status("")
        if not person or past.has_worked or where.runtime is not None or where.attach is not None:
            raise
        if not ask_yes_no("No Docker engine answers. Work on THIS HOST instead, with no container around the agent?"):
            raise
        host = SandboxOptions(runtime="cli", workspace=where.workspace, host_workdir=where.host_workdir)
        runtime = stack.enter_context(started(make_runtime(host), warn=view.warn))
        full = replace(full, runtime="cli")
    finally:
        view.status("")
    view.info(f"{place_of(runtime, full)}, ready in {time.monotonic() - began:.1f} s")
    stack.callback(tell_kept, runtime, full, "run", view.info)
    return runtime, full


def _tell_apply(presenter: Presenter, where: SandboxOptions) -> None:
    if presenter.has_worked:
        tell, conversation_id = presenter.view.info, presenter.conversation.id
        tell(f"It worked on a copy. See what it changed: ohsandbox diff {conversation_id}")
        tell(f"Bring that to {Path(where.workspace or '.').resolve()}: ohsandbox apply {conversation_id}")


def _continue(presenter: Presenter, *, in_talk: bool) -> int:
    """Do what the conversation was cut off from. A run that a person had stopped waits for what the person says."""
    if in_talk and presenter.conversation.status() is ConversationStatus.CANCELED:
        return 0
    code = _exit_code(presenter.go_on(), presenter, in_talk=in_talk)
    return 0 if in_talk else code


def _talk(presenter: Presenter, ask: Callable[[], str]) -> int:
    """Messages until the person leaves; the code of the last run, where stopping one is not a failure."""
    tell = presenter.view.info
    if sys.stdin.isatty():
        tell(HELP)
    code, interrupted = 0, not sys.stdin.isatty()
    while True:
        try:
            text = ask().strip()
        except EOFError:
            return code
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            tell("Ctrl-C again leaves.")
            continue
        match text.split():
            case ["/exit"]:
                presenter.leave()
                return code
            case ["/help"]:
                tell(HELP)
            case [confirm.COMMAND, *arguments]:
                confirm.list_or_revoke_live(presenter.conversation, arguments, tell)
            case [_, *_]:
                status = presenter.run(text)
                interrupted = status is ConversationStatus.CANCELED
                code = _exit_code(status, presenter, in_talk=True)
                tell_news(presenter.conversation.runtime, presenter.view.warn)


def _exit_code(status: ConversationStatus, presenter: Presenter, *, in_talk: bool = False) -> int:
    """The exit code of a run.

    In a talk the person reads of an error and may go on, unless the sandbox is gone, and stopping a run is no failure.
    """
    error = presenter.conversation.error
    if in_talk and isinstance(error, SandboxUnavailable):
        raise error
    if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
        return WAITING
    if status is ConversationStatus.ERROR:
        if error is None:
            return FAILED
        if in_talk:
            return explain(error)
        raise error
    if in_talk:
        return 0
    return {ConversationStatus.CANCELED: INTERRUPTED, ConversationStatus.RUNNING: FAILED}.get(status, 0)
