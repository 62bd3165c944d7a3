"""`Loop`: steps of an agent until the person has the next word."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

from ohsandbox import events
from ohsandbox.agent import StepOutcome
from ohsandbox.agent.agent import EXIT
from ohsandbox.errors import ModelError
from ohsandbox.events import ConversationStatus
from ohsandbox.llm.errors import ContextWindowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.agent.execution import Step
    from ohsandbox.agent.held import Screen
    from ohsandbox.conversation.condensation import CondensationTrigger
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import EventBody
    from ohsandbox.llm.chat import OnEvent
    from ohsandbox.timetravel.checkpoints import CheckpointRecorder

CUT_EVERY_S = 0.5
"""An interrupt can come before the command it is meant for; it is repeated until the run has ended."""

_STATUS_AFTER = {
    StepOutcome.IDLE: ConversationStatus.IDLE,
    StepOutcome.FINISHED: ConversationStatus.FINISHED,
    StepOutcome.WAITING: ConversationStatus.WAITING_FOR_CONFIRMATION,
}


class Loop:
    """One run: from a user message until the model has answered, called `finish`, or was stopped."""

    def __init__(
        self,
        config: ConversationConfig,
        tools: ToolsMap,
        log: ConversationLog,
        *,
        canceled: threading.Event,
        condensation: CondensationTrigger,
        checkpoints: CheckpointRecorder,
        approval_filter: Screen | None,
        interrupt: Callable[[], None],
        before_step: Callable[[], None],
        on_event: OnEvent,
    ) -> None:
        """Put a run together.

        Args:
            config: agent and limits are those of now; tool_choice is for the first request, later ones are "auto".
            tools: the agent's.
            log: stores every event before the next thing happens.
            canceled: set by who stops the run.
            condensation: shortens the conversation where it is too long.
            checkpoints: records the files before they are changed.
            approval_filter: decides which calls wait for a person; None lets all pass.
            interrupt: ends what the loop waits for, when the time is up; called from another thread.
            before_step: called before each request is put together.
            on_event: gets what the model's client reports.
        """
        self._agent = config.agent
        self._tools_map = tools
        self._log = log
        self._limits = config.limits
        self._tool_choice = config.tool_choice
        self._canceled = canceled
        self._condensation = condensation
        self._checkpoints = checkpoints
        self._screen = approval_filter
        self._deadline = Deadline(self._limits.max_time_s, interrupt)
        self._interrupt = interrupt
        self._before_step = before_step
        self._on_event = on_event

    def run(self) -> ConversationStatus:
        """Take steps until the status is not RUNNING. Calls that a person has decided on come first.

        Raises:
            LimitReachedError: a limit is reached, or the model goes round in circles.
            LogWriteError: an event could not be stored; nothing was done that is not in the log.
            ModelError: the model gave no answer.
            SandboxUnavailable: the sandbox went away.
        """
        spending = self._log.spending
        spending.begin_run()
        left_s = None if self._limits.max_time_s is None else self._limits.max_time_s - spending.elapsed_s
        try:
            with Deadline(left_s, self._interrupt) as self._deadline:
                status = self._steps()
        except ModelError as error:
            if self._deadline.passed and not self._canceled.is_set():
                raise spending.out_of_time(self._limits) from error
            raise
        finally:
            spending.end_run()
        if status is ConversationStatus.CANCELED and not self._canceled.is_set():
            raise spending.out_of_time(self._limits)
        return status

    def _steps(self) -> ConversationStatus:
        held = self._log.history.held
        if held.due:
            self._checkpoints.before_write()
        outcome = self._follow(self._resumed()) if held.due else StepOutcome.CONTINUE
        if held.waiting:
            outcome = StepOutcome.WAITING
        while not self._why_cut():
            if outcome in _STATUS_AFTER:
                return _STATUS_AFTER[outcome]
            try:
                outcome = self._follow(self._next_step())
            except ContextWindowError:  # the provider finds the conversation too long: shortened, once, and sent again
                if not self._condensation.after_refusal():
                    raise
                outcome = StepOutcome.CONTINUE
            else:
                self._condensation.after_answer()
        self._answer_rest()
        return ConversationStatus.CANCELED

    def _resumed(self) -> Step:
        return self._agent.resume_calls(self._tools_map, self._log.history, stopped=self._why_cut)

    def _why_cut(self) -> str | None:
        """The result of a call that has not begun, once the run is being stopped; None while it is not."""
        if self._canceled.is_set():
            return "Not executed: the user stopped the run before it began."
        return "Not executed: the time of the run was up before it began." if self._deadline.passed else None

    def _next_step(self) -> Step:
        spending = self._log.spending
        leaves = self._log.history.last_user_message.strip() == EXIT  # then no request follows
        if not leaves:
            spending.check(self._limits)
            if self._limits.stuck_detection:
                self._log.stuck.check()
        tool_choice = self._tool_choice if spending.iterations == 0 else "auto"
        spending.iterations += 1
        self._before_step()
        if not leaves:
            self._condensation.before_request()
        return self._agent.step(
            self._tools_map,
            self._log.history,
            tool_choice=tool_choice,
            on_event=self._on_event,
            screen=self._screen,
        )

    def _follow(self, step: Step) -> StepOutcome:
        """Drive one step, storing each event before the next thing happens; CONTINUE where it was cut short."""
        with contextlib.closing(step):
            while True:
                try:
                    body = next(step)
                except StopIteration as stopped:
                    outcome: StepOutcome = stopped.value
                    return outcome
                self._checkpoints.before(body)
                self._log.emit(body)
                if self._why_cut() and self._is_cut(body):
                    return StepOutcome.CONTINUE

    def _is_cut(self, body: EventBody) -> bool:
        """Whether the step ends here. Calls that have not begun are answered; results of those that run are awaited."""
        if body.type != "tool_call":
            return not self._log.history.unanswered
        self._answer_rest()
        return True

    def _answer_rest(self) -> None:
        result = events.ToolResult.failed(self._why_cut() or "")
        for call_id, name in self._log.history.unanswered.items():
            self._log.emit(events.tool_result(tool_call_id=call_id, name=name, result=result))


class Deadline:
    """While entered: once the time has passed, interrupts again and again until it is left."""

    def __init__(self, seconds: float | None, cut: Callable[[], None]) -> None:
        """Call cut, in a thread of our own, after that many seconds; None never does. cut must return soon."""
        self.passed = False
        self._seconds = seconds
        self._cut = cut
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="ohsandbox-deadline", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No cut comes after this."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        wait_s = min(max(0.0, self._seconds or 0.0), threading.TIMEOUT_MAX)
        while not self._left.wait(wait_s):
            self.passed = True
            self._cut()
            wait_s = CUT_EVERY_S
