"""`RunSession`: the open conversation of a command and its sandbox, which can be replaced by another."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ohsandbox.agent import Agent
from ohsandbox.cli.entrypoint import FAILED, INTERRUPTED, WAITING, show_error
from ohsandbox.cli.rendering.text import say
from ohsandbox.cli.sandbox.post_run_report import report_new_changes
from ohsandbox.cli.session import approvals
from ohsandbox.cli.session.presenter import Presenter
from ohsandbox.cli.session.reports import change_reporter, last_exchange
from ohsandbox.cli.session.resume import ResumedConversation, leave_on_exit
from ohsandbox.cli.session.sandbox import SessionSandbox, enter_sandbox
from ohsandbox.cli.session.skill_server_question import ask_about_servers
from ohsandbox.cli.settings.model import keep_server, with_model_of
from ohsandbox.cli.settings.model_check import check_model_name
from ohsandbox.cli.settings.run_settings import complete_settings, hide_secrets, instructions_of
from ohsandbox.cli.viewer.hosting import PageAddress, has_browser, hosted, open_browser, wait_for_page
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.policy import policy_of
from ohsandbox.conversation.run.limits import Spending
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.llm import open_model
from ohsandbox.paths import check_apart, new_id
from ohsandbox.secrets import Secrets
from ohsandbox.tool_flags import ToolFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from ohsandbox.cli.options.per_command import RunOptions
    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.cli.rendering.view import View
    from ohsandbox.cli.sandbox.early_start import EarlyStart
    from ohsandbox.conversation.approvals.policy import PolicyName
    from ohsandbox.llm import ChatModel
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.runtime_settings import NetworkMode
    from ohsandbox.settings import Settings


class RunSession:
    """A `with` block that closes the open conversation and its sandbox at its end.

    `open` opens the first one. `switch` closes it and opens another, with the same guarantees: one that was cut
    off keeps its sandbox; a kept container and files left in a directory are reported.
    """

    def __init__(
        self,
        what: RunOptions,
        settings: Settings,
        view: View,
        *,
        person: bool,
        present: Callable[[Conversation], Presenter] | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            what: the options of the command line.
            settings: complete settings with a model and its key; after `open`, those of the open conversation.
            view: shows the conversation.
            person: True if somebody at the terminal can be asked.
            present: makes the presenter of each opened conversation; None uses one for view.
        """
        self.what = what
        self.given = settings
        """The settings of the session, independent of the open conversation's model."""
        self.settings = settings
        self.view = view
        self.person = person
        self._has_page = what.view
        self._address: str | None = None
        """The address of the open conversation's page."""
        self._page_at = PageAddress(what.port or 0, is_followed=lambda: self._is_switching)
        self.takes_message: Callable[[str], None] | None = None
        """Handles text that a person wrote on the page as if it was typed here; None if nothing handles it."""
        self.spent = Spending()
        """The cost of this session, over all conversations that it opened."""
        self.unapplied: list[str] = []
        """Ids of conversations that worked on a copy because their engine is elsewhere, in the order of their end."""
        self._present = present or self._presenter_of
        self._sandbox_block = contextlib.ExitStack()
        self._conversation_block = contextlib.ExitStack()
        self._is_switching = self._keeps_sandbox = self._conversation_is_open = False
        self._model_told = ""
        self._conversation: Conversation | None = None
        self._presenter: Presenter | None = None
        self._sandbox: SessionSandbox | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        both = contextlib.ExitStack()
        both.push(self._sandbox_block)
        both.push(self._conversation_block)
        return bool(both.__exit__(kind, error, traceback))

    @property
    def conversation(self) -> Conversation:
        """The open conversation."""
        assert self._conversation is not None  # noqa: S101 - from `open` on
        return self._conversation

    @property
    def presenter(self) -> Presenter:
        """The presenter of the open conversation."""
        assert self._presenter is not None  # noqa: S101 - as above
        return self._presenter

    @property
    def sandbox(self) -> SessionSandbox:
        """The sandbox of the open conversation, with its options."""
        assert self._sandbox is not None  # noqa: S101 - as above
        return self._sandbox

    @property
    def runtime(self) -> Runtime:
        """The runtime of the sandbox."""
        return self.sandbox.runtime

    @property
    def where(self) -> SandboxOptions:
        """The options of the sandbox, completed from the settings."""
        return self.sandbox.where

    @property
    def is_open(self) -> bool:
        """True if a conversation is open and its sandbox runs."""
        return self._conversation_is_open

    @property
    def network(self) -> NetworkMode:
        """The sandbox's network mode, as far as we set it."""
        return self.where.network or "none"

    @property
    def allowed(self) -> tuple[str, ...]:
        """The rules of the allowlist."""
        return self.where.allowed or ()

    @property
    def has_begun(self) -> bool:
        """True if the conversation has a message, so that it is on disk."""
        return self.presenter.has_begun

    # --- opening and switching --------------------------------------------------------------------

    def open(self, where: SandboxOptions, resumed: ResumedConversation | None, begun: EarlyStart | None = None) -> None:
        """Open a new or a resumed conversation and its sandbox. After an error nothing is open.

        begun is the sandbox of a new conversation, if it is starting already.

        Raises:
            OhsandboxError: the conversation, its model or its sandbox is not available.
        """
        conversation = self._make_conversation(resumed, begun)
        if where.copies and not self.settings.checkpoints:
            raise UsageError('--copy brings changes back by checkpoints, and "checkpoints" is false. Switch them on.')
        if where.workspace is not None and where.backend.isolated and not where.copies:
            check_apart(conversation.directory, where.workspace)  # before a sandbox is started
        with contextlib.ExitStack() as sandbox, contextlib.ExitStack() as talk:
            if resumed is not None:
                sandbox.callback(conversation.close)
                conversation.start()  # a log that is open elsewhere or damaged is told before any sandbox is touched
                self._print_resumed(resumed, conversation)
            entered = enter_sandbox(
                sandbox, where, conversation, self.settings, self.view,
                person=self.person, is_resumed=resumed is not None, begun=begun,
            )  # fmt: skip
            self._begin(talk, conversation, entered)
            self._sandbox_block, self._conversation_block = sandbox.pop_all(), talk.pop_all()
        self._conversation_is_open = True
        if resumed is not None and not resumed.is_followed and self.person and self.what.talks and not self.what.task:
            for event in last_exchange(conversation.directory):
                self.view.show(event)

    def start_new_conversation(self) -> None:
        """Close the open conversation and begin a new one in the same sandbox, with its files unchanged.

        Raises:
            OhsandboxError: the new one cannot be opened; then nothing is open.
        """
        conversation = self._make_conversation(None)
        self._is_switching = self._keeps_sandbox = True
        self._conversation_is_open = False
        try:
            self._conversation_block.close()
        finally:
            self._is_switching = self._keeps_sandbox = False
        self.runtime.hand_over(conversation.id)
        with contextlib.ExitStack() as talk:
            self._begin(talk, conversation, self.sandbox)
            self._conversation_block = talk.pop_all()
        self._conversation_is_open = True

    def switch(
        self,
        where: SandboxOptions,
        resumed: ResumedConversation | None,
        *,
        settings: Settings | None = None,
        drops_sandbox: bool = False,
    ) -> None:
        """Close the open conversation and open another, as `open` does.

        If that fails, the previous one is opened again, and the error is raised. A conversation that was cut off
        keeps its sandbox for a resume, unless drops_sandbox says that its checkpoint suffices. settings
        are those of the other conversation; None keeps the current ones.

        Raises:
            OhsandboxError: the other conversation, its model or its sandbox is not available.
        """
        before = self._resumable()
        where_before, settings_before = self.where, self.settings
        self._is_switching, self._keeps_sandbox = True, drops_sandbox
        self._conversation_is_open = False
        try:
            self._conversation_block.close()
            self._sandbox_block.close()
        finally:
            self._is_switching = self._keeps_sandbox = False
        self.settings = settings_before if settings is None else settings
        try:
            self.open(where, resumed)
        except OhsandboxError:
            self.settings = settings_before
            self.open(where_before, before)
            raise

    def _resumable(self) -> ResumedConversation | None:
        """Return the open conversation in a form that can be reopened; None if it has no message."""
        if not self.has_begun:
            return None
        return ResumedConversation(self.conversation.id, None, self.settings.model, self.where, is_followed=True)

    def use_model(self, name: str) -> None:
        """Continue the conversation with another model, also when it is resumed later.

        Raises:
            UsageError: the model has no key or cannot be opened; the old model stays.
        """
        before = self.settings
        self.settings = self.completed(with_model_of(self.given, name).with_flags(confirm=before.confirm))
        try:
            self.conversation.use_model(self.open_model())
        except BaseException:
            self.settings = before
            raise
        finally:
            hide_secrets(self.settings, self.conversation.secrets)

    def use_policy(self, name: PolicyName) -> None:
        """Use another confirmation policy from the model's next answer on, also in a later resume."""
        self.given = self.given.with_flags(confirm=name)
        self.settings = self.settings.with_flags(confirm=name)
        self.conversation.confirmation = policy_of(name)
        approvals.keep_policy(self.conversation.directory, name)

    def completed(self, settings: Settings) -> Settings:
        """Complete settings for another conversation or model; a person is asked for a missing key.

        Raises:
            UsageError: there is no key.
        """
        try:
            settings = complete_settings(settings, person=self.person, file=self.what.settings)
        finally:  # who asks for a key hides that one alone
            hide_secrets(self.settings, self.conversation.secrets)
        if told := check_model_name(settings):
            self.view.warn(told)
        return settings

    def compact(self) -> None:
        """Condense the conversation and show the result.

        Raises:
            UsageError: calls are pending.
        """
        if not self.has_begun:
            raise UsageError("This conversation has no messages to sum up. Send one first.")
        self.presenter.compact()

    def set_network(self, network: NetworkMode, allowed: Sequence[str] = ()) -> None:
        """Change the network of the running sandbox and tell the model; the change is kept for a resume.

        allowed is the complete allowlist, if network is the allowlist mode.

        Raises:
            UsageError: this sandbox's network cannot be changed, or a rule is invalid.
            SandboxUnavailable: the engine refuses, or the sandbox is gone.
        """
        self.sandbox.set_network(network, allowed)
        if self.has_begun:
            said = self.runtime.describe().get("network", network)
            self.conversation.notify_model(f"The user has changed the sandbox's network. From now on it is {said}.")

    def _begin(self, stack: contextlib.ExitStack, conversation: Conversation, sandbox: SessionSandbox) -> None:
        """Start the conversation in the sandbox and make it the open one.

        The stack undoes it, the last step first: reports while the conversation is open, its end, what still waits, and
        the sandbox that stays.
        """
        runtime, full = sandbox.runtime, sandbox.where
        conversation.runtime = runtime
        self._conversation, self._sandbox = conversation, sandbox
        policy = self.policy_name
        conversation.confirmation = policy_of(policy)
        self._presenter = presenter = self._present(conversation)
        conversation.register_callback(self.spent.add)
        leave_on_exit(stack, presenter, runtime, stays=lambda: bool(self._keeps_sandbox or full.keep or full.attach))
        stack.callback(approvals.print_waiting, conversation)
        stack.callback(presenter.close)
        if self.person and runtime.isolated:
            stack.callback(presenter.watch_ports(runtime, forwarded=lambda: self.sandbox.ports.forwarded))
        stack.callback(
            presenter.watch_network(runtime, has_commands=self.what.talks and (self.person or self.what.task is None))
        )
        stack.callback(self._print_where)
        stack.callback(change_reporter(presenter, unless=lambda: self._is_switching))
        if full.copies:
            stack.callback(self._print_apply_hint, full)
        conversation.start()
        approvals.keep_policy(conversation.directory, policy)
        keep_server(conversation.directory, self.settings)
        if self.person:
            ask_about_servers(conversation)
        sandbox.save_in(conversation.directory)
        self._address = None
        if self._has_page:
            self._serve_page(stack)

    def serve_page(self) -> None:
        """Serve a page of the open conversation, and of those that replace it; print its address.

        Raises:
            UsageError: no port can be opened.
        """
        self._has_page = True
        self._serve_page(self._conversation_block)

    def _serve_page(self, stack: contextlib.ExitStack) -> None:
        if self._address is None:
            is_next = bool(self._page_at.token)
            page = hosted(self.conversation, user=approvals.user(), begin=self.takes_message, at=self._page_at)
            self._address = stack.enter_context(page)
            if is_next:  # an open page follows
                return
        (self.view.info if self.person else say)(f"Its page: {self._address}")
        if self.person and has_browser():
            open_browser(self._address, self.conversation.directory)

    @property
    def policy_name(self) -> PolicyName:
        """The confirmation policy; by default a container is trusted, and on this host somebody must answer."""
        return self.settings.confirm or ("risky" if self.person and not self.runtime.isolated else "never")

    def _presenter_of(self, conversation: Conversation) -> Presenter:
        echo = self.what.task is not None or not sys.stdin.isatty()
        answer = approvals.answer_at_terminal if self.person else wait_for_page if self.what.view else None
        return Presenter(conversation, self.view, echo=echo, answer=answer)

    def _make_conversation(self, resumed: ResumedConversation | None, begun: EarlyStart | None = None) -> Conversation:
        settings, view = self.settings, self.view
        secrets = Secrets.load(settings.secrets)
        hide_secrets(settings, secrets)
        if not self._is_known:
            for warning in secrets.warnings:
                view.warn(warning)
            if secrets.names:
                view.info(f"Secrets in the environment of commands: {', '.join(secrets.names)}")
        tools = None if settings.tools == ToolFlags() else settings.tools.names()
        prompt = instructions_of(settings.instructions)
        agent = Agent(self.open_model(), tools, system_prompt_extensions=prompt, mcp_config=settings.mcp_config)
        return Conversation(
            agent,
            conversation_id=resumed.id if resumed is not None else begun.conversation_id if begun else new_id(),
            settings=settings,
            tool_choice=self.what.tool_choice,
            secrets=secrets,
        )

    @property
    def _is_known(self) -> bool:
        """True if a conversation was opened before, so that the settings' effects have been reported."""
        return self._conversation is not None

    def open_model(self) -> ChatModel:
        """Open the model of the settings, streaming its answers if the view wants that.

        Raises:
            OhsandboxError: it cannot be opened.
        """
        model = open_model(self.settings.llm_config().model_copy(update={"stream": self.view.wants_stream}))
        if model.note and model.name != self._model_told:
            self.view.info(f"{model.name}: {model.note}")
        self._model_told = model.name
        return model

    # --- what is told -----------------------------------------------------------------------------

    def _print_resumed(self, resumed: ResumedConversation, conversation: Conversation) -> None:
        if resumed.is_followed:
            return
        self.view.info(f"Conversation {resumed.id} goes on: {resumed.title or 'no title'}")
        if missing := [name for name in resumed.secrets if name not in conversation.secrets.names]:
            again = " ".join(f"--secret {name}" for name in missing)
            told = f"Its commands had {', '.join(missing)}, and have not now. To give it: ohsandbox run --resume"
            self.view.warn(f"{told} {resumed.id} {again}")

    def _print_where(self) -> None:
        if not self._is_switching:
            self.presenter.show_where()

    def _print_apply_hint(self, where: SandboxOptions) -> None:
        if self.presenter.has_worked and not self._is_switching:
            tell, conversation_id = self.view.info, self.conversation.id
            tell(f"It worked on a copy. See what it changed: ohsandbox diff {conversation_id}")
            tell(f"Bring that to {Path(where.workspace or '.').resolve()}: ohsandbox apply {conversation_id}")
            if self.person and where.backend.engine_elsewhere():
                self.unapplied.append(conversation_id)

    # --- talking ----------------------------------------------------------------------------------

    def send_message(self, text: str, images: Sequence[str] = (), *, in_talk: bool) -> int:
        """Send text to the agent and show the run until it has ended; return its exit code.

        In a talk an error is printed and the person may go on, and stopping a run is not a failure.

        Raises:
            OhsandboxError: the error that ended the run; in a talk only if the sandbox is gone.
            KeyboardInterrupt: a second Ctrl-C, while the run was being stopped.
        """
        code = self._exit_code(self.presenter.run(text, images), in_talk=in_talk)
        if in_talk:
            report_new_changes(self.runtime, self.view.warn)
        return code

    def go_on(self, *, in_talk: bool) -> int:
        """Finish the work that was interrupted; errors are those of `say`.

        In a talk, a run that a person had stopped waits for the person's message.
        """
        if in_talk and self.conversation.status() is ConversationStatus.CANCELED:
            return 0
        code = self._exit_code(self.presenter.go_on(), in_talk=in_talk)
        return 0 if in_talk else code

    def _exit_code(self, status: ConversationStatus, *, in_talk: bool) -> int:
        error = self.conversation.error
        if in_talk and isinstance(error, SandboxUnavailable):
            raise error
        if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
            return WAITING
        if status is ConversationStatus.ERROR:
            if error is None:
                return FAILED
            if in_talk:
                return show_error(error)
            raise error
        if in_talk:
            return 0
        return {ConversationStatus.CANCELED: INTERRUPTED, ConversationStatus.RUNNING: FAILED}.get(status, 0)
