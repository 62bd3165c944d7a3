"""`Loop`: steps of an agent until somebody else has the next word."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox import events
from ohsandbox.agent import StepOutcome
from ohsandbox.events import ConversationStatus
from ohsandbox.llm.errors import ContextWindowError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ohsandbox.agent import Agent
    from ohsandbox.agent.agent import ToolsMap
    from ohsandbox.agent.execution import Step
    from ohsandbox.conversation.condensing import Condensing
    from ohsandbox.conversation.limits import Limits
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.events import EventBody
    from ohsandbox.llm.events import OnEvent

_STATUS_AFTER = {
    StepOutcome.IDLE: ConversationStatus.IDLE,
    StepOutcome.FINISHED: ConversationStatus.FINISHED,
}


class Loop:
    """One run: from a message of the user's until the model has answered, finished, or was stopped."""

    def __init__(
        self,
        agent: Agent,
        tools_map: ToolsMap,
        trail: Trail,
        *,
        limits: Limits,
        tool_choice: str,
        canceled: threading.Event,
        condensing: Condensing,
        before_step: Callable[[], None],
        on_event: OnEvent,
    ) -> None:
        """Put a run together.

        Args:
            agent: whose steps they are.
            tools_map: its tools.
            trail: where everything is stored before the next thing happens.
            limits: checked before each request.
            tool_choice: for the first request; later ones are "auto".
            canceled: set by whoever stops the run.
            condensing: shortens the conversation where it is too long.
            before_step: called before each request is put together.
            on_event: hears what the model's client tells.
        """
        self._agent = agent
        self._tools_map = tools_map
        self._trail = trail
        self._limits = limits
        self._tool_choice = tool_choice
        self._canceled = canceled
        self._condensing = condensing
        self._before_step = before_step
        self._on_event = on_event

    def run(self) -> ConversationStatus:
        """Steps until there is a status other than RUNNING.

        Raises:
            LimitReachedError: a limit is reached.
            LogWriteError: an event could not be stored; nothing was done that is not in the log.
            ModelError: the model gave no answer.
            SandboxUnavailable: the sandbox went away.
        """
        self._trail.spending.begin_run()
        while not self._canceled.is_set():
            outcome = self._step()
            if outcome in _STATUS_AFTER and not self._canceled.is_set():
                return _STATUS_AFTER[outcome]
        return ConversationStatus.CANCELED

    def _step(self) -> StepOutcome:
        """One step; a conversation that the provider finds too long is shortened, once, and sent again."""
        try:
            outcome = self._follow(self._next_step())
        except ContextWindowError:
            if not self._condensing.after_refusal():
                raise
            return StepOutcome.CONTINUE
        self._condensing.after_answer()
        return outcome

    def _next_step(self) -> Step:
        spending = self._trail.spending
        spending.check(self._limits)
        tool_choice = self._tool_choice if spending.iterations == 0 else "auto"
        spending.iterations += 1
        self._before_step()
        self._condensing.before_request()
        return self._agent.step(self._tools_map, self._trail.history, tool_choice=tool_choice, on_event=self._on_event)

    def _follow(self, step: Step) -> StepOutcome:
        """Drive one step, each event stored before the next thing happens; CONTINUE where `canceled` cut it short."""
        with contextlib.closing(step):
            while True:
                try:
                    body = next(step)
                except StopIteration as stopped:
                    outcome: StepOutcome = stopped.value
                    return outcome
                self._trail.emit(body)
                if self._canceled.is_set() and self._is_cut(body):
                    return StepOutcome.CONTINUE

    def _is_cut(self, body: EventBody) -> bool:
        """Whether the step ends here. Calls that have not begun are answered; results of those that run are awaited."""
        unanswered = self._trail.history.unanswered
        if body.type != "tool_call":
            return not unanswered
        result = events.ToolResult.failed("Not executed: the user stopped the run before it began.")
        for call_id, name in unanswered.items():
            self._trail.emit(events.tool_result(tool_call_id=call_id, name=name, result=result))
        return True
