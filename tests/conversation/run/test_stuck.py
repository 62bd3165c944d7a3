from __future__ import annotations

from typing import Any

import pytest

from ohsandbox import events
from ohsandbox.conversation.run.limits import RunLimits
from ohsandbox.conversation.run.stuck import StuckDetector
from ohsandbox.errors import LimitReachedError
from ohsandbox.events import EventBody, ToolResult
from tests.fakes import stamp

_ids = iter(range(10**9))


def turn(
    name: str = "execute_bash",
    arguments: str = '{"command": "ls"}',
    output: str = "a",
    response: str = "",
    **details: Any,
) -> list[EventBody]:
    """A call and its result; an output that begins with "!" is an error."""
    place: dict[str, Any] = {"tool_call_id": str(next(_ids)), "name": name}
    result = ToolResult.failed(output) if output.startswith("!") else ToolResult.ok(output)
    call = events.tool_call(**place, arguments=arguments, response_id=response, call_index=0, total_calls=1)
    return [call, events.tool_result(**place, result=result, details=details)]


def _of_its_own_reply(body: EventBody, number: int) -> EventBody:
    fresh = body.data.get("response_id") == ""
    return body._replace(data={**body.data, "response_id": f"r{number}"}) if fresh else body


def check(*turns: list[EventBody]) -> None:
    detector = StuckDetector()
    for event in stamp(*[_of_its_own_reply(body, number) for number, each in enumerate(turns) for body in each]):
        detector.add(event)
    detector.check(RunLimits())


A, B = '{"command": "a"}', '{"command": "b"}'


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([turn()] * 4, "4 times the same call of execute_bash with the same result"),
        ([turn(arguments='{"a": 1, "b": 2}'), turn(arguments='{"b":2,"a":1}')] * 2, "4 times the same call"),
        ([turn(arguments=f'{{"command": "{n}"}}', output="!no") for n in range(4)], "4 times the same error"),
        ([turn(arguments='{"command": "ls"')] * 4, "4 times the same call"),
        ([turn(arguments=A), turn(arguments=B)] * 3, "execute_bash and execute_bash in turn, 3 times"),
        ([turn("think", f'{{"thought": "{n}"}}') for n in range(8)], "8 thoughts in a row and no action"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_circles_are_noticed(turns: list[list[EventBody]], why: str) -> None:
    check(*turns[:-1])
    with pytest.raises(LimitReachedError, match=why) as caught:
        check(*turns)
    assert caught.value.code == "Stuck"


@pytest.mark.parametrize(
    "turns",
    [
        [turn(output=str(n)) for n in range(20)],
        [turn(arguments="{}", running=True, exit_code=None) for _ in range(20)],
        [turn(), turn(), turn(), [events.user_message("go on")], turn(), turn(), turn()],
        [turn(arguments=A), turn(arguments=B), turn(arguments=B)] * 4,
        [turn(output="!Not executed: too many calls", response="one") for _ in range(8)],
        [turn(arguments=A, output="!1"), turn(arguments=A, output="!2")] * 2,
    ],
    ids=["results differ", "a poll", "the user spoke", "three in turn", "one reply", "errors differ"],
)
def test_work_is_not_a_circle(turns: list[list[EventBody]]) -> None:
    check(*turns)


def nudges(*turns: list[EventBody], **limits: int | None) -> list[int]:
    """After which turns the model is told that it repeats itself."""
    detector, told = StuckDetector(), []
    for number, bodies in enumerate(turns, start=1):
        for event in stamp(*[_of_its_own_reply(body, number) for body in bodies]):
            detector.add(event)
        if nudge := detector.nudge(RunLimits(**limits)):
            told.append(number)
            detector.add(*stamp(nudge))
    return told


@pytest.mark.parametrize(
    ("turns", "after"),
    [
        ([turn()] * 4, [3]),
        ([turn(arguments=f'{{"command": "{n}"}}', output="!no") for n in range(4)], [3]),
        ([turn(arguments=A), turn(arguments=B)] * 3, [4]),
        ([turn("think", f'{{"thought": "{n}"}}') for n in range(8)], [6]),
        ([turn()] * 3 + [turn(arguments=A)] + [turn()] * 3, [3, 7]),
        ([turn(), turn(), turn(arguments=A), turn(), turn()], []),
    ],
)
def test_model_is_told_once_before_it_is_stopped(turns: list[list[EventBody]], after: list[int]) -> None:
    assert nudges(*turns) == after


def test_thresholds_are_parameters() -> None:
    assert nudges(*[turn()] * 5, nudge_after=5) == [5]
    assert nudges(*[turn()] * 5, nudge_after=None) == []
    detector = StuckDetector()
    for event in stamp(*[body for n in range(5) for body in map(_of_its_own_reply, turn(), [n, n])]):
        detector.add(event)
    detector.check(RunLimits(stuck_after=6))
    with pytest.raises(LimitReachedError, match="5 times the same call"):
        detector.check(RunLimits(stuck_after=5))
