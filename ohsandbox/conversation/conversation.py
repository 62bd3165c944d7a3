"""`Conversation`: runs an agent in a thread, and stores each event before the next thing happens."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ohsandbox import events
from ohsandbox.agent import Agent
from ohsandbox.conversation.branching import Branching
from ohsandbox.conversation.checkpointing import Checkpointing
from ohsandbox.conversation.condensing import Condensing
from ohsandbox.conversation.confirmation import Answering
from ohsandbox.conversation.delegation import MAX_DEPTH, Parent, SideQuestion, SubAgents
from ohsandbox.conversation.delivery import Delivery
from ohsandbox.conversation.limits import Limits
from ohsandbox.conversation.loop import Loop
from ohsandbox.conversation.mcp_servers import ConversationServers
from ohsandbox.conversation.opening import default_runtime, limits_of, with_model
from ohsandbox.conversation.outcome import error_event, status_after
from ohsandbox.conversation.resume import Past, Resuming, start_again, tell_what_is_lost
from ohsandbox.conversation.secrecy import Secretive
from ohsandbox.conversation.store import (
    ConversationStore,
    FileConversationStore,
    check_id,
    default_root,
    keep_metadata,
    new_id,
)
from ohsandbox.conversation.trail import Trail
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus, SDKEvent
from ohsandbox.persistence import read_events
from ohsandbox.settings import Settings
from ohsandbox.state import ConversationState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.conversation.confirmation import Ask, ConfirmationPolicy, SecurityAnalyzer
    from ohsandbox.llm import ChatModel
    from ohsandbox.llm.events import LLMEvent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.secrets import Secrets

STOP_TIMEOUT_S = 20.0
"""The runtime's kill ladder is bounded to 15 s; a little more for the event after it."""

_INTERRUPT_EVERY_S = 0.5
"""An interrupt can come before the command it is meant for; it is repeated until the run has ended."""


class Conversation(Answering, Branching, Resuming, Secretive):
    """An agent at work for a user, in a sandbox, with everything on disk.

    The loop runs in a thread of its own from `send_message` until the model answers in words (IDLE), calls `finish`
    (FINISHED), fails or reaches a limit (ERROR), or `stop` is called (CANCELED); then another message may follow.
    WAITING_FOR_CONFIRMATION ends it as well: see `pending`, `confirm` and `reject`; a message is a refusal of all.
    """

    def __init__(  # noqa: PLR0917 - the seed document's order
        self,
        agent: Agent | None = None,
        runtime: Runtime | None = None,
        persist_dir: Path | str | None = None,
        metadata_store: ConversationStore | None = None,
        conversation_id: str | None = None,
        user_id: str | None = None,
        *,
        settings: Settings | None = None,
        limits: Limits | None = None,
        tool_choice: str = "auto",
        confirmation: ConfirmationPolicy | str | None = None,
        security_analyzer: SecurityAnalyzer | None = None,
        confirm: Ask | None = None,
        secrets: Secrets | None = None,
        checkpoints: bool | None = None,
        depth: int = 0,
    ) -> None:
        """Put a conversation together; nothing is opened, started or written before `start` or the first message.

        Args:
            agent: None, or one without a model, takes the model of the settings.
            runtime: None is a DockerRuntime by the settings. One that is not running is started with the first
                message and closed by `close`; one that runs already stays the caller's.
            persist_dir: the directory of all conversations; None is `~/.ohsandbox/conversations`.
            metadata_store: None keeps `metadata.json` beside the log.
            conversation_id: None is a fresh one; that of an existing log goes on from it.
            user_id: kept in the metadata.
            settings: None reads the settings file when it is needed.
            limits: None takes those of the settings where they are read, else the defaults.
            tool_choice: for the first request of each run; "required" forces a tool call. Later ones are "auto".
            confirmation: which calls a person must allow: a policy, or "never", "always" or "risky"; None takes that
                of the settings that are given, else "never".
            security_analyzer: what such a policy goes by; None is the model's word and our rules.
            confirm: asks the person, in the run's thread; None lets the run end and wait for `confirm()`.
            secrets: for the sandbox's commands; None takes those of the settings that are given.
            checkpoints: whether the files are kept before each turn's first change and after its last, for `fork`;
                None takes what the settings say that are given, else they are not.
            depth: how many agents stand above this one; for sub-agents.

        Raises:
            UsageError: the id is not allowed, or HOME is not set and persist_dir is None.
        """
        self.id = new_id() if conversation_id is None else check_id(conversation_id)
        root = default_root() if persist_dir is None else Path(persist_dir)
        self.directory = root / self.id
        self.agent = agent or Agent()
        self._agent_is_ours = agent is None
        self.runtime = runtime
        self.user_id = user_id
        self.error: BaseException | None = None
        """What ended the last run with ERROR; its `exit_code` is the command's."""
        self.limits = limits or Limits()
        self._limits_given = limits is not None
        self._settings = settings
        self._store = metadata_store or FileConversationStore(root)
        self._tool_choice = tool_choice
        self._trail = Trail(self.directory, conversation_id=self.id)
        self._guard = self._trail.guard
        self._expect_answers(confirmation, security_analyzer, confirm)
        self._expect_secrets(secrets)
        self.past = Past()
        self._status = ConversationStatus.IDLE
        self._closed = False
        self._stream: Delivery[LLMEvent] = Delivery()
        self._tools_map: ToolsMap | None = None
        self._depth = depth
        self._checkpoints = checkpoints
        self._sub_agents: SubAgents | None = None
        self._statuses: Delivery[str] = Delivery()
        self._mcp = ConversationServers(None, self._trail, self._statuses)
        self._owns_runtime = False
        self._thread: threading.Thread | None = None
        self._spoken_to = False
        self._canceled = threading.Event()
        self._settled = threading.Event()
        self._settled.set()

    # --- for the user -----------------------------------------------------------------------------

    def start(self) -> Self:
        """Open the log, take in what it holds, open the model. Twice is fine; `send_message` does it too.

        Raises:
            ConversationOpenError: another process has the conversation.
            LogCorruptError: its log is damaged.
            UsageError: the directory cannot be used, or no model is named.
        """
        with self._guard:
            if self._closed:
                raise UsageError(f"Conversation {self.id!r} is closed. Make a new Conversation with its id to go on.")
            if not self._trail.is_open:
                self._open_model()
                self._open_log()
            if self._mcp.to_begin and self.runtime is not None and self.runtime.is_alive():
                self._mcp.begin(self.runtime)
        self._trail.flush()
        return self

    def send_message(self, text: str) -> None:
        """Say something. Starts the loop where none runs; a running one hears it with its next request.

        Raises:
            LogWriteError: the message could not be stored; nothing is started.
            Everything that `start` raises.
        """
        self.start()
        with self._guard:
            self._approvals.give_way()
            self._trail.record(events.user_message(text))
            self._spoken_to = True
            if self._thread is None:
                self._begin_run()
        self._trail.flush()

    def run(self, text: str, timeout_s: float | None = None) -> ConversationStatus:
        """Say something and wait: `send_message`, then `wait`."""
        self.send_message(text)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> ConversationStatus:
        """The status when the loop has ended and callbacks have heard of it; RUNNING if timeout_s ran out first."""
        self._settled.wait(timeout_s)
        return self.status()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> ConversationStatus:
        """Cancel what runs, tool and request alike, and wait for the loop to end; with nothing running, a no-op.

        Returns the status: CANCELED, or RUNNING if it did not end in time or a callback called this.
        """
        with self._guard:
            thread = self._thread
            if thread is not None:
                self._canceled.set()
        if thread is None:
            return self.status()
        deadline = time.monotonic() + timeout_s
        while not self._settled.is_set():
            self._interrupt()
            if thread is threading.current_thread() or time.monotonic() >= deadline:
                break
            self._settled.wait(min(_INTERRUPT_EVERY_S, timeout_s))
        return self.status()

    def status(self) -> ConversationStatus:
        """Where the conversation stands."""
        return self._status

    def register_callback(self, callback: Callable[[SDKEvent], None]) -> None:
        """Call with every event from now on, in order, after it is stored. One that fails is logged and goes on."""
        self._trail.delivery.register(callback)

    def register_stream(self, callback: Callable[[LLMEvent], None]) -> None:
        """Call with what the model's client tells while it works: pieces of text, retries, warnings."""
        self._stream.register(callback)

    def register_status(self, callback: Callable[[str], None]) -> None:
        """Call with what goes on now, for a person who looks on: a line, or "" for nothing. It must not block."""
        self._statuses.register(callback)

    def events(self) -> list[SDKEvent]:
        """Everything in the log so far, read from disk."""
        return read_events(self.directory)

    def close(self) -> None:
        """Stop what runs, close the tools, the runtime if the conversation started it, and the log. Twice is fine."""
        self.stop()
        with self._guard:
            self._closed = True
            for tool in (self._tools_map or {}).values():
                tool.close()
            self._mcp.close()
            if self._owns_runtime and self.runtime is not None:
                self.runtime.close()
                self._owns_runtime = False
            self._trail.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening ----------------------------------------------------------------------------------

    def _open_model(self) -> None:
        if self.agent.llm is None:
            self.agent = with_model(self.agent, self._loaded_settings())
            if self._agent_is_ours:
                settings = self._loaded_settings()
                self.agent = self.agent.with_tools(settings.tools.names()).with_mcp(settings.mcp_config)
        if self._settings is not None and not self._limits_given:
            self.limits = limits_of(self._settings)
        self._know_secrets(self._llm)
        self._mcp = ConversationServers(self.agent.mcp_config, self._trail, self._statuses)
        self._llm.preload()

    def _open_log(self) -> None:
        self._trail.open(self._remember)
        if self._status is ConversationStatus.RUNNING:
            # the process that ran it is dead: we hold its lock
            self._status = ConversationStatus.FINISHED if self.past.is_finished else ConversationStatus.IDLE
        if self.pending:
            self._status = ConversationStatus.WAITING_FOR_CONFIRMATION

    def _remember(self, event: SDKEvent) -> None:
        self.past.add(event)
        if event.type == "status_update":
            self._status = ConversationStatus(event.data["status"])

    def _prepare(self) -> ToolsMap:
        """Start the sandbox, make the tools, store the system message where it changed."""
        if self._tools_map is None:
            runtime = self.runtime or default_runtime(self._loaded_settings(), conversation_id=self.id)
            self._give_secrets(runtime)
            if not runtime.is_alive():
                self._owns_runtime = True
                start_again(runtime, self.past)
            self.runtime = runtime
            for body in tell_what_is_lost(runtime, self.past, self._trail.history):
                self._trail.emit(body)
            self._mcp.begin(runtime)
            state = self._tool_state(runtime)
            tools_map = self.agent.initialize(state)
            self._mcp.offer(tools_map, canceled=self._canceled)
            system_message = self.agent.system_message(state, tools_map, note=self._mcp.missing())
            if self._trail.history.system_prompt != system_message.data:
                self._trail.emit(system_message)
            self._tools_map = tools_map
        return self._tools_map

    def _tool_state(self, runtime: Runtime) -> ConversationState:
        """The conversation as its tools see it."""
        parent = Parent(
            agent=self.agent.with_mcp(self._mcp.servers),
            runtime=runtime,
            trail=self._trail,
            user_id=self.user_id,
            depth=self._depth,
            canceled=self._canceled,
            budget=lambda: self._trail.spending.remaining(self.limits),
        )
        inherited = {"secrets": self.secrets, **self._for_sub_agents()}
        self._sub_agents = SubAgents(parent, converse=partial(Conversation, **inherited))
        self._ask = SideQuestion(parent, hear=self._hear_model)
        return ConversationState(
            conversation_id=self.id,
            runtime=runtime,
            user_id=self.user_id,
            directory=self.directory / "tools",
            ask_model=self._ask,
            delegate=self._sub_agents if self._depth < MAX_DEPTH else None,
        )

    def _loaded_settings(self) -> Settings:
        if self._settings is None:
            self._settings = Settings.load()
        return self._settings

    @property
    def _llm(self) -> ChatModel:
        if self.agent.llm is None:
            raise UsageError("The agent has no model. Give it one, or name one in the settings.")
        return self.agent.llm

    # --- the loop, in its own thread --------------------------------------------------------------

    def _begin_run(self) -> None:
        self._canceled.clear()
        self._settled.clear()
        self.error = None
        self._set_status(ConversationStatus.RUNNING)
        self._thread = threading.Thread(target=self._run, name=f"ohsandbox-{self.id}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over(*self._run_once()):
                pass  # the user spoke after the model's last request
        finally:
            self._trail.flush()
            with self._guard:
                if self._thread in {None, threading.current_thread()}:
                    self._thread = None
                    self._settled.set()

    def _is_over(self, status: ConversationStatus, error: BaseException | None) -> bool:
        with self._guard:
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION and not self.pending:
                self._set_status(ConversationStatus.RUNNING)
                return False
            if self._spoken_to and status in {ConversationStatus.IDLE, ConversationStatus.FINISHED}:
                return False
            self._end_run(status, error)
            return True

    def _run_once(self) -> tuple[ConversationStatus, BaseException | None]:
        """A run of the loop; what ended it otherwise is the error."""
        try:
            tools_map = self._prepare()
            with Checkpointing(self._trail, self.runtime, enabled=self._keeps_files()) as checkpointing:
                status = Loop(
                    self.agent,
                    tools_map,
                    self._trail,
                    limits=self.limits,
                    tool_choice=self._tool_choice,
                    canceled=self._canceled,
                    condensing=Condensing(self.agent, self._trail, self._ask),
                    checkpointing=checkpointing,
                    screen=self._screen(),
                    interrupt=self._interrupt,
                    before_step=self._begin_step,
                    on_event=self._hear_model,
                ).run()
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
                self._ask_person()
            return status, None  # noqa: TRY300 - it belongs to what may fail
        except BaseException as error:  # noqa: BLE001 - the thread's last frame: whatever it is becomes the status
            return status_after(error, canceled=self._canceled.is_set())

    def _keeps_files(self) -> bool:
        asked = self._settings is not None and self._settings.checkpoints
        return self._depth == 0 and (asked if self._checkpoints is None else self._checkpoints)

    def _begin_step(self) -> None:
        if self.runtime is not None:
            self.runtime.hold()
        if self._tools_map is not None:
            self._mcp.refresh(self._tools_map)
        with self._guard:
            self._spoken_to = False

    def _end_run(self, status: ConversationStatus, error: BaseException | None) -> None:
        self._thread = None
        self.error = error
        self._status = status
        with contextlib.suppress(OhsandboxError):  # a log that failed: `error` says so already
            if error is not None:
                self._trail.record(error_event(error))
            self._set_status(status)

    def _interrupt(self) -> None:
        """End what the loop waits for; sub-agents first: they share the model, and must know that they are stopped."""
        if self._sub_agents is not None:
            self._sub_agents.interrupt()
        self._llm.cancel()
        for name in set(self._trail.history.unanswered.values()):
            tool = (self._tools_map or {}).get(name)
            if tool is not None and tool.executor is not None:
                with contextlib.suppress(OhsandboxError):  # a sandbox that is gone needs no interrupt
                    tool.executor.interrupt()

    def _hear_model(self, event: LLMEvent) -> None:
        if event.type == "retry":
            facts: dict[str, Any] = {"attempt": event.attempt, "wait_s": event.wait_s}
            self._trail.emit(events.retry(code="ModelRetry", message=event.reason, **facts))
        elif event.type == "warning":
            self._trail.emit(events.notice(code="ModelWarning", message=event.text))
        self._stream.put(event)
        self._stream.flush()

    def _set_status(self, status: ConversationStatus) -> None:
        self._status = status
        self._trail.record(events.status_update(status, model=self._llm.name, user_id=self.user_id))
        keep_metadata(self._store, self._trail.metadata())
