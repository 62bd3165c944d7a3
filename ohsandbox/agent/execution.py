"""Runs the calls of one response: each is stored before it runs, and its result or refusal after that."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox import events
from ohsandbox.agent.calls import asks_user, ends_task, runs_beside
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import OhsandboxError, SandboxFileError, ToolError, UsageError
from ohsandbox.events import EventBody, ToolResult
from ohsandbox.events.event import short_fields
from ohsandbox.schema import ErrorObservation, Observation
from ohsandbox.text import cut_middle

if TYPE_CHECKING:
    from ohsandbox.agent.calls import ActionEvent
    from ohsandbox.agent.held import HeldCall

    AnyCall = ActionEvent | HeldCall

MAX_SIDE_BY_SIDE = 4
"""Maximum number of concurrent read-only calls; more would only wait for the sandbox's cores."""


class StepOutcome(Enum):
    """The outcome of a step."""

    CONTINUE = "continue"
    """The model is asked next."""
    IDLE = "idle"
    """The user is next: the model answered with a message, or asked a question."""
    FINISHED = "finished"
    """The model called `finish`, or the user sent `/exit`."""
    WAITING = "waiting"
    """The stored calls wait for approval."""


Step = Generator[EventBody, None, StepOutcome]

_TOO_LATE = {
    StepOutcome.FINISHED: "Not executed: `{}` came before it in the same reply.",
    StepOutcome.IDLE: "Not executed: `{}` came before it in the same reply. Wait for the answer.",
}


class ObservationEvent(NamedTuple):
    """The observation of a tool that ran, also if it failed."""

    tool_call_id: str
    name: str
    observation: Observation
    limits: OutputLimits = DEFAULT_LIMITS

    @property
    def is_error(self) -> bool:
        """Whether the tool failed."""
        return self.observation.is_error

    @property
    def event(self) -> EventBody:
        """The `tool_result` event: text and images, both limited, and the short fields."""
        text, images = self.limits.fit(self.observation.to_llm_content)
        details = short_fields(self.observation.model_dump(exclude={"images"}))
        return _result_event(self, text, details=details, images=images)


class AgentErrorEvent(NamedTuple):
    """A call that did not run: unreadable arguments, an unknown tool, or a rejected call."""

    tool_call_id: str
    name: str
    error: str
    """For the model: the reason and the remedy."""
    is_error: bool = True
    limits: OutputLimits = DEFAULT_LIMITS

    @property
    def event(self) -> EventBody:
        """The `tool_result` event of status error."""
        return _result_event(self, cut_middle(self.error, limit_chars=self.limits.max_result_chars))


_ResultEvent = ObservationEvent | AgentErrorEvent


def _result_event(result: _ResultEvent, text: str, **extra: Any) -> EventBody:
    answer = ToolResult.failed(text) if result.is_error else ToolResult.ok(text)
    return events.tool_result(tool_call_id=result.tool_call_id, name=result.name, result=answer, **extra)


def run_calls(
    planned: Sequence[AnyCall],
    *,
    limits: OutputLimits = DEFAULT_LIMITS,
    stopped: Callable[[], str | None] = lambda: None,
) -> Step:
    """Run the calls in their order; adjacent read-only calls run concurrently.

    Nothing runs after a call that ends the task or asks the user. All `tool_call` events of a group are yielded before
    any of it runs; then its results, in the order of the calls, each as soon as it and those before it are available.

    Args:
        planned: the calls.
        limits: how much is shown of the message about a call that does not run.
        stopped: returns the reason not to start further calls, or None.
    """
    outcome, too_late = StepOutcome.CONTINUE, None
    for group in _groups(planned):
        for call in group:
            if call.event is not None:
                yield call.event
        refusal = too_late or stopped()
        if refusal is None and len(group) > 1:
            results = _side_by_side(group)
        else:
            refusals = [call.refusal or refusal for call in group]
            results = zip(group, map(_result, group, refusals, repeat(limits)), strict=True)
        for call, result in results:
            yield result.event
            if outcome is StepOutcome.CONTINUE and not result.is_error:
                ends, asks = ends_task(call.tool, call.action), asks_user(call.tool, call.action)
                outcome = StepOutcome.FINISHED if ends else StepOutcome.IDLE if asks else StepOutcome.CONTINUE
                too_late = _TOO_LATE.get(outcome, "").format(call.name)
    return outcome


def _groups(planned: Sequence[AnyCall]) -> list[list[AnyCall]]:
    """Group adjacent calls that may run concurrently; every other call is its own group."""
    groups: list[list[AnyCall]] = []
    for call in planned:
        if groups and _runs_beside(call) and _runs_beside(groups[-1][-1]):
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups


def _runs_beside(call: AnyCall) -> bool:
    return not call.refusal and call.tool is not None and runs_beside(call.tool, call.action)


def _side_by_side(group: list[AnyCall]) -> Iterator[tuple[AnyCall, _ResultEvent]]:
    with ThreadPoolExecutor(min(MAX_SIDE_BY_SIDE, len(group)), thread_name_prefix="ohsandbox-call") as pool:
        yield from zip(group, pool.map(_result, group), strict=True)


def _result(call: AnyCall, refusal: str | None = None, limits: OutputLimits = DEFAULT_LIMITS) -> _ResultEvent:
    """Run the call; a failure of a tool is a result, a failure of the sandbox or an interrupt is raised."""
    if refusal is not None:
        return AgentErrorEvent(call.tool_call_id, call.name, refusal, limits=limits)
    assert call.tool is not None  # noqa: S101 - a call without refusal has its tool
    observation: Observation
    try:
        observation = call.tool(call.action)
    except SandboxFileError as error:
        observation = ErrorObservation(message=error.message)
    except (ToolError, UsageError) as error:  # a runtime rejects the model's input: a NUL, a directory
        observation = ErrorObservation(message=str(error))
    except OhsandboxError:
        raise
    except Exception as error:  # noqa: BLE001 - the model gets every fault of a tool
        observation = ErrorObservation(message=f"Tool {call.name!r} failed: {type(error).__name__}: {error}")
    return ObservationEvent(call.tool_call_id, call.name, observation, call.tool.limits)
