"""`Runner`: what happens in a run of a conversation. `RunThread`: starts and stops runs, each in its own thread."""

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
    from ohsandbox.conversation.environment.conversation_environment import Environment
    from ohsandbox.conversation.log import ConversationLog, StreamRelay
    from ohsandbox.conversation.storage.metadata import ConversationStore
    from ohsandbox.conversation.subagents import Converse
    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.state import Delegation

STOP_TIMEOUT_S = 20.0
"""Seconds to wait for a stopped run: ending its processes takes at most 15 s, and storing the event a little more."""

_INTERRUPT_EVERY_S = 0.5
"""Seconds between interrupts: one may come before the command begins, so they are repeated until the run has ended."""


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
        """Store the arguments.

        Args:
            config: the agent and its limits, read when a run begins.
            log: stores all events.
            environment: is prepared by the first run.
            approvals: allow calls that would otherwise wait for a person.
            stream: receives the reports of the model's client.
            converse: makes the conversation of a sub-agent.
        """
        self.canceled = threading.Event()
        """Set to stop a run."""
        self._config = config
        self._log = log
        self._environment = environment
        self._approvals = approvals
        self._stream = stream
        self._subagents = SubagentManager(config, log, canceled=self.canceled, converse=converse)
        self._ask = AuxiliaryCompletion(config, log, canceled=self.canceled, hear=stream)

    def run(self, *, before_request: Callable[[], None]) -> ConversationStatus:
        """Work until the user's next turn; before_request is called before each request to the model.

        Raises:
            OhsandboxError: the sandbox is unavailable, a limit is reached, or the model gave no answer.
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
        """Tell the model when plan mode begins or ends, once for each change."""
        is_on = isinstance(self._config.policy, PlanMode)
        if is_on != self._log.history.is_planning:
            message = PLAN_BEGINS if is_on else PLAN_IS_OVER
            fields = {"is_on": is_on, "to_model": True, "for_person": False}
            self._log.emit(events.notice(code=PLAN_MODE, message=message, **fields))

    def compact(self) -> ConversationStatus:
        """Condense the model's input.

        Raises:
            ModelError: the model gave no summary.
        """
        if not CondensationTrigger(self._config.agent, self._log, self._ask).now():
            message = "The conversation is too short to be condensed: nothing was left out."
            self._log.emit(events.notice(code="NothingToCondense", message=message))
        return ConversationStatus.IDLE

    def place(self) -> dict[str, Any]:
        """Return the fields about the place of the run for `events.status_update`."""
        runtime = self._environment.runtime
        workspace = None if runtime is None else runtime.host_workspace or runtime.copied_workspace
        location: dict[str, Any] = {"workspace": None if workspace is None else str(workspace)}
        with contextlib.suppress(OSError):  # somebody has removed it
            location["directory"] = str(Path.cwd())
        return location | {"secrets": self._config.secrets.names}

    def interrupt(self) -> None:
        """End what the run waits for: sub-agents, a request to the model, calls."""
        self._subagents.interrupt()
        self._environment.interrupt(self._log.history.unanswered.values())

    def _state(self, runtime: Runtime) -> ConversationState:
        """Return the conversation's state for its tools."""
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
    """Starts, stops and awaits runs; has the status, and the error that ended the last run."""

    def __init__(
        self,
        runner: Runner,
        config: ConversationConfig,
        log: ConversationLog,
        *,
        approvals: Approvals,
        store: ConversationStore,
    ) -> None:
        """Create it with status IDLE. store gets the metadata at each change of the status."""
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
        """Whether a run is active."""
        return self._thread is not None

    def recall(self, event: SDKEvent) -> None:
        """Apply an event of an earlier process."""
        if event.type == "status_update":
            self.status = ConversationStatus(event.data["status"])

    def take_over(self, *, is_finished: bool, is_asking: bool) -> None:
        """Correct the status that an earlier process left behind.

        Args:
            is_finished: whether the last call was a successful `finish`.
            is_asking: whether calls wait for a person.
        """
        if self.status is ConversationStatus.RUNNING:
            self.status = ConversationStatus.FINISHED if is_finished else ConversationStatus.IDLE
        if is_asking:
            self.status = ConversationStatus.WAITING_FOR_CONFIRMATION

    def wake(self) -> None:
        """Have a new message answered: by the next request of the active run, else by a new run.

        Raises:
            LogWriteError: the start could not be stored, so no run begins.
        """
        with self._log.lock:
            self._spoken_to = True
            if not self.is_on:
                self._begin()

    def begin_where(self, is_due: Callable[[], bool]) -> bool:
        """Begin a run if none is active and it is due; return whether it began. Callbacks hear of it first.

        Raises:
            LogWriteError: as for `wake`.
        """
        with self._log.lock:
            begins = not self.is_on and is_due()
            if begins:
                self._begin()
        return begins

    def compact(self) -> bool:
        """Begin a run that only condenses; return False if one is active.

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
        """Wait until no run is active and callbacks have heard of its end; return False if that takes too long."""
        check_wait(timeout_s=timeout_s)
        return self._settled.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Cancel the active run and wait for its end, at most timeout_s; the run's own thread does not wait."""
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
            self._settled.set()  # nobody must wait for a run that never began
            raise
        name = f"ohsandbox-{self._log.conversation_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _become(self, status: ConversationStatus) -> None:
        """Store another status in the log and in the metadata.

        Raises:
            LogWriteError: it could not be stored; the status is unchanged.
        """
        with self._log.lock:
            location = self._runner.place() if status is ConversationStatus.RUNNING else {}
            body = events.status_update(status, model=self._config.llm.name, user_id=self._config.user_id, **location)
            self._log.emit(body)
            self.status = status
            keep_metadata(self._store, self._log.metadata())

    def _end(self, status: ConversationStatus, error: BaseException | None) -> None:
        """Set the status and error of a run that has ended, even if the log cannot store them."""
        self.error = error
        self.status = status
        with contextlib.suppress(OhsandboxError):  # if the log failed, `error` says so already
            if error is not None:
                self._log.emit(_error_event(error))
            self._become(status)

    # --- in the run's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        over = False
        try:
            while not over:  # again if the user sent a message after the model's last request
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
                if self._thread in {None, threading.current_thread()}:  # else a callback has begun another run
                    self._thread = None
                    self._settled.set()

    def _is_over(self, status: ConversationStatus, error: BaseException | None) -> bool:
        with self._log.lock:
            if status is ConversationStatus.WAITING_FOR_CONFIRMATION and not self._approvals.pending:
                try:
                    self._become(ConversationStatus.RUNNING)
                except OhsandboxError as failure:  # the log failed
                    status, error = _status_after(failure, canceled=self._runner.canceled.is_set())
                else:
                    return False
            if self._spoken_to and status in {ConversationStatus.IDLE, ConversationStatus.FINISHED}:
                return False
            self._thread = None
            self._end(status, error)
            return True

    def _hear_person(self) -> None:
        """Note that the next request contains all messages so far."""
        with self._log.lock:
            self._spoken_to = False

    def _ask_person(self) -> None:
        """Call the callback, if there is one; meanwhile the log says that calls wait."""
        if self._approvals.callback is not None:
            with self._log.lock:
                self._become(ConversationStatus.WAITING_FOR_CONFIRMATION)
            self._approvals.ask()


def _status_after(error: BaseException, *, canceled: bool) -> tuple[ConversationStatus, BaseException | None]:
    """Return the status after an error, and the error, unless it was caused by a stop."""
    from ohsandbox.llm import ModelCanceledError  # noqa: PLC0415 - the model's package is loaded by now

    if isinstance(error, KeyboardInterrupt) or (canceled and isinstance(error, ModelCanceledError)):
        return ConversationStatus.CANCELED, None
    return ConversationStatus.ERROR, error


def _error_event(error: BaseException) -> EventBody:
    """Return the event that reports an error."""
    if not isinstance(error, OhsandboxError):
        return events.error(code=type(error).__name__, message=f"{type(error).__name__}: {error}")
    code = error.code if isinstance(error, LimitReachedError) else type(error).__name__
    return events.error(code=code, message=str(error), exit_code=error.exit_code)
