"""`Conversation`: an agent at work for a user; this class is the interface, other modules do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from ohsandbox import events
from ohsandbox.arguments import check_wait, expect, expect_method, suggests_names
from ohsandbox.conversation.approvals.decisions import Approvals, Decision
from ohsandbox.conversation.approvals.policy import policy_given
from ohsandbox.conversation.config import ConversationConfig
from ohsandbox.conversation.environment.conversation_environment import Environment, check_place
from ohsandbox.conversation.live_output import LiveOutput
from ohsandbox.conversation.log import CallbackQueue, ConversationLog, StreamRelay
from ohsandbox.conversation.methods.aio import AsyncConversation
from ohsandbox.conversation.methods.model_control import ModelControl
from ohsandbox.conversation.methods.observable import ObservableConversation
from ohsandbox.conversation.run.limits import RunLimits
from ohsandbox.conversation.run.result import RunResult
from ohsandbox.conversation.run.run_thread import STOP_TIMEOUT_S, RunThread
from ohsandbox.conversation.run.runner import Runner
from ohsandbox.conversation.storage import find_conversation
from ohsandbox.conversation.storage.autoresume import ResumeOptions, adopt, class_or_instance
from ohsandbox.conversation.storage.metadata import ConversationStore, FileConversationStore, root_of
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import new_id
from ohsandbox.persistence.layout import AGENTS_NAME, check_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.agent import Agent
    from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer
    from ohsandbox.conversation.approvals.decisions import ApprovalCallback
    from ohsandbox.conversation.approvals.policy import ConfirmationPolicy
    from ohsandbox.conversation.approvals.scopes import AnyScope, Approval, CallScope, PendingCall
    from ohsandbox.conversation.environment.conversation_environment import ResumeState
    from ohsandbox.conversation.environment.skill_servers import ProposedServers, SkillServersPolicy
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Secrets
    from ohsandbox.settings import Settings


class Conversation(ObservableConversation, ModelControl, AsyncConversation):
    """An agent that works for a user in a sandbox; every event is stored on disk.

    `send_message` starts a run, in a thread of its own. It ends when the model answers in text (IDLE), calls `finish`
    (FINISHED), fails or reaches a limit (ERROR), or when `stop` is called (CANCELED); then another message may follow.
    It also ends when calls wait for a person (WAITING_FOR_CONFIRMATION): see `pending`, `confirm` and `reject`. A
    message rejects all calls that wait.

    Args:
        agent: the agent; None makes one. An agent without a model gets the one of the settings.
        runtime: the sandbox; None makes a DockerRuntime from the settings. If it is not running, the first message
            starts it and `close` closes it; else the caller closes it.
        persist_dir: the directory of all conversations; None is `conversations` in the state directory.
        metadata_store: stores the metadata; None keeps `metadata.json` beside the log.
        conversation_id: the id of an existing log continues that conversation; None makes a new id.
        user_id: stored in the metadata.
        settings: the settings; None reads the settings file when it is needed.
        limits: the limits; None takes those of the settings if these are given or read, else the defaults.
        tool_choice: for the first request of each run; "required" forces a tool call. Later requests use "auto".
        confirmation: which calls a person must allow: a policy, or "never", "always", "risky", "medium" or "plan";
            None takes the policy of given settings, else "never".
        security_analyzer: rates the risk of each call for such a policy; None is `default_analyzer`.
        confirm: asks the person, in the run's thread; without it the run ends, and the calls wait for `confirm()`.
        secrets: secrets for commands in the sandbox; None takes those of given settings.
        checkpoints: whether checkpoints are taken before each turn's first change and after its last, for `fork`;
            None takes the value of given settings, else False.
        skill_servers: whether MCP servers of the workspace's skills start: "ask" (they wait for
            `approve(pending_servers.scope)`), "allow", "never", or a callback; None takes the settings' value, else
            "ask".
        depth: the number of agents above this one; for sub-agents.
    """

    @suggests_names
    def __init__(  # noqa: PLR0917 - callers may pass these by position
        self,
        agent: Agent | None = None,
        runtime: Runtime | None = None,
        persist_dir: Path | str | None = None,
        metadata_store: ConversationStore | None = None,
        conversation_id: str | None = None,
        user_id: str | None = None,
        *,
        settings: Settings | None = None,
        limits: RunLimits | None = None,
        tool_choice: str = "auto",
        confirmation: ConfirmationPolicy | str | None = None,
        security_analyzer: SecurityAnalyzer | None = None,
        confirm: ApprovalCallback | None = None,
        secrets: Secrets | None = None,
        checkpoints: bool | None = None,
        skill_servers: SkillServersPolicy | None = None,
        depth: int = 0,
    ) -> None:
        """Make a conversation; nothing is opened, started or written before `start` or the first message.

        Raises:
            UsageError: an argument has a wrong type, the id is invalid, or a policy or one of the agent's tools does
                not exist.
        """
        root = root_of("persist_dir", persist_dir)
        conversation_id = new_id() if conversation_id is None else check_id(conversation_id)
        self._closed = False
        expect_method("metadata_store", metadata_store, "save", "a ConversationStore")
        self._store = metadata_store or FileConversationStore(root)
        self._config = ConversationConfig(
            agent, limits=limits, settings=settings, user_id=user_id, tool_choice=tool_choice,
            confirmation=confirmation, security_analyzer=security_analyzer, secrets=secrets, checkpoints=checkpoints,
            skill_servers=skill_servers, depth=depth,
        )  # fmt: skip
        self._log = ConversationLog(
            root / conversation_id, conversation_id=conversation_id, masker=lambda: self._config.secrets.masker
        )
        self._run_began = self._log.position
        self._stream = StreamRelay(self._log)
        self._statuses: CallbackQueue[str] = CallbackQueue()
        self._approvals = Approvals(self._log, ask=confirm)
        self.agent.check_names(runtime)
        self._environment = Environment(runtime, self._config, self._log, self._approvals, statuses=self._statuses)
        self._output = LiveOutput(self._log, self._environment.tool)
        runner = Runner(
            self._config,
            self._log,
            self._environment,
            approvals=self._approvals,
            stream=self._stream,
            converse=self._subagent_conversation,
        )
        self._run_thread = RunThread(runner, self._config, self._log, approvals=self._approvals, store=self._store)

    @class_or_instance
    def autoresume(
        target: type[Conversation] | Conversation,  # noqa: N805 - the class or an instance
        conversation_id: str | None = None,
        *,
        persist_dir: Path | str | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Conversation:
        """Return the conversation with this id, or the only one whose id begins so; None is the newest one.

        The newest is that of the working directory, else of all; one in which nothing was said does not count.

        Called on the class, it makes the conversation. Called on a conversation, it starts this one, with its agent,
        runtime and callbacks, as a continuation of the stored one; None is then its own log if it has one.

        Args:
            conversation_id: the id or its beginning.
            persist_dir: as for a new conversation; only for the call on the class.
            options: options of a new conversation, named by `ResumeOptions`; only for the call on the class.

        Raises:
            UsageError: there is none, several begin so, the conversation is open with another id, or it was given
                options.
            OhsandboxError: as for `start`, if called on a conversation.
        """
        if isinstance(target, type):
            root = root_of("persist_dir", persist_dir)
            return target(persist_dir=root, conversation_id=find_conversation(root, conversation_id), **options)
        if persist_dir is not None or options:
            raise UsageError("conversation.autoresume() takes an id alone. Use Conversation.autoresume(id, ...).")
        adopt(target._log, conversation_id)
        return target.start()

    # --- opening and closing ----------------------------------------------------------------------

    def start(self) -> Self:
        """Open the log, replay its events, and open the model; idempotent. `send_message` does this, too.

        Raises:
            ConversationOpenError: another process has the conversation open.
            LogCorruptError: its log is damaged.
            UsageError: the directory cannot be used, is in the agent's workspace or contains it, no model is named, or
                the conversation is closed.
        """
        with self._log.lock:
            if self._closed:
                raise UsageError(f"Conversation {self.id!r} is closed. Make a new Conversation with its id to go on.")
            if not self._log.is_open:
                self._open()
            self._environment.start_servers()
        return self

    def close(self) -> None:
        """Stop the run; close the tools, the runtime if the conversation started it, and the log; idempotent."""
        self.stop()
        with self._log.lock:
            self._closed = True
            self._environment.close()
            self._log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if self.runtime is not None:
            check_place(self.directory, self.runtime)
            self.agent.check_names(self.runtime)
        self._config.load(outside={} if self.runtime is None else self.runtime.outside_secrets)
        self._environment.read_servers()
        self.agent.preload()
        self._log.open(self.resume_state.add, self._approvals.standing.add)
        self._run_began = self._log.position
        self._run_thread.restore_status(
            self._log.metadata().status, is_finished=self.resume_state.is_finished, is_waiting=bool(self.pending)
        )

    def _subagent_conversation(
        self, agent: Agent, runtime: Runtime, *, conversation_id: str, limits: RunLimits
    ) -> Conversation:
        """Create a sub-agent's conversation with the confirmation policy and secrets of this one."""
        return Conversation(
            agent,
            runtime,
            self.directory / AGENTS_NAME,
            conversation_id=conversation_id,
            user_id=self.user_id,
            limits=limits,
            confirmation=self._config.policy,
            security_analyzer=self._config.security_analyzer,
            confirm=self._approvals.ask_for_subagent,
            secrets=self.secrets,
            depth=self._config.depth + 1,
        )

    def _sibling(self, conversation_id: str, runtime: Runtime | None) -> Self:
        return type(self)(
            self.agent,
            runtime,
            self.directory.parent,
            self._store,
            conversation_id,
            self.user_id,
            settings=self._config.settings,
            limits=self.limits,
            tool_choice=self._config.tool_choice,
            confirmation=self.confirmation,
            security_analyzer=self._config.security_analyzer,
            confirm=self._approvals.callback,
            secrets=self._config.given_secrets,
            checkpoints=True,
            skill_servers=self._config.given_skill_servers,
        )

    # --- talking ----------------------------------------------------------------------------------

    def send_message(self, text: str, images: Sequence[str] = ()) -> None:
        """Send a message; start a run, or if one is active, send the message with its next request.

        Args:
            text: what to do.
            images: images for the model as data URLs (`content.image_url`); a model without vision gets a note instead.

        Raises:
            LogWriteError: the message could not be stored; nothing is started.
            UsageError: text is not a str, or is blank; an image is not a data URL of a PNG, JPEG, GIF or WebP; there
                are more or larger images than the settings' `output` allows.
            OhsandboxError: as for `start`.
        """
        expect("text", text, str, optional=False)
        if not text.strip():
            raise UsageError(f"text={text[:20]!r} is blank. Say what to do; `resume` goes on without a message.")
        self._config.output.check_images(images)
        self.start()
        with self._log.lock:
            self._approvals.give_way()
            self._run_began = self._log.position
            self._log.emit(events.user_message(text, images))
            self._run_thread.wake()

    def run(self, text: str, timeout_s: float | None = None) -> RunResult:
        """Send a message and wait for the result: `send_message`, then `wait`.

        The result equals its status (`run("Go.") == ConversationStatus.IDLE`), and has the answer, usage and events.
        """
        check_wait(timeout_s=timeout_s)
        self.send_message(text)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the run and callbacks, at most timeout_s; return the result since the last message or `start`."""
        self._run_thread.wait(timeout_s)
        workdir = "" if self.runtime is None else self.runtime.workdir
        with self._log.lock:
            span = {"since": self._run_began, "until": self._log.position}
            return RunResult(self.directory, self.status(), self.error, **span, workdir=workdir)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> ConversationStatus:
        """Cancel the running tool or request and wait for the run's end; without a run, do nothing.

        Returns the status: CANCELED, or RUNNING if the run did not end in time or a callback called this.
        """
        self._run_thread.stop(timeout_s)
        return self.status()

    def resume(self) -> bool:
        """Continue without a new message if the log ends before the model's answer; return whether that was so.

        For use after a kill, a failure or `stop` in the middle of a task. Calls that wait for a person keep waiting.

        Raises:
            OhsandboxError: as for `start`.
        """
        settled = {ConversationStatus.WAITING_FOR_CONFIRMATION, ConversationStatus.FINISHED}
        self.start()
        return self._run_thread.begin_if(lambda: self.status() not in settled and self._log.history.needs_answer)

    # --- answering for calls ----------------------------------------------------------------------

    @property
    def pending(self) -> list[PendingCall]:
        """The calls that wait for a person, in order; empty before `start`."""
        return self._approvals.pending

    def confirm(
        self,
        tool_call_ids: Sequence[str] | None = None,
        *,
        by: str = "user",
        run: bool = True,
        scope: CallScope | None = None,
    ) -> None:
        """Allow calls that wait; the run continues once all of them have an answer.

        Args:
            tool_call_ids: the ids of the calls; None is all.
            by: who allowed them, for the log.
            run: False only stores the answer; the next run acts on it.
            scope: what to allow from now on as well; see `approve`.

        Raises:
            UsageError: no call waits, a named one does not, or scope does not cover one.
            OhsandboxError: as for `start`.
        """
        self._decide(Decision(approved=True, tool_call_ids=tool_call_ids, scope=scope), by=by, run=run)

    def reject(
        self, reason: str = "", tool_call_ids: Sequence[str] | None = None, *, by: str = "user", run: bool = True
    ) -> None:
        """Reject calls that wait; the model gets the reason and goes on.

        Rejecting all also stops the calls of the same response that needed no approval. Arguments and errors are those
        of `confirm`.
        """
        self._decide(Decision(approved=False, reason=reason, tool_call_ids=tool_call_ids), by=by, run=run)

    def go_on(self) -> bool:
        """Begin the run that acts on stored confirmations; return False if there are none.

        Raises:
            OhsandboxError: as for `start`.
        """
        self.start()
        return self._run_thread.begin_if(lambda: self._log.history.held.is_decided)

    @property
    def approvals(self) -> list[Approval]:
        """The standing approvals, in order; empty before `start`."""
        with self._log.lock:
            return self._approvals.standing.in_force

    @property
    def pending_servers(self) -> ProposedServers | None:
        """The MCP servers of the workspace's skills that wait for a person's approval; None if there are none."""
        return self._environment.pending_servers

    def approve(self, scope: AnyScope, *, by: str = "user") -> Approval:
        """Allow what scope covers, from now on in this conversation; calls that wait already keep waiting.

        It does not hold for sub-agents, nor for tools that are set to ask each time.

        Raises:
            UsageError: the scope names no directory, or names a call that hides characters.
            OhsandboxError: as for `start`.
        """
        self.start()
        return self._approvals.grant(scope, by=by)

    def revoke(self, number: int, *, by: str = "user") -> None:
        """Revoke a standing approval; calls that it allowed and that have not begun wait for a person again.

        Raises:
            UsageError: no approval of that number is in force.
            OhsandboxError: as for `start`.
        """
        self.start()
        self._approvals.revoke(number, by=by)

    def _decide(self, decision: Decision, *, by: str, run: bool) -> None:
        self.start()
        with self._log.lock:
            self._approvals.decide(decision, by=by)
            self._run_thread.begin_if(lambda: run and not self.pending)

    # --- looking on -------------------------------------------------------------------------------

    def status(self) -> ConversationStatus:
        """Return the status of the conversation."""
        return self._run_thread.status

    @property
    def error(self) -> BaseException | None:
        """The error that ended the last run with ERROR, else None; its `exit_code` is the command's exit code."""
        return self._run_thread.error

    # --- what it is made of -----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The id of the conversation."""
        return self._log.conversation_id

    @property
    def directory(self) -> Path:
        """The directory of the conversation, with its log."""
        return self._log.directory

    @property
    def agent(self) -> Agent:
        """The agent, with a model after `start`. It may be replaced before the first message."""
        return self._config.agent

    @agent.setter
    def agent(self, agent: Agent) -> None:
        self._config.agent = agent

    @property
    def runtime(self) -> Runtime | None:
        """The runtime; None until there is one. It may be set before the first message."""
        return self._environment.runtime

    @runtime.setter
    def runtime(self, runtime: Runtime | None) -> None:
        if runtime is not None:
            check_place(self.directory, runtime)
        self._environment.runtime = runtime

    @property
    def limits(self) -> RunLimits:
        """The limits; they may be replaced at any time, with effect from the next run on."""
        return self._config.limits

    @limits.setter
    def limits(self, limits: RunLimits) -> None:
        expect("limits", limits, RunLimits, optional=False)
        self._config.check_prices(limits)
        self._config.limits = limits

    @property
    def confirmation(self) -> ConfirmationPolicy | None:
        """The policy on which calls a person must allow; None is that of the settings, else "never".

        It may be replaced at any time, with effect from the model's next answer on.
        """
        return self._config.confirmation

    @confirmation.setter
    def confirmation(self, policy: ConfirmationPolicy | None) -> None:
        self._config.confirmation = policy_given(policy)

    @property
    def secrets(self) -> Secrets:
        """The secrets for commands in the sandbox."""
        return self._config.secrets

    @property
    def user_id(self) -> str | None:
        """The user's id, which is stored in the metadata."""
        return self._config.user_id

    @property
    def resume_state(self) -> ResumeState:
        """The state of the earlier sandbox according to the log; complete after `start`."""
        return self._environment.resume_state
