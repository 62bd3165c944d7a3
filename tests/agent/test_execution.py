from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent, History, StepOutcome, messages_from_events
from ohsandbox.agent.execution import MAX_IMAGES, run_calls
from ohsandbox.agent.history import MAX_IMAGE_MESSAGES
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.schema import Action, ImageContent, Observation, TextContent, TextObservation
from ohsandbox.tool import ToolAnnotations, ToolDefinition, ToolExecutor
from tests.fakes import FakeModel, answer, call, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.content import Content
    from ohsandbox.events import EventBody

PIXEL = "data:image/png;base64,iVBORw0KGgo="


class Look(Action):
    name: str


class _Call(ToolExecutor[Look, Observation]):
    def __init__(self, work: Callable[[Look], Observation]) -> None:
        self._work = work

    def __call__(self, action: Look) -> Observation:
        return self._work(action)


def tool(name: str, work: Callable[[Look], Observation], *, reads: bool) -> ToolDefinition[Look, Observation]:
    annotations = ToolAnnotations(readOnlyHint=reads)
    return ToolDefinition(
        name=name, description="Look.", action_type=Look, annotations=annotations, executor=_Call(work)
    )


class Pictures(Observation):
    urls: tuple[str, ...]

    @property
    def to_llm_content(self) -> Sequence[Content]:
        return [TextContent(text="seen"), ImageContent(image_urls=self.urls)]


def step_of(tools: Sequence[ToolDefinition[Look, Observation]], *names: str) -> list[EventBody]:
    """The events of one response that calls the named tools, each with its own number."""
    calls = [call(name, {"name": str(number)}, call_id=str(number)) for number, name in enumerate(names)]
    agent = Agent(FakeModel(answer("", *calls)), tools=list(tools))
    return list(agent.step({tool.name: tool for tool in tools}, History()))


def kinds(bodies: Sequence[EventBody]) -> str:
    return " ".join(f"{body.type[5]}{body.data['tool_call_id']}" for body in bodies)


def test_calls_that_only_read_run_side_by_side_and_keep_their_order() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def look(action: Look) -> Observation:
        barrier.wait()  # breaks unless three are here at once
        return TextObservation(text=action.name)

    bodies = step_of([tool("look", look, reads=True)], "look", "look", "look")
    assert kinds(bodies) == "c0 c1 c2 r0 r1 r2"
    assert [body.data["result"]["output"] for body in bodies[3:]] == ["0", "1", "2"]


def test_call_that_writes_waits_for_those_before_it_and_holds_up_those_after_it() -> None:
    tools = [tool(name, lambda _: TextObservation(text=""), reads=name == "look") for name in ("look", "write")]
    bodies = step_of(tools, "look", "look", "write", "write", "look")
    assert kinds(bodies) == "c0 c1 r0 r1 c2 r2 c3 r3 c4 r4"


def test_fault_in_one_of_several_is_its_own_result() -> None:
    def look(action: Look) -> Observation:
        if action.name == "1":
            raise ZeroDivisionError
        return TextObservation(text=action.name)

    bodies = step_of([tool("look", look, reads=True)], "look", "look", "look")
    assert [body.data["result"]["status"] for body in bodies[3:]] == ["ok", "error", "ok"]


def test_dead_sandbox_among_several_ends_the_step() -> None:
    def look(action: Look) -> Observation:
        if action.name == "1":
            raise SandboxUnavailable("gone")
        return TextObservation(text=action.name)

    with pytest.raises(SandboxUnavailable):
        step_of([tool("look", look, reads=True)], "look", "look")


def test_nothing_planned_is_no_end() -> None:
    with pytest.raises(StopIteration) as stopped:
        next(run_calls([]))
    assert stopped.value.value is StepOutcome.CONTINUE


def test_images_follow_the_results_of_their_response_as_the_users() -> None:
    tools = [tool("look", lambda _: Pictures(urls=(PIXEL,)), reads=False)]
    messages = messages_from_events(stamp(*step_of(tools, "look", "look")))
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "user"]
    label, image = messages[3]["content"]
    assert label["text"] == "[Images from look, call 0]"
    assert image == {"type": "image_url", "image_url": {"url": PIXEL}}


def test_too_many_and_too_large_images_are_left_out_and_told() -> None:
    urls = ("data:image/png;base64," + "A" * 6_000_000, *[PIXEL] * (MAX_IMAGES + 2))
    [_, result] = step_of([tool("look", lambda _: Pictures(urls=urls), reads=False)], "look")
    assert result.data["images"] == [PIXEL] * MAX_IMAGES
    assert result.data["result"]["output"].splitlines() == [
        "seen",
        "[1 image(s) over 5 MiB left out]",
        f"[2 more image(s) left out; at most {MAX_IMAGES} are shown]",
    ]


def test_only_the_newest_images_are_sent_again() -> None:
    tools = [tool("look", lambda _: Pictures(urls=(PIXEL,)), reads=False)]
    events: list[EventBody] = []
    for number in range(MAX_IMAGE_MESSAGES + 3):
        bodies = step_of(tools, "look")
        for body in bodies:
            body.data["tool_call_id"] = f"c{number}"
            body.data["response_id"] = f"r{number}"
        events += bodies
    shown = [message for message in messages_from_events(stamp(*events)) if message["role"] == "user"]
    assert [isinstance(message["content"], list) for message in shown] == [False] * 3 + [True] * MAX_IMAGE_MESSAGES
    assert "no longer shown" in shown[0]["content"]
