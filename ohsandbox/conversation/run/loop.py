"""`Loop`: the steps of an agent until the user's next turn, with condensation and a deadline."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.agent import StepOutcome
from ohsandbox.conversation.run.limits import Deadline
from ohsandbox.errors import ModelError
from ohsandbox.events import EXIT, ConversationStatus
from ohsandbox.llm.errors import ContextWindowError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.agent.execution import Step
    from ohsandbox.agent.held import ApprovalFilter
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.conversation.run.condensation import CondensationTrigger
    from ohsandbox.events import EventBody
    from ohsandbox.llm.chat import OnEvent
    from ohsandbox.timetravel.checkpoints import CheckpointRecorder

_STATUS_AFTER = {
    StepOutcome.IDLE: ConversationStatus.IDLE,
    StepOutcome.FINISHED: ConversationStatus.FINISHED,
    StepOutcome.WAITING: ConversationStatus.WAITING_FOR_CONFIRMATION,
}


@dataclass(kw_only=True)
class Loop:
    """One run: from a user message until the model has answered, called `finish`, or was stopped."""

    config: ConversationConfig
    """The configuration; its tool_choice is for the first request, later ones use "auto"."""
    tools: ToolsMap
    log: ConversationLog
    """Stores each event before the next action."""
    canceled: threading.Event
    """Set to stop the run."""
    condensation: CondensationTrigger
    checkpoints: CheckpointRecorder
    """Takes checkpoints before files are changed."""
    approval_filter: ApprovalFilter | None
    """Decides which calls wait for a person; None lets all of them run."""
    interrupt: Callable[[], None]
    """Ends what the loop waits for, when the time is up; called in another thread."""
    before_step: Callable[[], None]
    """Called before each request is made."""
    on_event: OnEvent
    """Receives the reports of the model's client."""

    def __post_init__(self) -> None:
        """Keep the present agent and limits for the run."""
        self._agent = self.config.agent
        self._limits = self.config.limits
        self._deadline = Deadline(self._limits.max_time_s, self.interrupt)

    def run(self) -> ConversationStatus:
        """Take steps until the status is not RUNNING. Calls that a person has decided on come first.

        Raises:
            LimitReachedError: a limit is reached, or the model repeats itself.
            LogWriteError: an event could not be stored; no action came after it.
            ModelError: the model gave no answer.
            SandboxUnavailable: the sandbox is gone.
        """
        spending = self.log.spending
        spending.begin_run()
        left_s = None if self._limits.max_time_s is None else self._limits.max_time_s - spending.elapsed_s
        try:
            with Deadline(left_s, self.interrupt) as self._deadline:
                status = self._steps()
        except ModelError as error:
            if self._deadline.passed and not self.canceled.is_set():
                raise spending.out_of_time(self._limits) from error
            raise
        finally:
            spending.end_run()
        if status is ConversationStatus.CANCELED and not self.canceled.is_set():
            raise spending.out_of_time(self._limits)
        return status

    def _steps(self) -> ConversationStatus:
        held_calls = self.log.history.held
        if held_calls.due:
            self.checkpoints.before_write()
            step = self._agent.resume_calls(
                self.tools, self.log.history, stopped=self._stop_reason, limits=self.config.output
            )
            outcome = self._follow(step)
        else:
            outcome = StepOutcome.CONTINUE
        if held_calls.waiting:
            outcome = StepOutcome.WAITING
        while not self._stop_reason():
            if outcome in _STATUS_AFTER:
                return _STATUS_AFTER[outcome]
            try:
                outcome = self._follow(self._next_step())
            except ContextWindowError:  # the request is too long for the provider: condense once, and send it again
                if not self.condensation.after_refusal():
                    raise
                outcome = StepOutcome.CONTINUE
            else:
                self.condensation.after_answer()
        self._answer_rest()
        return ConversationStatus.CANCELED

    def _stop_reason(self) -> str | None:
        """Return the result for calls that have not begun if the run is being stopped, else None."""
        if self.canceled.is_set():
            return "Not executed: the user stopped the run before it began."
        return "Not executed: the time of the run was up before it began." if self._deadline.passed else None

    def _next_step(self) -> Step:
        spending = self.log.spending
        leaves = self.log.history.last_user_message.strip() == EXIT  # then no request follows
        if not leaves:
            spending.check(self._limits)
            if self._limits.stuck_detection:
                self.log.stuck.check(self._limits)
                if nudge := self.log.stuck.nudge(self._limits):
                    self.log.emit(nudge)
        tool_choice = self.config.tool_choice if spending.iterations == 0 else "auto"
        spending.iterations += 1
        self.before_step()
        if not leaves:
            self.condensation.before_request()
        return self._agent.step(
            self.tools,
            self.log.history,
            tool_choice=tool_choice,
            on_event=self.on_event,
            screen=self.approval_filter,
            limits=self.config.output,
        )

    def _follow(self, step: Step) -> StepOutcome:
        """Take one step, storing each event before the next action; CONTINUE if the run is being stopped."""
        with contextlib.closing(step):
            while True:
                try:
                    body = next(step)
                except StopIteration as stopped:
                    outcome: StepOutcome = stopped.value
                    return outcome
                self.checkpoints.before(body)
                self.log.emit(body)
                if self._stop_reason() and self._ends_step(body):
                    return StepOutcome.CONTINUE

    def _ends_step(self, body: EventBody) -> bool:
        """Whether the step ends after this event. Calls that have not begun get a result; running ones are awaited."""
        if body.type != "tool_call":
            return not self.log.history.unanswered
        self._answer_rest()
        return True

    def _answer_rest(self) -> None:
        result = events.ToolResult.failed(self._stop_reason() or "")
        for call_id, name in self.log.history.unanswered.items():
            self.log.emit(events.tool_result(tool_call_id=call_id, name=name, result=result))
