from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import (
    Agent,
    AgentErrorEvent,
    History,
    ObservationEvent,
    StepOutcome,
    messages_from_events,
)
from ohsandbox.agent.execution import run_calls
from ohsandbox.agent.history import MAX_IMAGE_MESSAGES
from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.schema import Action, ErrorObservation, ImageContent, Observation, TextContent, TextObservation
from ohsandbox.state import ConversationState
from ohsandbox.tool import CallHint, ToolAnnotations, ToolDefinition, ToolExecutor
from ohsandbox.tools.ask_human import make_ask_human_tool
from tests.fakes import FakeModel, RecordingRuntime, answer, call, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.agent.execution import Step
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


def drained(step: Step) -> tuple[list[EventBody], StepOutcome]:
    """All events of a step, and what follows it."""
    bodies: list[EventBody] = []
    while True:
        try:
            bodies.append(next(step))
        except StopIteration as stopped:
            return bodies, stopped.value


def kinds(bodies: Sequence[EventBody]) -> str:
    return " ".join(f"{body.type[5]}{body.data['tool_call_id']}" for body in bodies)


def test_calls_that_only_read_run_side_by_side_and_keep_their_order() -> None:
    barrier = threading.Barrier(3, timeout=60)

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


def test_views_of_the_editor_run_side_by_side_and_its_edits_do_not() -> None:
    runtime = RecordingRuntime()
    runtime.files |= {"/a": b"x\n", "/b": b"y\n"}
    view = [call("file_editor", {"command": "view", "path": path}, call_id=path[1:]) for path in ("/a", "/b")]
    edit = call("file_editor", {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": "z"}, call_id="e")
    agent = Agent(FakeModel(answer("", *view, edit)), tools=["file_editor"])
    tools = agent.initialize(ConversationState(conversation_id="c", runtime=runtime))
    assert kinds(list(agent.step(tools, History()))) == "ca cb ra rb ce re"
    assert runtime.files["/a"] == b"z\n"


def test_nothing_runs_after_a_question_and_the_user_has_the_next_word() -> None:
    ran: list[str] = []

    def look(action: Look) -> Observation:
        ran.append(action.name)
        return TextObservation(text="")

    asking = make_ask_human_tool(conv_state=ConversationState(conversation_id="c"))
    question = call("ask_human", {"question": "Tea?", "options": ["yes", "no"]}, call_id="q")
    calls = [call("look", {"name": "0"}, call_id="0"), question, call("look", {"name": "1"}, call_id="1")]
    agent = Agent(FakeModel(answer("", *calls)), tools=[tool("look", look, reads=True), asking])
    step = agent.step(agent.initialize(ConversationState(conversation_id="c")), History())
    bodies, outcome = drained(step)
    assert (kinds(bodies), outcome, ran) == ("c0 r0 cq rq c1 r1", StepOutcome.IDLE, ["0"])
    assert "`ask_human` came before it" in bodies[-1].data["result"]["error"]


def test_question_of_ones_own_stops_as_the_built_in_one_does() -> None:
    calls = [call("poll", {"name": "Tea?"}, call_id="q"), call("poll", {"name": "Milk?"}, call_id="r")]
    asking = replace(tool("poll", lambda _: TextObservation(text="asked"), reads=True), hint=CallHint(kind="question"))
    bodies, outcome = drained(Agent(FakeModel(answer("", *calls)), tools=[]).step({"poll": asking}, History()))
    assert (kinds(bodies), outcome) == ("cq rq cr rr", StepOutcome.IDLE)
    assert "`poll` came before it" in bodies[-1].data["result"]["error"]


def test_question_of_ones_own_waits_for_its_answer_after_the_log_is_read_again() -> None:
    calls = [call("my_ask", {"question": "Tea?"}, call_id="q")]
    asking = replace(make_ask_human_tool(conv_state=ConversationState(conversation_id="c")), name="my_ask", hint=None)
    agent = Agent(FakeModel(answer("", *calls)), tools=[])
    bodies, outcome = drained(agent.step({"my_ask": asking}, History()))
    assert (kinds(bodies), outcome) == ("cq rq", StepOutcome.IDLE)
    [asked] = [body for body in bodies if body.type == "tool_call"]
    assert asked.data["hint"]["kind"] == "question"


def test_call_without_a_tool_is_an_error_of_the_agent_and_a_tools_failure_is_observed() -> None:
    [_, unknown] = step_of([], "nope")
    assert unknown.data["result"]["status"] == "error"
    assert unknown == AgentErrorEvent("0", "nope", unknown.data["result"]["error"]).event
    observed = ObservationEvent("0", "look", ErrorObservation(message="broken"))
    assert observed.is_error
    assert observed.event.data["result"] == {"status": "error", "output": None, "error": "broken"}


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
    urls = ("data:image/png;base64," + "A" * 6_000_000, *[PIXEL] * (DEFAULT_LIMITS.max_images + 2))
    [_, result] = step_of([tool("look", lambda _: Pictures(urls=urls), reads=False)], "look")
    assert result.data["images"] == [PIXEL] * DEFAULT_LIMITS.max_images
    assert result.data["result"]["output"].splitlines() == [
        "seen",
        "[1 image(s) over 5 MiB left out]",
        f"[2 more image(s) left out; at most {DEFAULT_LIMITS.max_images} are shown]",
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


def test_a_tool_whose_hint_is_an_answer_ends_the_task_whatever_its_name() -> None:
    ending = tool("submit", lambda _: TextObservation(text="sent"), reads=True)
    ending = replace(ending, hint=CallHint(kind="answer", subject="name", writes=False))
    agent = Agent(FakeModel(answer("", call("submit", {"name": "a"}, call_id="s"))), tools=[ending])
    _, outcome = drained(agent.step(agent.initialize(ConversationState(conversation_id="c")), History()))
    assert outcome is StepOutcome.FINISHED
