"""The interactive session: it shows the screen, does the slow work, then reads messages until the person leaves."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox import __version__
from ohsandbox.cli.entrypoint import INTERRUPTED, show_error
from ohsandbox.cli.interactive.attachments import OutgoingMessage, Ran, pasted_file, with_attachments
from ohsandbox.cli.interactive.input import CommandHelp, PathCompletion
from ohsandbox.cli.interactive.person_command import PERSON, PersonCommand
from ohsandbox.cli.interactive.screen_presenter import ScreenPresenter, ScreenView
from ohsandbox.cli.interactive.status_bar import StatusBar
from ohsandbox.cli.prompts.prompt import answer_yes_no
from ohsandbox.cli.prompts.remembered import remember, remembered
from ohsandbox.cli.rendering.events import CallBlock, MessageBlock, ResultBlock
from ohsandbox.cli.rendering.tables import print_wrapped
from ohsandbox.cli.rendering.text import joined_lines, output, safe, safe_line
from ohsandbox.cli.sandbox.network_words import bar_words, network_words
from ohsandbox.cli.session import approvals
from ohsandbox.cli.session.approvals import MODES, next_mode
from ohsandbox.cli.session.run_session import RunSession
from ohsandbox.cli.session.slash_commands import (
    COMMANDS,
    CommandContext,
    completions,
    is_command,
    message_of,
    own_commands,
    run_slash_command,
)
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.runtime.mount_text import parse_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.cli.commands.run import RunRequest
    from ohsandbox.cli.interactive.region import SentLine
    from ohsandbox.cli.interactive.screen import Screen
    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.conversation import Conversation
    from ohsandbox.settings import Settings

TICK_S = 0.1
"""Interval, in seconds, at which the output of a `!` command is redrawn."""
SLOW_S = 0.3
"""A slash command that takes longer, in seconds, gets a status line."""
_KEYS_HELP = "? at an empty line shows the keys. Anything that begins with no sign goes to the agent."
_PLANNED = "That is its plan. Shift-Tab leaves plan mode; then say what to do."


class InteractiveSession:
    """Runs `ohsandbox run` at a terminal whose screen is already shown."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._view = ScreenView(screen)
        self._bar = StatusBar()
        self._ran: list[Ran] = []
        self._command: PersonCommand | None = None
        """The `!` command that is running."""
        self._session: RunSession | None = None
        screen.region.bar = lambda columns: self._bar.line(columns, is_my_turn=screen.is_reading)
        screen.read_paste = pasted_file
        screen.change_mode = self._change_mode
        screen.completer.list_dir = self._list_dir
        own = [CommandHelp(name, safe_line(text)) for name, text in own_commands().items()]
        screen.completer.commands = [*(CommandHelp(command.name, command.help) for command in COMMANDS), *own]
        screen.completer.arguments = lambda typed: completions(self._session, typed)

    @property
    def unapplied(self) -> list[str]:
        """See `RunSession.unapplied`."""
        return [] if self._session is None else self._session.unapplied

    def work(self, run: RunRequest) -> int:
        """Run the task, then prompt for messages if the person stopped it or is writing; return the last exit code."""
        options, sandbox_options = run.what, run.where
        if options.task is None and run.resumed is None:
            sandbox_options = _offer_repository(sandbox_options)
        self._show_header(run.settings, sandbox_options)
        with RunSession(options, run.settings, self._view, person=True, present=self._present) as session:
            self._session = session
            self._bar.session_usd = lambda: session.spent.cost_usd
            session.takes_message = self._enqueue_message
            session.open(sandbox_options, run.resumed, run.begun)
            code, talks = 0, options.talks
            if options.task is not None:
                self._view.show_block(MessageBlock("user", options.task))
                code = session.send_message(options.task, in_talk=False)
                talks = talks and (code == INTERRUPTED or self._screen.has_draft)
            elif run.resumed is not None:
                code = session.go_on(in_talk=options.talks)
            if talks and (options.task is not None or not code):
                code = self._read_messages(session)
            self._bar.waits_for = "closing"
        return code

    def _present(self, conversation: Conversation) -> ScreenPresenter:
        assert self._session is not None  # noqa: S101 - it presents
        runtime = self._session.runtime
        self._bar.mode = MODES[self._session.policy_name].short
        self._bar.open(conversation, getattr(runtime, "name", "") or ("" if runtime.isolated else runtime.machine))
        self._show_network()
        presenter = ScreenPresenter(
            conversation, self._view, screen=self._screen, bar=self._bar, answer=self._answer,
            command=self._do, message=self._message, each_tick=lambda: self._report_errors(self._show_command),
        )  # fmt: skip
        presenter.rings = self._session.settings.bell
        return presenter

    def _answer(self, conversation: Conversation) -> bool:
        with self._screen.suspended():  # for all of it: keys between two of its questions are discarded as well
            line = self._bar.line(self._view.console.width - 1)
            self._view.console.print(Text(line, style="dim"), soft_wrap=True)
            return approvals.answer_at_terminal(conversation)

    # --- talking --------------------------------------------------------------------------------------

    def _read_messages(self, session: RunSession) -> int:
        code = 0
        while True:
            try:
                self._report_errors(self._await_command)
                line = self._screen.read()
            except EOFError:
                return code
            if line.text.startswith("!") or is_command(line.text):
                try:
                    if not self._do(line):
                        return code
                except KeyboardInterrupt:
                    if not session.is_open:
                        raise
                    self._view.info("Stopped.")
            else:
                self._view.show_block(MessageBlock("user", line.shown))
                code = session.send_message(*self._message(line), in_talk=True)
                if session.policy_name == "plan" and session.conversation.status() is ConversationStatus.IDLE:
                    self._view.info(_PLANNED)

    def _enqueue_message(self, text: str) -> None:
        """Read text that a person wrote elsewhere as a line of input, also while a question is open.

        Raises:
            UsageError: it would be a command; those are accepted only from the terminal.
        """
        if text.startswith("!") or is_command(text):
            raise UsageError("Lines that begin with ! or a /command are for the terminal. Write it there.")
        self._screen.send(text)

    def _message(self, line: SentLine) -> OutgoingMessage:
        """Return the message for the agent that a line makes."""
        assert self._session is not None  # noqa: S101 - it talks
        commands_run, self._ran = self._ran, []
        return with_attachments(
            message_of(line.text),
            commands_run,
            self._session.runtime,
            lambda text: self._view.info(f"  {text}"),
            limits=self._session.settings.output,
            typed=line.shown,
        )

    def _do(self, line: SentLine) -> bool:
        """Run a line that is not for the agent; return whether the session goes on. Failures are reported.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        assert self._session is not None  # noqa: S101 - it talks
        if not line.text.startswith("!"):
            self._view.show_block(MessageBlock("user", line.shown))
            with self._status_while(line):
                goes_on = run_slash_command(CommandContext(self._session, keys=_KEYS_HELP), line.text)
            if goes_on:
                self._bar.show_model(self._session.conversation)
                self._bar.mode = MODES[self._session.policy_name].short
                self._show_network()
            return goes_on
        self._report_errors(lambda: self._run_command(line.text[1:].strip()))
        return True

    @contextlib.contextmanager
    def _status_while(self, line: SentLine) -> Iterator[None]:
        """Show a status line while a slow command runs; while the agent works, the status is the agent's."""
        assert self._session is not None  # noqa: S101 - it talks
        if self._session.conversation.status() is ConversationStatus.RUNNING:
            yield
            return
        self._bar.waits_for = "at work"
        self._screen.show_status(safe_line(line.shown, limit_chars=60), after_s=SLOW_S)
        try:
            yield
        finally:
            self._screen.show_status("")

    def _change_mode(self) -> str:
        """Switch to the next mode and return its description; runs in the screen's thread."""
        session = self._session
        if session is None or not session.is_open:
            return "What is asked can be changed once the sandbox is there."
        name = next_mode(session.policy_name, isolated=session.runtime.isolated)
        session.use_policy(name)
        self._bar.mode = MODES[name].short
        return f"From now on: {MODES[name].told}."

    def _run_command(self, command: str) -> None:
        """Run a command in the sandbox, show it, and attach it to the next message."""
        assert self._session is not None  # noqa: S101 - it talks
        if not command:
            raise UsageError("`!` runs a command in the sandbox, as in `!ls`. Write one behind it.")
        if self._command is not None:
            raise UsageError(f"`!{safe_line(self._command.command, limit_chars=40)}` still runs. Wait for its end.")
        self._command = PersonCommand(self._session.runtime, command)
        if self._session.conversation.status() is ConversationStatus.RUNNING:  # the status is the agent's
            self._view.text(Text(f"! {safe(command)}"))
            self._view.info("  runs beside the agent; what it prints is shown at its end")
        else:
            self._view.show_block(CallBlock("!", safe(command), PERSON))
            self._await_command()

    def _await_command(self) -> None:
        """Show the running command until it ends; a key stops it."""
        if (command := self._command) is None:
            return
        self._screen.show_status(joined_lines(safe(command.command), limit_chars=60))
        self._screen.region.can_stop = True
        try:
            while not command.wait(TICK_S):
                self._screen.show_live(command.live)
        except KeyboardInterrupt:
            command.cancel()
            self._command = None
            self._view.info("Stopped.")
        finally:
            self._screen.region.can_stop = False
            self._screen.show_status("")
            self._screen.show_live("")
        self._show_command()

    def _show_command(self) -> None:
        """Show the command's result, if it has ended."""
        if (command := self._command) is None or not command.is_over:
            return
        self._command = None
        if command.error is not None:
            raise command.error
        assert command.seen is not None  # noqa: S101 - it is over
        result = command.seen
        ending = "still running" if result.running else f"exit {result.exit_code}"
        shown = output(result.output)
        self._view.show_block(ResultBlock(shown, ending, ok=result.exit_code == 0, seconds=command.seconds))
        self._ran.append(Ran(command.command, shown, ending))

    def _report_errors(self, act: Callable[[], None]) -> None:
        """Call act and report its error, unless the sandbox is gone."""
        try:
            act()
        except SandboxUnavailable:
            raise
        except OhsandboxError as error:
            show_error(error)

    def _show_network(self) -> None:
        assert self._session is not None  # noqa: S101 - it talks
        session = self._session
        self._bar.network = bar_words(session.network) if session.runtime.isolated and not session.where.attach else ""

    # --- what stands around it --------------------------------------------------------------------------

    def _show_header(self, settings: Settings, sandbox_options: SandboxOptions) -> None:
        full = sandbox_options.with_settings(settings)
        if full.workspace is not None:
            files = _workspaces_of(full)
        elif full.backend.isolated:
            files = "no files of yours; they live in the container (--workspace . mounts this directory)"
        else:
            machine = full.backend.machine.replace("this host", "THIS HOST")
            files = f"{full.host_workdir or Path.cwd()}, on {machine} without a container"
        mode = settings.confirm or ("never" if full.backend.isolated else "risky")
        reached = network_words(full.network, full.allowed or ())
        network = f"network: {reached}" if full.backend.isolated else f"network of {full.backend.machine}"
        head = Text.assemble(("ohsandbox", "bold cyan"), f" {__version__}", (f"  {safe_line(settings.model)}", "bold"))
        image = safe_line(full.image or full.build or "") if full.backend.isolated else "none"
        rows = [("files", safe_line(files, limit_chars=500)), ("sandbox", f"{image}, {network}")]
        rows += [("mounts", safe_line(", ".join(full.mount), limit_chars=500))] if full.mount else []
        rows += [("asks", f"{MODES[mode].asks} (Shift-Tab changes it)")]
        print_wrapped(self._view.console, head)
        for name, text in rows:
            print_wrapped(self._view.console, Text(f"  {name:<8} {text}", style="dim"))
        print_wrapped(self._view.console, Text("  ? shows the keys, /help the commands", style="dim"))

    def _list_dir(self, path: str) -> list[PathCompletion]:
        """List a directory for completion: the bound directory's, else the sandbox's; empty until there is one."""
        session = self._session
        if session is None or not session.is_open:
            return []
        workspace = session.where.workspace
        if workspace is not None and not session.where.copies and not path.startswith("/"):
            return [PathCompletion(entry.name, entry.is_dir()) for entry in (Path(workspace) / path).iterdir()]
        with contextlib.suppress(OhsandboxError):
            return [PathCompletion(entry.name, entry.kind == "directory") for entry in session.runtime.list_dir(path)]
        return []


def _workspaces_of(full: SandboxOptions) -> str:
    """Return the directories that the agent works in, the main one first."""
    workspaces = [parse_path(text) for text in full.workspaces or ()]
    listed = [
        f"{Path(workspace.path).resolve()}{' (read-only)' if workspace.read_only else ''}" for workspace in workspaces
    ]
    return f"{'a copy of ' if full.copies else ''}{', '.join(listed)}"


def _offer_repository(options: SandboxOptions) -> SandboxOptions:
    """Ask whether the agent may work in the current repository, if no option says where it works."""
    if options.workspace is not None or options.attach is not None or not options.backend.isolated:
        return options
    current_directory = Path.cwd()
    root = next(
        (directory for directory in (current_directory, *current_directory.parents) if (directory / ".git").exists()),
        None,
    )
    if root is None:
        return options
    answer = remembered("mount", root)
    if answer is None:
        is_accepted = answer_yes_no(f"Mount this repository, {safe_line(root)}, for the agent to work in?")
        if is_accepted is None:
            return options
        answer = "yes" if is_accepted else "no"
        remember("mount", root, answer)
    else:
        print(f"Mounted here: {answer}, as you said before (`ohsandbox trust --revoke` asks again).")  # noqa: T201
    return replace(options, workspace=root).checked() if answer == "yes" else options
