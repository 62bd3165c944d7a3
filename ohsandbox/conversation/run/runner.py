"""`Runner`: what a conversation does in a run. `RunThread`: its runs, one at a time, each in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.agent.history import PLAN_MODE
from ohsandbox.arguments import check_wait
from ohsandbox.conversation.approvals.policy import PLAN_BEGINS, PLAN_IS_OVER, PlanMode
from ohsandbox.conversation.run.loop import CondensationTrigger, Loop
from ohsandbox.conversation.storage.metadata import keep_metadata
from ohsandbox.conversation.subagents import MAX_DEPTH, AuxiliaryCompletion, SubagentManager
from ohsandbox.errors import LimitReachedError, OhsandboxError
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence.layout import TOOLS_NAME
from ohsandbox.state import ConversationState
from ohsandbox.timetravel.checkpoints import CheckpointRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation.approvals.decisions import Approvals
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.environment.environment import Environment
    from ohsandbox.conversation.log import ConversationLog, StreamRelay
    from ohsandbox.conversation.storage.metadata import ConversationStore
    from ohsandbox.conversation.subagents import Converse
    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import Delegation

STOP_TIMEOUT_S = 20.0
"""The runtime's kill ladder is bounded to 15 s; a little more for the event after it."""

_INTERRUPT_EVERY_S = 0.5
"""An interrupt can come before the command it is meant for; it is repeated until the run has ended."""


class Runner:
    """Prepares the environment, runs the loop, and takes checkpoints before and after it."""

    def __init__(
        self,
        config: ConversationConfig,
        log: ConversationLog,
        environment: Environment,
        *,
        approvals: Approvals,
        stream: StreamRelay,
        converse: Converse,
    ) -> None:
        """Start nothing.

        Args:
            config: the agent and its limits, as they are when a run begins.
            log: stores every event.
            environment: prepared by the first run.
            approvals: let calls pass that would wait for a person.
            stream: gets what the model's client reports.
            converse: makes the conversation of a sub-agent.
        """
        self.canceled = threading.Event()
        """Set by who stops a run."""
        self._config = config
        self._log = log
        self._environment = environment
        self._approvals = approvals
        self._stream = stream
        self._subagents = SubagentManager(config, log, canceled=self.canceled, converse=converse)
        self._ask = AuxiliaryCompletion(config, log, canceled=self.canceled, hear=stream)

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        """Work until the person has the next word; before_request is called before each request to the model.

        Raises:
            OhsandboxError: the sandbox cannot be had, a limit is reached, the model gave no answer.
        """
        tools = self._environment.prepare(self._state, canceled=self.canceled)
        runtime = self._environment.runtime

        def prepare_request() -> None:
            self._environment.before_request()
            self._tell_mode()
            before_request()

        with CheckpointRecorder(self._log, runtime, enabled=self._config.keeps_files) as checkpoints:
            return Loop(
                config=self._config,
                tools=tools,
                log=self._log,
                canceled=self.canceled,
                condensation=CondensationTrigger(self._config.agent, self._log, self._ask),
                checkpoints=checkpoints,
                approval_filter=self._config.approval_filter(runtime, self._approvals),
                interrupt=self.interrupt,
                before_step=prepare_request,
                on_event=self._stream,
            ).run()

    def _tell_mode(self) -> None:
        """Tell the model that it is to plan, or that it may act again, once for each change."""
        is_on = isinstance(self._config.policy, PlanMode)
        if is_on != self._log.history.is_planning:
            message = PLAN_BEGINS if is_on else PLAN_IS_OVER
            facts = {"is_on": is_on, "to_model": True, "for_person": False}
            self._log.emit(events.notice(code=PLAN_MODE, message=message, **facts))

    def compact(self) -> ConversationStatus:
        """Condense what the model is shown.

        Raises:
            ModelError: the model was asked for a summary and gave none.
        """
        if not CondensationTrigger(self._config.agent, self._log, self._ask).now():
            message = "The conversation is too short to be condensed: nothing was left out."
            self._log.emit(events.notice(code="NothingToCondense", message=message))
        return ConversationStatus.IDLE

    def place(self) -> dict[str, Any]:
        """Where it works, for the log: see `events.status_update`."""
        runtime = self._environment.runtime
        workspace = None if runtime is None else runtime.host_workspace or runtime.copied_workspace
        place: dict[str, Any] = {"workspace": None if workspace is None else str(workspace)}
        with contextlib.suppress(OSError):  # somebody has removed it
            place["directory"] = str(Path.cwd())
        return place | {"secrets": self._config.secrets.names}

    def interrupt(self) -> None:
        """End what is waited for: sub-agents, a request to the model, calls."""
        self._subagents.interrupt()
        self._environment.interrupt(self._log.history.unanswered.values())

    def _state(self, runtime: Runtime) -> ConversationState:
        """The conversation as its tools see it."""
        agent = self._config.agent.with_mcp(self._environment.servers)

        def delegate(delegation: Delegation) -> str:
            parent = agent if agent.llm is self._config.llm else agent.with_llm(self._config.llm)
            return self._subagents.run(delegation, parent=parent, lender=runtime)

        return ConversationState(
            conversation_id=self._log.conversation_id,
            runtime=runtime,
            user_id=self._config.user_id,
            directory=self._log.directory / TOOLS_NAME,
            ask_model=self._ask,
            delegate=delegate if self._config.depth < MAX_DEPTH else None,
            output=self._config.output,
        )


class RunThread:
    """Begins, stops and awaits runs; has the status, and the error that the last run ended with."""

    def __init__(
        self,
        runner: Runner,
        config: ConversationConfig,
        log: ConversationLog,
        *,
        approvals: Approvals,
        store: ConversationStore,
    ) -> None:
        """IDLE until a log says otherwise. store gets the metadata with each change of the status."""
        self.status = ConversationStatus.IDLE
        self.error: BaseException | None = None
        self._runner = runner
        self._config = config
        self._log = log
        self._approvals = approvals
        self._store = store
        self._thread: threading.Thread | None = None
        self._spoken_to = self._compacts = False
        self._settled = threading.Event()
        self._settled.set()

    @property
    def is_on(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._thread is not None

    def recall(self, event: SDKEvent) -> None:
        """Follow an event of an earlier process."""
        if event.type == "status_update":
            self.status = ConversationStatus(event.data["status"])

    def take_over(self, *, is_finished: bool, is_asking: bool) -> None:
        """Correct the status of an earlier process, whose run is dead.

        Args:
            is_finished: the last thing that happened is a `finish`.
            is_asking: calls wait for a person.
        """
        if self.status is ConversationStatus.RUNNING:
            self.status = ConversationStatus.FINISHED if is_finished else ConversationStatus.IDLE
        if is_asking:
            self.status = ConversationStatus.WAITING_FOR_CONFIRMATION

    def wake(self) -> None:
        """Have what the person said heard: by the next request of the run that is on, else by a run that begins.

        Raises:
            LogWriteError: that it began could not be stored, and it did not.
        """
        with self._log.lock:
            self._spoken_to = True
            if not self.is_on:
                self._begin()

    def begin_where(self, is_due: Callable[[], bool]) -> bool:
        """Begin a run where none is on and it is due; returns whether it did. Callbacks hear of it before this returns.

        Raises:
            LogWriteError: as for `wake`.
        """
        with self._log.lock:
            begins = not self.is_on and is_due()
            if begins:
                self._begin()
        return begins

    def compact(self) -> bool:
        """Begin one that only condenses; False where one is on.

        Raises:
            LogWriteError: as for `wake`.
        """
        with self._log.lock:
            if self.is_on:
                return False
            self._compacts = True
            self._begin()
            return True

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until none is on and callbacks have heard of its end; returns False if the time was up first."""
        check_wait(timeout_s=timeout_s)
        return self._settled.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Cancel the one that is on and wait for its end, unless its own thread calls this, or the time is up."""
        check_wait(timeout_s=timeout_s)
        with self._log.lock:
            thread = self._thread
            if thread is not None:
                self._runner.canceled.set()
        if thread is None:
            return
        deadline = time.monotonic() + timeout_s
        while not self._settled.is_set():
            self._runner.interrupt()
            if thread is threading.current_thread() or time.monotonic() >= deadline:
                break
            self._settled.wait(min(_INTERRUPT_EVERY_S, timeout_s))

    def _begin(self) -> None:
        self._runner.canceled.clear()
        self._settled.clear()
        self.error = None
        try:
            self._become(ConversationStatus.RUNNING)
        except BaseException:
            self._settled.set()  # nobody is to wait for what never began
            raise
        name = f"ohsandbox-{self._log.conversation_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _become(self, status: ConversationStatus) -> None:
        """Store another status, in the log and in the metadata.

        Raises:
            LogWriteError: it could not be stored; the status is as it was.
        """
        with self._log.lock:
            facts = self._runner.place() if status is ConversationStatus.RUNNING else {}
            body = events.status_update(status, model=self._config.llm.name, user_id=self._config.user_id, **facts)
            self._log.emit(body)
            self.status = status
            keep_metadata(self._store, self._log.metadata())

    def _end(self, status: ConversationStatus, error: BaseException | None) -> None:
        """Take the status and error of a run that ended; a log that fails only keeps them from the disk."""
        self.error = error
        self.status = status
        with contextlib.suppress(OhsandboxError):  # a log that failed: `error` says so already
            if error is not None:
                self._log.emit(_error_event(error))
            self._become(status)

    # --- in the run's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        over = False
        try:
            while not over:  # again where the person spoke after the model's last request
                error: BaseException | None = None
                try:
                    compacts, self._compacts = self._compacts, False
                    run = partial(self._runner.run, before_request=self._hear_person)
                    status = self._runner.compact() if compacts else run()
                    if status is ConversationStatus.WAITING_FOR_CONFIRMATION:
                        self._ask_person()
                except BaseException as failure:  # noqa: BLE001 - the thread's last frame: it becomes the status
                    status, error = _status_after(failure, canceled=self._runner.canceled.is_set())
                over = self._is_over(status, error)
        finally:
            with self._log.lock:
                if self._thread in {None, threading.current_thread()}:  # else a callback has begun the next
                    self._thread = None
                    self._settled.set()

    def _is_over(self, status: ConversationStatus, error: BaseException | None) -> bool:
        with self._log.lock:
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION and not self._approvals.pending:
                try:
                    self._become(ConversationStatus.RUNNING)
                except OhsandboxError as failure:  # the log: what ended the run
                    status, error = _status_after(failure, canceled=self._runner.canceled.is_set())
                else:
                    return False
            if self._spoken_to and status in {ConversationStatus.IDLE, ConversationStatus.FINISHED}:
                return False
            self._thread = None
            self._end(status, error)
            return True

    def _hear_person(self) -> None:
        """What was said so far is in the next request."""
        with self._log.lock:
            self._spoken_to = False

    def _ask_person(self) -> None:
        """Ask the callback, if there is one; the log says meanwhile that an answer is awaited."""
        if self._approvals.callback is not None:
            with self._log.lock:
                self._become(ConversationStatus.WAITING_FOR_CONFIRMATION)
            self._approvals.ask()


def _status_after(error: BaseException, *, canceled: bool) -> tuple[ConversationStatus, BaseException | None]:
    """The status, and the error where it is one: what a stop brought about is none."""
    from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - the model's package is loaded by now

    if isinstance(error, KeyboardInterrupt) or (canceled and isinstance(error, ModelCanceledError)):
        return ConversationStatus.CANCELED, None
    return ConversationStatus.ERROR, error


def _error_event(error: BaseException) -> EventBody:
    """The event that tells of it."""
    if not isinstance(error, OhsandboxError):
        return events.error(code=type(error).__name__, message=f"{type(error).__name__}: {error}")
    code = error.code if isinstance(error, LimitReachedError) else type(error).__name__
    return events.error(code=code, message=str(error), exit_code=error.exit_code)
