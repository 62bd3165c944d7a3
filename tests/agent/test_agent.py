from __future__ import annotations

from typing import Any

import pytest

from ohsandbox import events
from ohsandbox.agent import Agent, History, StepOutcome, render_system_prompt, response_to_actions
from ohsandbox.agent.calls import find_tool
from ohsandbox.agent.parsing import parse_arguments
from ohsandbox.errors import ToolArgumentsError, UnknownToolError, UsageError
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool
from ohsandbox.tools import DEFAULT_TOOLS, AgentThinkAction
from ohsandbox.tools.think import make_think_tool
from tests.fakes import FakeModel, RecordingRuntime, answer, call, stamp

STATE = ConversationState(conversation_id="c", runtime=RecordingRuntime())


def test_agent_has_the_default_tools() -> None:
    assert tuple(Agent().initialize(STATE)) == DEFAULT_TOOLS


def test_families_of_tools_are_switched() -> None:
    switched = set(Agent(enable_browsing=True, enable_jupyter=False, enable_cmd=False).tools)
    assert switched >= {"browser", "delegate_to_browsing_agent"}
    assert not switched & {"execute_bash", "execute_ipython_cell"}
    with pytest.raises(UsageError, match="No tools 'enable_magic'"):
        Agent(enable_magic=True)
    with pytest.raises(UsageError, match="excludes enable_cmd"):
        Agent(tools=["think"], enable_cmd=True)


def test_tools_may_be_names_specs_and_definitions() -> None:
    agent = Agent(tools=["finish", Tool(name="execute_bash", params={"session": "b"}), make_think_tool()])
    assert list(agent.initialize(STATE)) == ["finish", "execute_bash", "think"]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="Two tools are named 'execute_bash'"):
        Agent(tools=["terminal", "execute_bash"]).initialize(STATE)


def test_agent_without_tools_offers_none() -> None:
    model = FakeModel(answer("Hi."))
    step = Agent(model, tools=[]).step({}, History())
    assert [body.type for body in step] == ["assistant_message"]


def test_step_yields_the_call_before_anything_runs() -> None:
    runtime = RecordingRuntime()
    agent = Agent(FakeModel(answer("", call("execute_bash", {"command": "x"}))))
    step = agent.step(agent.initialize(ConversationState(conversation_id="c", runtime=runtime)), History())
    assert next(step).type == "tool_call"
    assert runtime.commands == []
    assert next(step).type == "tool_result"
    with pytest.raises(StopIteration) as stopped:
        next(step)
    assert stopped.value.value is StepOutcome.CONTINUE


def test_agent_without_model_says_how_to_give_one() -> None:
    with pytest.raises(UsageError, match="has no model"):
        next(Agent().step({}, History()))


def test_calls_that_were_allowed_run_before_the_model_is_asked_again() -> None:
    runtime = RecordingRuntime()
    model = FakeModel()
    agent = Agent(model)
    [planned] = response_to_actions(answer("", call("execute_bash", {"command": "x"}, call_id="1")), {})
    history = History.from_events(
        stamp(
            events.held(planned.event, asks=True, risk="HIGH", why=[], only_reads=False),
            events.confirmation(tool_call_ids=["1"], approved=True, reason="", by="user"),
            events.status_update(events.ConversationStatus.RUNNING),
        )
    )
    tools = agent.initialize(ConversationState(conversation_id="c", runtime=runtime))
    assert [body.type for body in agent.step(tools, history)] == ["tool_result"]
    assert (runtime.commands, model.seen) == (["x"], [])


def test_actions_carry_what_the_log_needs() -> None:
    tools_map = Agent().initialize(STATE)
    response = answer(
        "Because.", call("think", {"thought": "a"}, call_id="1"), call("think", {"thought": "b"}), id="resp"
    )
    first, second = response_to_actions(response, tools_map, taken_ids=set())
    assert first.action == AgentThinkAction(thought="a")
    assert first.event.data["thought"] == "Because."
    assert first.event.data["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 0}
    assert second.event.data["response_id"] == "resp"
    assert "thought" not in second.event.data
    assert "usage" not in second.event.data


def test_security_risk_is_kept_on_the_event() -> None:
    response = answer("", call("execute_bash", {"command": "x", "security_risk": "HIGH"}))
    [planned] = response_to_actions(response, Agent().initialize(STATE), taken_ids=set())
    assert planned.event.data["security_risk"] == "HIGH"
    assert planned.action is not None
    assert "security_risk" not in planned.action.model_dump()


def test_arguments_with_raw_line_breaks_are_understood_and_stored_strict() -> None:
    raw = '{"thought": "a\nb"}'
    [planned] = response_to_actions(answer("", call("think", raw)), Agent().initialize(STATE), taken_ids=set())
    assert planned.action == AgentThinkAction(thought="a\nb")
    assert planned.event.data["arguments"] == '{"thought": "a\\nb"}'
    assert planned.event.data["raw_arguments"] == raw


def test_name_that_providers_refuse_is_stored_in_a_form_they_take() -> None:
    [planned] = response_to_actions(answer("", call("a b/ü" * 40)), Agent().initialize(STATE), taken_ids=set())
    assert planned.name == ("a_b__" * 40)[:64]
    assert planned.event.data["raw_name"] == "a b/ü" * 40
    assert planned.refusal is not None


def test_tool_is_found_by_alias() -> None:
    tools_map = Agent().initialize(STATE)
    assert find_tool(tools_map, "terminal").name == "execute_bash"
    with pytest.raises(UnknownToolError, match=r"Unknown tool: nope\. Tools you can call: execute_bash, "):
        find_tool(tools_map, "nope")


@pytest.mark.parametrize("raw", ["", "null", "[]", "7", '"x"', "{", '{"a": NaN}', '{"a": -Infinity}', "9" * 5000])
def test_arguments_must_be_a_json_object(raw: str) -> None:
    with pytest.raises(ToolArgumentsError, match="Failed to parse tool call arguments"):
        parse_arguments(raw)


def test_fault_in_the_json_is_placed_and_quoted_short() -> None:
    with pytest.raises(ToolArgumentsError, match="line 1 column") as caught:
        parse_arguments('{"a": ' + "x" * 5000)
    assert len(str(caught.value)) < 900


def prompt(**fields: Any) -> str:
    return render_system_prompt(**{"tool_names": ["finish"], "runtime": STATE.runtime, **fields})


def test_prompt_tells_the_facts_of_the_sandbox() -> None:
    assert "/workspace" in prompt()
    assert "no sandbox" in prompt(runtime=None)


def test_prompt_has_a_part_for_each_duty() -> None:
    titles = [line[2:] for line in prompt().splitlines() if line.startswith("# ")]
    assert titles == [
        "Role",
        "Environment",
        "Efficiency",
        "Files",
        "Code",
        "Version control",
        "Solving problems",
        "Security",
        "When stuck",
    ]


def test_prompt_mentions_only_tools_that_are_there() -> None:
    assert "`finish`" in prompt()
    assert "`finish`" not in prompt(tool_names=[])


def test_prompt_of_the_user_is_taken_as_it_is_with_additions_after_it() -> None:
    text = prompt(system_prompt="{{ Mine }}", extensions=["Ext."], microagents=["Know.", " "])
    assert text == "{{ Mine }}\n\nExt.\n\nKnow."


def test_notes_of_the_workspace_end_the_prompt_marked_as_such() -> None:
    runtime = RecordingRuntime()
    runtime.files["AGENTS.md"] = b"Use tabs.\n"
    state = ConversationState(conversation_id="c", runtime=runtime)
    prompt = Agent(microagents=["Know this."]).system_message(state, {}).data["content"]
    assert prompt.endswith("<AGENTS.md>\nUse tabs.\n</AGENTS.md>")
    assert prompt.index("Know this.") < prompt.index("not the user's word")


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_empty_notes_are_no_notes(data: bytes) -> None:
    runtime = RecordingRuntime()
    runtime.files["AGENTS.md"] = data
    state = ConversationState(conversation_id="c", runtime=runtime)
    assert "AGENTS.md" not in Agent().system_message(state, {}).data["content"]


def test_long_notes_lose_their_middle() -> None:
    runtime = RecordingRuntime()
    runtime.files["AGENTS.md"] = b"\xff" + b"x" * 100_000
    prompt = Agent().system_message(ConversationState(conversation_id="c", runtime=runtime), {}).data["content"]
    assert "68001 of 100001 characters left out" in prompt
