"""`ohsandbox.compat`: what a reader of OpenHands' documents writes is one of our actions, tools or agents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import ValidationError

import ohsandbox
from ohsandbox import Agent, Conversation, LLMConfig, UsageError, compat
from ohsandbox.agent.condenser import WindowCondenser
from ohsandbox.schema import Action
from ohsandbox.state import ConversationState
from ohsandbox.tools.delegate import DelegateAction
from ohsandbox.tools.edit_file import EditFileAction
from ohsandbox.tools.file_editor import FileViewAction
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from collections.abc import Callable

FileEditSource, FileReadSource = compat.FileEditSource, compat.FileReadSource

ACTIONS: list[tuple[Action, Any, str, dict[str, Any]]] = [
    (compat.AgentFinishAction(final_thought="done"), compat.AgentFinishAction, "finish", {"message": "done"}),
    (compat.AgentFinishAction(), compat.AgentFinishAction, "finish", {"message": ""}),
    (compat.AgentThinkAction(thought="hm"), compat.AgentThinkAction, "think", {"thought": "hm"}),
    (
        compat.BrowseInteractiveAction(browser_actions="noop()"),
        compat.BrowseInteractiveAction,
        "browser",
        {"code": "noop()"},
    ),
    (
        compat.AgentDelegateAction(agent="BrowsingAgent", inputs={"task": "look"}),
        compat.AgentDelegateAction,
        "delegate_to_browsing_agent",
        {"task": "look"},
    ),
    (
        compat.AgentDelegateAction(agent="tester", inputs={"task": "test", "tools": ["think"]}),
        DelegateAction,
        "delegate",
        {"task": "test", "name": "tester", "tools": ["think"]},
    ),
    (
        compat.FileEditAction(path="/f", content="x", start=1, end=-1, impl_source=FileEditSource.LLM_BASED_EDIT),
        EditFileAction,
        "edit_file",
        {"path": "/f", "content": "x", "start": 1, "end": -1},
    ),
    (
        compat.FileEditAction(
            path="/f", command="str_replace", impl_source=FileEditSource.OH_ACI, old_str="a", new_str="b"
        ),
        compat.FileEditAction,
        "file_editor",
        {"path": "/f", "command": "str_replace", "old_str": "a", "new_str": "b"},
    ),
    (
        compat.FileReadAction(path="/f", impl_source=FileReadSource.OH_ACI, view_range=None),
        FileViewAction,
        "file_editor",
        {"command": "view", "path": "/f"},
    ),
    (
        compat.FileReadAction("/f", view_range=[1, 2]),
        compat.FileReadAction,
        "file_read",
        {"path": "/f", "view_range": [1, 2]},
    ),
    (
        compat.FileWriteAction(path="/f", content="x"),
        compat.FileWriteAction,
        "file_write",
        {"path": "/f", "content": "x"},
    ),
    (
        compat.CmdRunAction(command="ls", is_input=False).set_hard_timeout(5.0),
        compat.CmdRunAction,
        "execute_bash",
        {"command": "ls", "is_input": False, "timeout": 5.0},
    ),
    (compat.IPythonRunCellAction(code="1"), compat.IPythonRunCellAction, "execute_ipython_cell", {"code": "1"}),
    (compat.CondensationRequestAction(), compat.CondensationRequestAction, "request_condensation", {}),
    (
        compat.TaskTrackingAction.model_validate({"command": "plan", "task_list": [{"id": "1", "title": "a"}]}),
        compat.TaskTrackingAction,
        "task_tracker",
        {"command": "plan", "task_list": [{"id": "1", "title": "a"}]},
    ),
    (compat.MCPAction(name="fetch", arguments={"url": "u"}), compat.MCPAction, "fetch", {"url": "u"}),
]


@pytest.mark.parametrize(
    ("action", "kind", "name", "arguments"), ACTIONS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_action_stands_for_a_call_that_becomes_the_same_action(
    action: Action, kind: Any, name: str, arguments: dict[str, Any]
) -> None:
    assert isinstance(action, Action)
    assert isinstance(action, kind)
    made = compat.to_tool_call(action, "c1")
    assert (made.id, made.function.name, json.loads(made.function.arguments)) == ("c1", name, arguments)
    assert compat.response_to_actions(answer("", made), ["fetch"]) == [action]


def test_actions_are_run_by_the_tools_of_an_agent() -> None:
    runtime = RecordingRuntime()
    runtime.files["/f"] = b"one\ntwo\n"
    state = ConversationState(conversation_id="c", runtime=runtime, ask_model=cast("Any", None))
    tools = Agent(tools=["execute_bash", "file_read", "finish"]).initialize(state)
    assert "ran ls" in tools["execute_bash"](compat.CmdRunAction(command="ls")).output
    assert tools["file_read"](compat.FileReadAction("/f")).text == "one\ntwo\n"
    assert tools["finish"](compat.AgentFinishAction("bye")).text == "bye"


def test_call_of_an_action_is_run_by_a_runtime() -> None:
    runtime = RecordingRuntime()
    for action in (compat.CmdRunAction(command="ls"), compat.FileWriteAction(path="/f", content="x")):
        function = compat.to_tool_call(action).function
        assert not runtime.execute_tool(function.name, json.loads(function.arguments)).is_error
    assert runtime.commands == ["ls"]
    assert runtime.files["/f"] == b"x"


def test_names_of_the_actions_work_in_match() -> None:
    def told(action: Action) -> object:
        match action:
            case compat.AgentFinishAction(final_thought=words):  # type: ignore[misc] # a class for Python
                return words
            case compat.FileEditAction(impl_source=source):  # type: ignore[misc] # as above
                return source
            case compat.BrowseInteractiveAction(browser_actions=code):  # type: ignore[misc] # as above
                return code
        return None

    assert told(compat.AgentFinishAction(final_thought="done")) == "done"
    assert told(compat.FileEditAction("/f", content="x")) is FileEditSource.LLM_BASED_EDIT
    assert told(compat.FileEditAction("/f", command="undo_edit")) is FileEditSource.OH_ACI
    assert told(compat.BrowseInteractiveAction("noop()")) == "noop()"
    assert told(compat.AgentThinkAction(thought="hm")) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "either command or content"),
        ({"command": "create", "content": "x"}, "either command or content"),
        ({"command": "create", "file_text": "x", "impl_source": FileEditSource.LLM_BASED_EDIT}, "impl_source"),
    ],
)
def test_edit_of_neither_form_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        compat.FileEditAction("/f", **fields)


def test_fields_of_the_other_form_are_refused() -> None:
    with pytest.raises(ValidationError):
        compat.FileEditAction("/f", content="x", old_str="a")
    with pytest.raises(ValidationError):
        compat.AgentDelegateAction(inputs={"url": "u"})


def test_words_are_no_call() -> None:
    with pytest.raises(UsageError, match="MessageAction"):
        compat.to_tool_call(compat.MessageAction(content="hi"))


# --- answers ------------------------------------------------------------------------------------------


def test_answer_without_calls_is_a_message_that_waits() -> None:
    [action] = compat.response_to_actions({"id": "r", "choices": [{"message": {"content": None}}]})
    assert action == compat.MessageAction(content="", wait_for_response=True)
    assert action.response_id == "r"  # type: ignore[attr-defined] # not a field


def test_answer_of_litellm_becomes_actions_in_order() -> None:
    litellm = pytest.importorskip("litellm")
    calls = [compat.to_tool_call(action, str(number)).model_dump() for number, (action, *_) in enumerate(ACTIONS)]
    message = {"role": "assistant", "content": "First.", "tool_calls": calls}
    response = litellm.ModelResponse(id="r", choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])
    actions = compat.response_to_actions(response, ["fetch"])
    assert actions == [action for action, *_ in ACTIONS]
    assert {vars(action)["response_id"] for action in actions} == {"r"}
    metadata = [action.tool_call_metadata for action in actions]
    assert [one.tool_call_id for one in metadata] == [str(number) for number in range(len(ACTIONS))]
    assert {(one.response_id, one.total_calls_in_response, one.model_response.id) for one in metadata} == {
        ("r", len(ACTIONS), "r")
    }


@pytest.mark.parametrize(
    ("name", "arguments", "error", "told"),
    [
        ("execute_bash", "{", compat.FunctionCallValidationError, "Failed to parse tool call arguments: "),
        ("execute_bash", {}, compat.FunctionCallValidationError, 'Missing required argument "command" in tool call'),
        ("fetch", "[]", compat.FunctionCallValidationError, "Failed to parse"),
        (
            "teleport",
            {"to": "Mars"},
            compat.FunctionCallNotExistsError,
            r'Unknown tool: teleport.*"to": "Mars"',
        ),
    ],
)
def test_wrong_call_is_an_error(name: str, arguments: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        compat.response_to_actions(answer("", call(name, arguments)), ["fetch"])


def test_own_tool_stands_before_an_mcp_tool_of_its_name() -> None:
    [action] = compat.response_to_actions(answer("", call("think", {"thought": "t"})), ["think"])
    assert action == compat.AgentThinkAction(thought="t")


# --- tools --------------------------------------------------------------------------------------------

PARAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "execute_bash": compat.create_cmd_run_tool,
    "file_editor": compat.create_str_replace_editor_tool,
    compat.TASK_TRACKER_TOOL_NAME: compat.create_task_tracker_tool,
    "think": lambda: compat.ThinkTool,
    "finish": lambda: compat.FinishTool,
    "execute_ipython_cell": lambda: compat.IPythonTool,
    "browser": lambda: compat.BrowserTool,
    "edit_file": lambda: compat.LLMBasedFileEditTool,
    "request_condensation": lambda: compat.CondensationRequestTool,
}


@pytest.mark.parametrize("name", PARAMS)
def test_tool_is_a_function_of_the_chat_completions_api_and_an_agent_takes_it(name: str) -> None:
    tool = PARAMS[name]()
    assert (tool["type"], tool["function"]["name"]) == ("function", name)
    assert {"description", "parameters"} <= tool["function"].keys()
    state = ConversationState(conversation_id="c", runtime=RecordingRuntime(), ask_model=lambda *_, **__: "")
    agent = Agent(tools=[tool])
    assert list(agent.initialize(state)) == [name]
    tool["function"]["name"] = "mine"
    assert PARAMS[name]()["function"]["name"] == name


@pytest.mark.parametrize(
    "create", [compat.create_cmd_run_tool, compat.create_str_replace_editor_tool, compat.create_task_tracker_tool]
)
def test_short_description_fits_where_the_whole_one_does_not(create: Callable[..., dict[str, Any]]) -> None:
    short, whole = (create(use_short_description=is_short)["function"]["description"] for is_short in (True, False))
    assert len(short) <= 1024
    assert create(True)["function"]["description"] == short  # noqa: FBT003 - as OpenHands' callers write it
    assert (short == whole) is (len(whole) <= 1024)


def test_editor_is_the_same_for_each_type_of_runtime() -> None:
    editor = compat.create_str_replace_editor_tool
    assert editor(True, runtime_type="local") == editor(use_short_description=True)  # noqa: FBT003 - as above


def test_tools_are_cleaned_for_gemini_in_a_copy_and_left_alone_for_others() -> None:
    properties = {
        "a": {"type": "string", "default": "x", "format": "uri"},
        "b": {"type": "string", "format": "date-time"},
    }
    tools = [
        {"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": properties}}}
    ]
    [checked] = compat.check_tools(tools, LLMConfig(model="gemini/gemini-2.5-pro"))
    assert checked["function"]["parameters"]["properties"] == {
        "a": {"type": "string"},
        "b": {"type": "string", "format": "date-time"},
    }
    assert properties["a"]["default"] == "x"
    assert compat.check_tools(tools, LLMConfig(model="openai/gpt-5"))[0] is tools[0]


def test_tool_of_name_description_and_schema_becomes_a_parameter() -> None:
    schema = {"type": "object", "properties": {"cups": {"type": "integer"}}, "required": ["cups"]}
    param = compat.Tool(name="pour", description="Pour tea.", inputSchema=schema).to_param()
    assert param["function"]["name"] == "pour"
    assert param["function"]["parameters"]["required"] == ["cups"]


# --- agent, history, bus ------------------------------------------------------------------------------


def test_code_act_agent_has_the_tools_that_its_config_enables() -> None:
    off = {"enable_cmd": False, "enable_jupyter": False, "enable_editor": False, "enable_search": False}
    agent = compat.CodeActAgent({**off, "enable_file_tools": False, "enable_plan_mode": False}, FakeModel())
    assert agent.tools == ("think", "finish")
    config = ohsandbox.ToolFlags(enable_browsing=True, without=("grep",))
    assert {"browser", "glob"} <= set(compat.CodeActAgent(config).tools)
    assert "grep" not in compat.CodeActAgent(config).tools
    with pytest.raises(UsageError, match="nonsense"):
        compat.CodeActAgent({"enable_nonsense": True})


def test_tools_map_of_an_agent_is_what_its_conversation_has(tmp_path: Path) -> None:
    agent = Agent(FakeModel(), tools=["think", "finish"])
    assert agent.tools_map == {}
    with Conversation(agent, RecordingRuntime(), tmp_path) as conversation:
        conversation.run("Go.", timeout_s=60)
        assert list(agent.tools_map) == ["think", "finish"]
        assert agent.with_tools(["think"]).tools_map == {}
        assert agent.with_llm(FakeModel()).tools_map is agent.tools_map


def test_history_is_a_view_until_something_is_left_out(tmp_path: Path) -> None:
    model = FakeModel(answer("one"), answer("two"), answer("three"))
    with Conversation(Agent(model), RecordingRuntime(), tmp_path) as conversation:
        for word in ("a", "b", "c"):
            conversation.run(word, timeout_s=60)
        events = conversation.events()
    match compat.condensed_history(WindowCondenser(keep_first=20), events, cast("Any", None)):
        case compat.View(events=seen) as view:  # type: ignore[misc] # a NamedTuple by another name
            assert seen == events
            assert [message["role"] for message in view.messages] == ["system", *["user", "assistant"] * 3]
        case _:
            pytest.fail("nothing was to be left out")
    match compat.condensed_history(WindowCondenser(keep_last=2), events, cast("Any", None)):
        case compat.Condensation(action=action):
            assert action == compat.CondensationAction(keep_first=1, dropped=action.dropped, summary=action.summary)
            assert action.dropped > 0
        case _:
            pytest.fail("a window of two was to be kept")


def test_bus_drops_what_it_is_given() -> None:
    bus = compat.NoOpEventBus("s", user_id="u")
    assert (bus.sid, bus.user_id, bus.file_store) == ("s", "u", None)
    assert bus.subscribe("runtime", print, "id") is None
    assert bus.add_event(object(), "agent") is None


def test_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "compatibility.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[0] == "file_editor True 60.0"


def test_type_checkers_know_a_constructor_s_arguments_and_take_it_in_isinstance() -> None:
    """Mypy reads this: an error, or an ignore that is none, would fail its run."""

    def kind_of(action: Action) -> str:
        if isinstance(action, compat.AgentFinishAction):
            return "end"
        return "file" if isinstance(action, (compat.FileEditAction, compat.FileReadAction)) else "other"

    words: str = compat.AgentFinishAction(final_thought="done").message
    assert (words, kind_of(compat.AgentFinishAction())) == ("done", "end")
    assert kind_of(compat.FileEditAction("a", content="x")) == "file"
    with pytest.raises(TypeError):
        compat.AgentFinishAction(thought="x")  # type: ignore[call-arg]


def test_each_name_of_compat_stands_on_the_page() -> None:
    page = (Path(__file__).parents[1] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    beside = {"Action", "ActionSecurityRisk", "CondensationAction", "FileEditSource", "FileReadSource", "RISK_LEVELS"}
    beside |= {
        "FunctionCallNotExistsError",
        "FunctionCallValidationError",
        "SECURITY_RISK_DESC",
        "TASK_TRACKER_TOOL_NAME",
    }
    assert [name for name in compat.__all__ if name not in beside and name not in page] == []
    line = next(line for line in page.splitlines() if "RISK_LEVELS" in line)
    assert [name for name in beside if f"`{name}`" not in line] == []


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = compat.Nonsense  # type: ignore[attr-defined]
