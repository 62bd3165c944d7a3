"""Stored calls that wait for the user's approval, and their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox import events
from ohsandbox.agent.calls import ActionEvent, ActionSecurityRisk, action_of, ends_task, find_tool, runs_beside
from ohsandbox.errors import ToolArgumentsError, UnknownToolError
from ohsandbox.strict_json import is_object, load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.schema import Action
    from ohsandbox.tool import ToolDefinition

REFUSED = "The user refused this call"
"""The start of a refusal; the user's reason follows."""

_REFUSED_BEFORE_FINISH = "Not executed: the user refused a call before it in the same reply. Heed that first."

_NEVER_ASKED = "Not executed: it waited for the user's approval, which was not given."

NOT_BEGUN = "Not executed: the run ended before its turn came, after the user had approved it. Send it again if needed."

_RUNNING = events.ConversationStatus.RUNNING.value


class Verdict(NamedTuple):
    """The assessment of one call before it runs."""

    risk: ActionSecurityRisk = ActionSecurityRisk.UNKNOWN
    why: tuple[str, ...] = ()
    """The reasons for the risk, for the user."""
    asks: bool = False
    """Whether to ask the user."""
    approval: int | None = None
    """Number of the standing approval by which the user is not asked."""
    refusal: str | None = None
    """Why the call does not run, for the model; the user is not asked."""


ApprovalFilter = Callable[[Sequence[ActionEvent]], Sequence[Verdict] | None]
"""Returns a verdict for each call of a response, or None if all may run and no approval needs to be recorded."""


class HeldCall(NamedTuple):
    """A call from the log as the agent sees it, and the decision on it; arguments are the stored text.

    `PendingCall` is the same call as a person is asked about it, with parsed arguments and its risk.
    """

    tool_call_id: str
    name: str
    arguments: str
    """A JSON object."""
    verdict: Verdict
    only_reads: bool = False
    fault: str | None = None
    """Why it cannot run in any case."""
    approved: bool | None = None
    """The user's decision; None before that."""
    reason: str = ""
    approval: int | None = None
    """Number of the standing approval that allows it."""
    hint: Mapping[str, Any] | None = None
    """The fields of its `tool.CallHint`; None in an older log."""
    tool: ToolDefinition[Any, Any] | None = None
    """Set by `ready`, with the action, for a call that may run."""
    action: Action | None = None
    event: EventBody | None = None
    """None, since the event is stored already."""

    @property
    def waits(self) -> bool:
        """Whether it waits for a decision."""
        return self.verdict.asks and self.approved is None

    @property
    def refusal(self) -> str | None:
        """The model's result for a call that may not run; None if it may run."""
        if self.approved is False:
            return f"{REFUSED}: {self.reason}" if self.reason else f"{REFUSED}. No reason was given."
        return _NEVER_ASKED if self.waits else self.fault


_Stage = Enum("_Stage", ["WAITING", "RELEASED", "OVER"])


class HeldCalls:
    """The held calls of the newest response, derived only from the events of the log, so that all processes agree.

    They wait until all that ask have a decision; the next RUNNING status releases them to run; any later status ends
    that. This tells a decided call that never began from one that may have begun.
    """

    def __init__(self) -> None:
        self._calls: dict[str, HeldCall] = {}
        self._stage = _Stage.WAITING

    @property
    def all(self) -> list[HeldCall]:
        """The calls without a result, in order."""
        return list(self._calls.values())

    @property
    def waiting(self) -> list[HeldCall]:
        """The calls that wait for a decision."""
        return [call for call in self._calls.values() if call.waits]

    @property
    def is_decided(self) -> bool:
        """Whether there are held calls, all are decided, and none has begun to run."""
        return bool(self._calls) and not self.waiting and self._stage is _Stage.WAITING

    @property
    def due(self) -> list[HeldCall]:
        """The calls that a run must answer first; [] unless it has just begun."""
        return self.all if self._stage is _Stage.RELEASED else []

    def add(self, event: SDKEvent) -> None:
        """Process the next event."""
        data = event.data
        if event.type == "tool_call" and "held" in data:
            self._calls[data["tool_call_id"]] = _held_call(data)
        elif event.type == "tool_result":
            self._calls.pop(data["tool_call_id"], None)
        elif event.type == "confirmation":
            self._decide(data)
        elif event.type == "approval_revoked" and self._stage is _Stage.WAITING:
            self._ask_again(data.get("number"))
        elif event.type == "status_update" and self._stage is _Stage.RELEASED:
            self._stage = _Stage.OVER
        elif event.type == "status_update" and data["status"] == _RUNNING and self.is_decided:
            self._stage = _Stage.RELEASED

    def never_ran(self, tool_call_id: str) -> str | None:
        """Return the model's result for a call that certainly did not begin; None if it may have begun."""
        call = self._calls.get(tool_call_id)
        if call is None:
            return None
        if call.refusal is not None:
            return call.refusal
        if self._stage is _Stage.WAITING:
            return _NEVER_ASKED if self.waiting else NOT_BEGUN
        return None if tool_call_id in self._perhaps_begun() else NOT_BEGUN

    def clear(self) -> None:
        """Drop all calls; the response is answered."""
        self._calls.clear()
        self._stage = _Stage.WAITING

    def _decide(self, data: Mapping[str, Any]) -> None:
        """Record a decision; only the first one on a call counts."""
        for tool_call_id in data["tool_call_ids"]:
            call = self._calls.get(tool_call_id)
            if call is not None and call.approved is None:
                self._calls[tool_call_id] = call._replace(approved=data["approved"], reason=data["reason"])

    def _ask_again(self, number: object) -> None:
        """Make calls that only this approval allowed wait again, unless they began; no number means all approvals."""
        for tool_call_id, call in self._calls.items():
            if call.approval == number or (call.approval is not None and not isinstance(number, int)):
                verdict = call.verdict._replace(asks=True, approval=None)
                self._calls[tool_call_id] = call._replace(verdict=verdict, approval=None)

    def _perhaps_begun(self) -> set[str]:
        """Return the first call that can run and those that run concurrently: the next begins after their results."""
        starting: list[HeldCall] = []
        for call in self._calls.values():
            if starting and not (call.only_reads and starting[-1].only_reads):
                break
            if call.refusal is None:
                starting.append(call)
        return {call.tool_call_id for call in starting}


def _held_call(data: Mapping[str, Any]) -> HeldCall:
    held_data = data["held"]
    verdict = Verdict(ActionSecurityRisk(held_data["risk"]), tuple(held_data["why"]), held_data["asks"])
    arguments, fault = data["arguments"], held_data.get("fault")
    if not (
        isinstance(arguments, str) and is_object(arguments)
    ):  # of a log that was changed: what a person would allow could not be shown
        arguments, fault = "{}", "Not executed: the log does not have its arguments as a JSON object."
    call = HeldCall(data["tool_call_id"], data["name"], arguments, verdict, approval=data.get("approval"))
    return call._replace(only_reads=held_data["only_reads"], fault=fault, hint=data.get("hint"))


def held_events(planned: Sequence[ActionEvent], verdicts: Sequence[Verdict]) -> Iterator[EventBody]:
    """Yield the `tool_call` events of a response that waits for approval."""
    for call, verdict in zip(planned, verdicts, strict=True):
        yield events.held(
            call.event,
            asks=verdict.asks,
            risk=verdict.risk.value,
            why=verdict.why,
            only_reads=call.tool is not None and runs_beside(call.tool, call.action),
            fault=call.refusal,
        )


def ready(calls: Sequence[HeldCall], tools_map: Mapping[str, ToolDefinition[Any, Any]]) -> list[HeldCall]:
    """Prepare the log's calls to run; a call that cannot be prepared is refused."""
    planned: list[HeldCall] = []
    for call in calls:
        prepared = call
        if call.refusal is None:
            try:
                tool = find_tool(tools_map, call.name)
                prepared = call._replace(tool=tool, action=action_of(tool, load_json(call.arguments)))
            except (ToolArgumentsError, UnknownToolError) as error:
                changed = f"Not executed: since it was sent, the tools have changed. {error}"
                prepared = call._replace(fault=changed)
        if ends_task(prepared.tool, prepared.action) and any(call.approved is False for call in planned):
            prepared = call._replace(fault=_REFUSED_BEFORE_FINISH)
        planned.append(prepared)
    return planned
