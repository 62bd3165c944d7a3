"""`Conversation`: an agent at work for a user; this class is the interface, other modules do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from ohsandbox import events
from ohsandbox.arguments import check_wait, expect, expect_method, suggests_names
from ohsandbox.conversation.approvals.decisions import Approvals, Decision
from ohsandbox.conversation.approvals.policy import policy_given
from ohsandbox.conversation.config import ConversationConfig
from ohsandbox.conversation.environment.environment import Environment, check_place
from ohsandbox.conversation.live_output import LiveOutput
from ohsandbox.conversation.log import ConversationLog, Listeners, StreamRelay
from ohsandbox.conversation.methods.aio import AsyncConversation
from ohsandbox.conversation.methods.listening import ObservedConversation
from ohsandbox.conversation.methods.model_side import ModelSide
from ohsandbox.conversation.methods.time_travel import TimeTravel
from ohsandbox.conversation.run.limits import RunLimits
from ohsandbox.conversation.run.result import RunResult
from ohsandbox.conversation.run.runner import STOP_TIMEOUT_S, Runner, RunThread
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
    from ohsandbox.conversation.environment.environment import ResumeState
    from ohsandbox.conversation.environment.skill_servers import ProposedServers, SkillServersPolicy
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Secrets
    from ohsandbox.settings import Settings


class Conversation(ObservedConversation, ModelSide, TimeTravel, AsyncConversation):
    """An agent that works for a user in a sandbox, with every event on disk.

    The loop runs in a thread of its own from `send_message` until the model answers in text (IDLE), calls `finish`
    (FINISHED), fails or reaches a limit (ERROR), or `stop` is called (CANCELED); then another message may follow.
    WAITING_FOR_CONFIRMATION ends it, too: see `pending`, `confirm` and `reject`; a message rejects all that wait.

    Args:
        agent: None, or one without a model, takes the model of the settings.
        runtime: None is a DockerRuntime by the settings. One that is not running is started with the first message
            and closed by `close`; one that runs already stays the caller's.
        persist_dir: the directory of all conversations; None is `conversations` in the state directory.
        metadata_store: None keeps `metadata.json` beside the log.
        conversation_id: None makes a new one; the id of an existing log continues it.
        user_id: stored in the metadata.
        settings: None reads the settings file when it is needed.
        limits: None takes those of the settings where they are read, else the defaults.
        tool_choice: for the first request of each run; "required" forces a tool call. Later ones are "auto".
        confirmation: which calls a person must allow: a policy, or "never", "always", "risky", "medium" or
            "plan"; None takes that of the settings that are given, else "never".
        security_analyzer: assesses the risk of each call for such a policy; None is `default_analyzer`.
        confirm: asks the person, in the run's thread; None lets the run end and wait for `confirm()`.
        secrets: for the sandbox's commands; None takes those of the settings that are given.
        checkpoints: whether one is taken before each turn's first change and after its last, for `fork`; None
            takes what the settings say that are given, else none is taken.
        skill_servers: whether MCP servers that skills of the workspace bring start: "ask" (which waits for
            `approve(pending_servers.scope)`), "allow", "never", or a callback; None takes the settings', else "ask".
        depth: how many agents stand above this one; for sub-agents.
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
            UsageError: an argument is of another kind, the id is not allowed, there is no policy of that name, or no
                tool of a name that the agent has.
        """
        self.id = new_id() if conversation_id is None else check_id(conversation_id)
        root = root_of("persist_dir", persist_dir)
        self.directory = root / self.id
        self._closed = False
        expect_method("metadata_store", metadata_store, "save", "a ConversationStore")
        self._store = metadata_store or FileConversationStore(root)
        self._config = ConversationConfig(
            agent, limits=limits, settings=settings, user_id=user_id, tool_choice=tool_choice,
            confirmation=confirmation, security_analyzer=security_analyzer, secrets=secrets, checkpoints=checkpoints,
            skill_servers=skill_servers, depth=depth,
        )  # fmt: skip
        self._log = ConversationLog(self.directory, conversation_id=self.id)
        self._run_began = self._log.position
        self._stream = StreamRelay(self._log)
        self._statuses: Listeners[str] = Listeners()
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
        """The conversation with this id, or the only one that begins so; None is the newest of the working directory.

        Where nothing was done in that directory, None is the newest of all.

        Of the class, it makes a conversation. Of a conversation, it is this very one, with its agent, runtime and
        callbacks, that continues the stored one and is started; None is its own log where it has one, else the newest
        beside it. One in which nothing was said is never the newest.

        Args:
            conversation_id: see above.
            persist_dir: as for a new one; of the class only.
            options: those of a new one that `ResumeOptions` names; of the class only.

        Raises:
            UsageError: there is none, or several begin so; or the conversation is open with another id, or got options.
            OhsandboxError: of a conversation, as `start`.
        """
        if isinstance(target, type):
            root = root_of("persist_dir", persist_dir)
            return target(persist_dir=root, conversation_id=find_conversation(root, conversation_id), **options)
        if persist_dir is not None or options:
            raise UsageError("conversation.autoresume() takes an id alone. Use Conversation.autoresume(id, ...).")
        target.directory = adopt(target._log, conversation_id)
        target.id = target.directory.name
        return target.start()

    # --- opening and closing ----------------------------------------------------------------------

    def start(self) -> Self:
        """Open the log, replay its events, open the model. Twice is fine; `send_message` does it too.

        Raises:
            ConversationOpenError: another process has the conversation.
            LogCorruptError: its log is damaged.
            UsageError: the directory cannot be used, or lies in the workspace that the agent writes (or that one in
                it); no model is named.
        """
        with self._log.lock:
            if self._closed:
                raise UsageError(f"Conversation {self.id!r} is closed. Make a new Conversation with its id to go on.")
            if not self._log.is_open:
                self._open()
            self._environment.start_servers()
        return self

    def close(self) -> None:
        """Stop what runs, close the tools, the runtime if the conversation started it, and the log. Twice is fine."""
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
            self._config.outside = self.runtime.outside_secrets
        self._config.load()
        self._environment.read_servers()
        self.agent.preload()
        take = (self.resume_state.add, self._run_thread.recall, self._approvals.standing.add)
        self._log.open(*take, masker=self._config.secrets.masker)
        self._run_began = self._log.position
        self._run_thread.take_over(is_finished=self.resume_state.is_finished, is_asking=bool(self.pending))

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
        """Send a message. Starts the loop where none runs; a running one sends it with its next request.

        Args:
            text: what to do.
            images: shown to the model with it, as data URLs (`content.image_url`). A model that sees none is told so.

        Raises:
            LogWriteError: the message could not be stored; nothing is started.
            UsageError: text is not a str, or is blank; an image is not a data URL of a PNG, JPEG, GIF or WebP, or the
                images are more or larger than the settings' `output` lets a model see.
            OhsandboxError: as `start`.
        """
        expect("text", text, str, optional=False)
        if not text.strip():
            raise UsageError(f"text={text[:20]!r} is blank. Say what to do; `resume` goes on without a message")
        self._config.output.check_images(images)
        self.start()
        with self._log.lock:
            self._approvals.give_way()
            self._run_began = self._log.position
            self._log.emit(events.user_message(text, images))
            self._run_thread.wake()

    def run(self, text: str, timeout_s: float | None = None) -> RunResult:
        """Send a message and wait: `send_message`, then `wait`.

        The result equals its status (`run("Go.") == ConversationStatus.IDLE`), and has the answer, usage and events.
        """
        check_wait(timeout_s=timeout_s)
        self.send_message(text)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the loop and its callbacks, or timeout_s; returns what came since the last message or the resume."""
        self._run_thread.wait(timeout_s)
        workdir = "" if self.runtime is None else self.runtime.workdir
        with self._log.lock:
            span = {"since": self._run_began, "until": self._log.position}
            return RunResult(self.directory, self.status(), self.error, **span, workdir=workdir)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> ConversationStatus:
        """Cancel the running tool or request and wait for the loop to end; with nothing running, a no-op.

        Returns the status: CANCELED, or RUNNING if it did not end in time or a callback called this.
        """
        self._run_thread.stop(timeout_s)
        return self.status()

    def resume(self) -> bool:
        """Continue without a new message where the log ends before the answer of the model; returns False elsewhere.

        For use after a kill, a failure or `stop` in the middle of a task. What waits for a person keeps waiting.

        Raises:
            OhsandboxError: as `start`.
        """
        settled = {ConversationStatus.WAITING_FOR_CONFIRMATION, ConversationStatus.FINISHED}
        self.start()
        return self._run_thread.begin_where(lambda: self.status() not in settled and self._log.history.needs_answer)

    # --- answering for calls ----------------------------------------------------------------------

    @property
    def pending(self) -> list[PendingCall]:
        """The calls that wait for a person, in order; empty where none do, or before `start`."""
        return self._approvals.pending

    def confirm(
        self,
        tool_call_ids: Sequence[str] | None = None,
        *,
        by: str = "user",
        run: bool = True,
        scope: CallScope | None = None,
    ) -> None:
        """Let calls that wait run. The run goes on once each of them has its answer.

        Args:
            tool_call_ids: which; None is all.
            by: kept in the log.
            run: False only stores the answer; the next run acts on it.
            scope: allow from now on what it says as well; see `approve`.

        Raises:
            UsageError: nothing waits, or one that is named does not, or scope does not cover one.
            OhsandboxError: as `start`.
        """
        self._decide(Decision(approved=True, tool_call_ids=tool_call_ids, scope=scope), by=by, run=run)

    def reject(
        self, reason: str = "", tool_call_ids: Sequence[str] | None = None, *, by: str = "user", run: bool = True
    ) -> None:
        """Refuse calls that wait; the model is told so, with the reason, and goes on.

        A refusal of all also stops the calls of the same reply that would not have asked. Arguments and errors are
        those of `confirm`.
        """
        self._decide(Decision(approved=False, reason=reason, tool_call_ids=tool_call_ids), by=by, run=run)

    def go_on(self) -> bool:
        """Begin the run that acts on stored confirmations; returns False where there are none.

        Raises:
            OhsandboxError: as `start`.
        """
        self.start()
        return self._run_thread.begin_where(lambda: self._log.history.held.is_decided)

    @property
    def approvals(self) -> list[Approval]:
        """The standing approvals, in order; empty before `start`."""
        with self._log.lock:
            return self._approvals.standing.in_force

    @property
    def pending_servers(self) -> ProposedServers | None:
        """MCP servers of the workspace's skills that a running sandbox has, and that wait for a person's word."""
        return self._environment.pending_servers

    def approve(self, scope: AnyScope, *, by: str = "user") -> Approval:
        """Allow what scope covers, from now on in this conversation. Calls that are already waiting keep waiting.

        Sub-agents have conversations of their own. Tools that are set to ask each time still do.

        Raises:
            UsageError: the scope names no directory, or a call that hides characters.
            OhsandboxError: as `start`.
        """
        self.start()
        return self._approvals.grant(scope, by=by)

    def revoke(self, number: int, *, by: str = "user") -> None:
        """Revoke a standing approval from the next response on; calls that wait by it wait for a person.

        Raises:
            UsageError: none of that number is in force.
            OhsandboxError: as `start`.
        """
        self.start()
        self._approvals.revoke(number, by=by)

    def _decide(self, decision: Decision, *, by: str, run: bool) -> None:
        self.start()
        with self._log.lock:
            self._approvals.decide(decision, by=by)
            self._run_thread.begin_where(lambda: run and not self.pending)

    # --- looking on -------------------------------------------------------------------------------

    def status(self) -> ConversationStatus:
        """The status of the conversation."""
        return self._run_thread.status

    @property
    def error(self) -> BaseException | None:
        """What ended the last run with ERROR; its `exit_code` is the command's."""
        return self._run_thread.error

    # --- what it is made of -----------------------------------------------------------------------

    @property
    def agent(self) -> Agent:
        """The agent; from `start` on with a model. It may be replaced before the first message."""
        return self._config.agent

    @agent.setter
    def agent(self, agent: Agent) -> None:
        self._config.agent = agent

    @property
    def runtime(self) -> Runtime | None:
        """The runtime; None until there is a sandbox. It may be set before the first message."""
        return self._environment.runtime

    @runtime.setter
    def runtime(self, runtime: Runtime | None) -> None:
        if runtime is not None:
            check_place(self.directory, runtime)
        self._environment.runtime = runtime

    @property
    def limits(self) -> RunLimits:
        """The limits; they may be replaced at any time, for the next answer of the model."""
        return self._config.limits

    @limits.setter
    def limits(self, limits: RunLimits) -> None:
        expect("limits", limits, RunLimits, optional=False)
        self._config.check_prices(limits)
        self._config.limits = limits

    @property
    def confirmation(self) -> ConfirmationPolicy | None:
        """Which calls ask; may be replaced at any time, for the model's next answer.

        None is that of the settings, else never.
        """
        return self._config.confirmation

    @confirmation.setter
    def confirmation(self, policy: ConfirmationPolicy | None) -> None:
        self._config.confirmation = policy_given(policy)

    @property
    def secrets(self) -> Secrets:
        """The secrets of the sandbox's commands."""
        return self._config.secrets

    @property
    def user_id(self) -> str | None:
        """The user; stored in the metadata."""
        return self._config.user_id

    @property
    def resume_state(self) -> ResumeState:
        """What the log says of the earlier sandbox; complete after `start`."""
        return self._environment.resume_state
