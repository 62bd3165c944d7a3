from __future__ import annotations

from typing import Any

import pytest

from ohsandbox.errors import ToolArgumentsError, ToolError, UsageError
from ohsandbox.runtime.results import ExecResult
from ohsandbox.schema import text_of
from ohsandbox.state import ConversationState, Delegation
from ohsandbox.tools.delegate import AgentDelegateAction, make_delegate_tool
from ohsandbox.tools.delegate_to_browsing_agent import BROWSING_TOOLS, make_delegate_to_browsing_agent_tool
from tests.fakes import RecordingRuntime


class Recorder:
    """Stands for the conversation."""

    def __init__(self) -> None:
        self.seen: list[Delegation] = []

    def __call__(self, delegation: Delegation) -> str:
        self.seen.append(delegation)
        if delegation.task == "fail":
            raise ToolError("no answer")
        return "the answer"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def state(recorder: Recorder | None) -> ConversationState:
    return ConversationState(conversation_id="c", delegate=recorder)


def test_a_task_goes_to_the_conversation_and_its_answer_comes_back(recorder: Recorder) -> None:
    tool = make_delegate_tool(conv_state=state(recorder))
    arguments = {"task": "t", "name": "tester", "tools": '["think"]', "max_iterations": "3"}
    assert text_of(tool(tool.action_from_arguments(arguments))) == "the answer"
    assert text_of(tool(tool.action_from_arguments({"task": "u"}))) == "the answer"
    assert [one._replace(on_step=None) for one in recorder.seen] == [
        Delegation("t", "tester", ("think",), 3),
        Delegation("u", "agent", None, None),
    ]
    with pytest.raises(ToolError, match="no answer"):
        tool(tool.action_from_arguments({"task": "fail"}))


def test_the_browsing_agent_gets_its_own_tools(recorder: Recorder) -> None:
    tool = make_delegate_to_browsing_agent_tool(conv_state=state(recorder))
    action = tool.action_from_arguments({"task": "find it"})
    assert isinstance(action, AgentDelegateAction)
    assert (action.agent, action.inputs) == ("BrowsingAgent", {"task": "find it"})
    tool(action)
    assert recorder.seen[0]._replace(on_step=None) == Delegation("find it", "browsing-agent", BROWSING_TOOLS, None)
    tool = make_delegate_to_browsing_agent_tool(conv_state=state(recorder), tools=["web_read"], max_iterations=5)
    tool(action)
    assert recorder.seen[1]._replace(on_step=None) == Delegation("find it", "browsing-agent", ("web_read",), 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, 'Missing required argument "task"'),
        ({"task": ""}, "'task'"),
        ({"task": "t", "name": "../up"}, "'name'"),
        ({"task": "t", "name": "-x"}, "'name'"),
        ({"task": "t", "name": "a" * 41}, "'name'"),
        ({"task": "t", "name": "a\n"}, "'name'"),
        ({"task": "t", "max_iterations": 0}, "'max_iterations'"),
        ({"task": "t", "tools": "execute_bash"}, "'tools'"),
        ({"task": "t", "agent": "x"}, "Unexpected argument 'agent'"),
    ],
)
def test_wrong_arguments_are_named(recorder: Recorder, arguments: dict[str, Any], said: str) -> None:
    tool = make_delegate_tool(conv_state=state(recorder))
    with pytest.raises(ToolArgumentsError) as caught:
        tool.action_from_arguments(arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("make", [make_delegate_tool, make_delegate_to_browsing_agent_tool])
def test_where_nobody_can_delegate_the_tool_cannot_be_made(make: Any) -> None:
    with pytest.raises(UsageError, match="is not available here"):
        make(conv_state=state(None))


def test_what_else_can_be_given_is_told_to_the_model(recorder: Recorder) -> None:
    tool = make_delegate_tool(conv_state=state(recorder), tools=["web_read"])
    assert "Beyond your own tools it can be given: web_read." in tool.description


def test_the_browsing_agent_is_offered_what_works_in_the_sandbox(recorder: Recorder) -> None:
    class Bare(RecordingRuntime):
        exit_code = 1

        def run(self, argv: Any, **_: Any) -> ExecResult:
            assert argv[-2:] == ["/opt/ohsandbox-browser/bin/python", "python3"]
            return ExecResult(self.exit_code, b"", b"")

    runtime = Bare()
    with_runtime = ConversationState(conversation_id="c", delegate=recorder, runtime=runtime)
    tool = make_delegate_to_browsing_agent_tool(conv_state=with_runtime)
    told = text_of(tool(AgentDelegateAction(task="t")))
    assert recorder.seen[0].tools == ("web_read", "think", "finish")
    assert told.startswith("the answer\n[This sandbox has no browser")
    runtime.exit_code = 0
    assert text_of(tool(AgentDelegateAction(task="t"))) == "the answer"
    assert recorder.seen[1].tools == BROWSING_TOOLS
    runtime.exit_code = 1
    tool = make_delegate_to_browsing_agent_tool(conv_state=with_runtime, tools=["browser", "finish"])
    with pytest.raises(ToolError, match="nothing can browse"):
        tool(AgentDelegateAction(task="t"))
