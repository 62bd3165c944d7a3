"""Each documented name can be imported from the module that documents name, and rules that no other test shows."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

import ohsandbox
import ohsandbox.tools
from ohsandbox.agent import Agent, FunctionCallNotExistsError, FunctionCallValidationError, response_to_actions
from ohsandbox.agent.calls import find_tool
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage import find_stored
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.events import ConversationStatus, SDKEvent, user_message
from ohsandbox.llm import LLMConfig
from ohsandbox.persistence import EventLog, read_events
from ohsandbox.runtime.base import Runtime
from ohsandbox.schema import ErrorObservation, Observation, TextObservation
from ohsandbox.state import ConversationState
from ohsandbox.tool import RuntimeTool, Tool, ToolDefinition, list_registered_tools, origin_of_tool, resolve_tool
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMES = {
    "ohsandbox": "Agent CLIRuntime Conversation ConversationStatus DockerRuntime LLM LLMConfig Runtime SDKEvent "
    "Settings Tool ToolAnnotations ToolDefinition ToolExecutor ToolResult register_tool",
    "ohsandbox.tool": "RuntimeTool Tool ToolAnnotations ToolBase ToolDefinition ToolExecutor ToolRegistry "
    "register_tool resolve_tool unregister_tool list_registered_tools origin_of_tool",
    "ohsandbox.schema": "Action Observation Schema TextContent ImageContent ErrorObservation",
    "ohsandbox.mcp": "MCPAction MCPClient MCPToolAction MCPToolDefinition MCPToolExecutor MCPToolObservation "
    "create_mcp_tools",
    "ohsandbox.mcp.definition": "_create_mcp_action_type",
    "ohsandbox.agent": "ActionEvent ActionSecurityRisk AgentErrorEvent CondensationAction FunctionCallNotExistsError "
    "FunctionCallValidationError MessageAction ObservationEvent RISK_LEVELS SECURITY_RISK_DESC ToolCallMetadata "
    "combine_thought response_to_actions set_security_risk",
    "ohsandbox.agent.condenser": "Condensation CondensationAction Condenser",
    "ohsandbox.tools": "AgentDelegateAction AgentFinishAction AgentThinkAction BrowseInteractiveAction BrowserTool "
    "CmdRunAction CondensationRequestAction FileEditAction FileReadAction FileWriteAction IPythonRunCellAction "
    "TaskTrackingAction",
    "ohsandbox.tools.file_read": "FileReadAction FileReadSource",
    "ohsandbox.tools.file_editor": "FileEditAction FileEditSource FileViewAction",
    "ohsandbox.conversation": "Conversation ConversationMetadata ConversationStore FileConversationStore",
    "ohsandbox.events": "ConversationStatus SDKEvent ToolResult",
    "ohsandbox.persistence": "EventLog read_events",
    "ohsandbox.cli.app": "main",
}


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, names in NAMES.items() for name in names.split()])
def test_name_is_where_a_reader_looks_for_it(home: str, name: str) -> None:
    assert getattr(importlib.import_module(home), name) is not None


MEMBERS: Mapping[Any, str] = {
    Runtime: "get_tools execute_tool call_tool_mcp",
    Conversation: "start stop status send_message register_callback autoresume",
    ToolDefinition: "create action_from_arguments __call__ to_openai_tool",
    RuntimeTool: "to_param",
    ohsandbox.Action: "visualize from_mcp_schema",
    Observation: "to_llm_content from_mcp_schema",
    ohsandbox.tools.CmdRunAction: "set_hard_timeout",
    ohsandbox.LLM: "send",
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in MEMBERS.items() for name in names.split()]
)
def test_class_has_its_member(owner: type, name: str) -> None:
    assert inspect.getattr_static(owner, name) is not None


@pytest.mark.parametrize(
    ("made", "parameters"),
    [
        (Agent, "llm tools microagents system_prompt system_prompt_extensions"),
        (Conversation, "agent runtime persist_dir metadata_store conversation_id user_id"),
        (ohsandbox.LLM.send, "self messages tools tool_choice"),
        (Runtime.execute_tool, "self name arguments"),
    ],
)
def test_parameters_stand_in_the_documents_order(made: Any, parameters: str) -> None:
    names = parameters.split()
    assert list(inspect.signature(made).parameters)[: len(names)] == names


def test_settings_of_a_model_are_those_of_the_prd() -> None:
    names = "model api_key base_url api_version custom_llm_provider temperature reasoning_effort max_output_tokens "
    assert set((names + "top_k top_p").split()) <= set(LLMConfig.model_fields)
    assert LLMConfig(model="m").temperature == 0.0


def test_statuses_and_events_are_those_of_the_prd() -> None:
    assert {"RUNNING", "IDLE", "FINISHED", "ERROR", "CANCELED"} <= {status.value for status in ConversationStatus}
    assert {"type", "ts", "conversation_id", "data"} <= set(ohsandbox.SDKEvent.model_fields)
    assert list(ohsandbox.ToolResult.model_fields) == ["status", "output", "error"]


# --- tools --------------------------------------------------------------------------------------------


def test_spec_of_a_tool_is_a_name_and_params() -> None:
    spec = Tool("BashTool", {"working_dir": "/workspace"})
    assert spec == Tool(name="BashTool", params={"working_dir": "/workspace"})
    assert Tool.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(TypeError, match="not 3 values"):
        cast("Any", Tool)("a", {}, "b")


def _nobody(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("only made, never called")


def _state(runtime: Runtime | None = None) -> ConversationState:
    return ConversationState(
        conversation_id="c", runtime=runtime or RecordingRuntime(), ask_model=_nobody, delegate=_nobody
    )


OWN = {
    tool.name: tool
    for name in list_registered_tools()
    if origin_of_tool(name).name == "ohsandbox"
    for tool in resolve_tool(Tool(name=name), _state())
}

MAPPINGS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "execute_bash",
        {"command": "ls", "is_input": "true", "timeout": "5", "security_risk": "LOW"},
        "CmdRunAction",
        {"command": "ls", "is_input": True, "timeout": 5.0},
    ),
    ("execute_bash", {"command": "ls", "is_input": "false"}, "CmdRunAction", {"is_input": False, "timeout": None}),
    ("execute_ipython_cell", {"code": "1", "security_risk": "LOW"}, "IPythonRunCellAction", {"code": "1"}),
    (
        "delegate_to_browsing_agent",
        {"task": "look"},
        "AgentDelegateAction",
        {"agent": "BrowsingAgent", "inputs": {"task": "look"}},
    ),
    ("finish", {"message": "ok"}, "AgentFinishAction", {"final_thought": "ok"}),
    ("finish", {}, "AgentFinishAction", {"final_thought": ""}),
    ("edit_file", {"path": "/f", "content": "x"}, "EditFileAction", {"start": 1, "end": -1}),
    (
        "str_replace_editor",
        {"command": "view", "path": "/f", "view_range": [1, 2], "security_risk": "LOW"},
        "FileReadAction",
        {"path": "/f", "view_range": (1, 2)},
    ),
    (
        "str_replace_editor",
        {"command": "create", "path": "/f", "file_text": "x", "view_range": [9], "security_risk": "LOW"},
        "FileEditAction",
        {"command": "create", "view_range": None},
    ),
    (
        "str_replace_based_edit_tool",
        {"command": "view", "path": "/f", "security_risk": "LOW"},
        "FileReadAction",
        {"path": "/f"},
    ),
    ("think", {}, "AgentThinkAction", {"thought": ""}),
    ("request_condensation", {}, "CondensationRequestAction", {}),
    ("browser", {"code": "noop()", "security_risk": "LOW"}, "BrowseInteractiveAction", {"code": "noop()"}),
    ("task_tracker", {"command": "view"}, "TaskTrackingAction", {"command": "view"}),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "fields"), MAPPINGS)
def test_call_becomes_the_action_of_the_article(
    name: str, arguments: dict[str, Any], kind: str, fields: dict[str, Any]
) -> None:
    [event] = response_to_actions(answer("", call(name, arguments)), OWN)
    assert event.refusal is None, event.refusal
    assert kind in {parent.__name__ for parent in type(event.action).__mro__}
    assert {field: getattr(event.action, field) for field in fields} == fields


@pytest.mark.parametrize(
    ("name", "arguments", "source"),
    [
        ("file_read", {"path": "/f"}, "DEFAULT"),
        ("file_editor", {"command": "view", "path": "/f"}, "OH_ACI"),
        ("file_editor", {"command": "undo_edit", "path": "/f"}, "OH_ACI"),
        ("edit_file", {"path": "/f", "content": ""}, "LLM_BASED_EDIT"),
    ],
)
def test_action_on_a_file_says_what_does_it(name: str, arguments: dict[str, Any], source: str) -> None:
    assert OWN[name].action_from_arguments(arguments).impl_source.name == source


def test_items_of_a_plan_are_completed() -> None:
    plan = {"command": "plan", "task_list": [{"title": "a"}, {}]}
    tasks = OWN["task_tracker"].action_from_arguments(plan).task_list
    assert [task.model_dump() for task in tasks] == [
        {"id": "task-1", "title": "a", "status": "todo", "notes": ""},
        {"id": "task-2", "title": "Untitled task", "status": "todo", "notes": ""},
    ]


REFUSALS: list[tuple[str, Any, list[str]]] = [
    ("execute_bash", '{"command": ', ["Failed to parse tool call arguments:", '{"command": ']),
    ("execute_bash", {}, ['Missing required argument "command" in tool call execute_bash']),
    ("execute_bash", {"command": "x", "timeout": "soon"}, ["'timeout'", "'soon'", "valid number"]),
    ("execute_bash", {"command": "x", "timeout": True}, ["'timeout'", "True", "A number is needed"]),
    (
        "execute_bash",
        {"command": "x", "k": 1},
        ["Unexpected argument 'k' in tool call execute_bash", "Allowed arguments"],
    ),
    ("str_replace_editor", {"path": "/f"}, ['Missing required argument "command"']),
    ("str_replace_editor", {"command": "view"}, ['Missing required argument "path"']),
    ("task_tracker", {"command": "plan"}, ['Missing required argument "task_list" for command "plan"']),
    ("task_tracker", {"command": "plan", "task_list": "x"}, ["'task_list'", "A list is needed"]),
    ("task_tracker", {"command": "plan", "task_list": ["x"]}, ["'task_list.0'", "An object is needed"]),
    ("edit_file", {"path": "/f"}, ['Missing required argument "content"']),
    ("teleport", {"to": "moon"}, ["Unknown tool: teleport.", '{"to": "moon"}', "Tools you can call:"]),
]


@pytest.mark.parametrize(("name", "arguments", "facts"), REFUSALS)
def test_refusal_holds_the_facts_of_the_article(name: str, arguments: Any, facts: list[str]) -> None:
    [event] = response_to_actions(answer("", call(name, arguments)), OWN)
    assert event.action is None
    assert [fact for fact in facts if fact not in (event.refusal or "")] == [], event.refusal


def test_errors_have_the_names_of_the_article() -> None:
    with pytest.raises(FunctionCallValidationError):
        OWN["execute_bash"].action_from_arguments({})
    with pytest.raises(FunctionCallNotExistsError):
        find_tool(OWN, "teleport")


@pytest.mark.parametrize(
    ("name", "hints"),
    [
        ("glob", {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}),
        ("execute_bash", {"readOnlyHint": False, "idempotentHint": False, "openWorldHint": True}),
        ("file_editor", {"destructiveHint": True}),
        ("task_tracker", {"destructiveHint": False, "openWorldHint": False}),
    ],
)
def test_hints_are_those_of_the_documents(name: str, hints: dict[str, bool]) -> None:
    annotations = OWN[name].annotations
    assert annotations is not None
    assert {hint: getattr(annotations, hint) for hint in hints} == hints


@pytest.mark.parametrize("name", sorted(OWN))
def test_description_begins_with_a_verb_and_names_what_is_required_and_returned(name: str) -> None:
    function = OWN[name].to_openai_tool()["function"]
    first, said = function["description"].split()[0].strip(","), function["description"].lower()
    assert first in {
        "Ask", "Edit", "End", "Find", "Give", "Have", "Keep", "Read", "Run", "Search", "Use", "View", "Write",
    }  # fmt: skip
    assert [required for required in function["parameters"].get("required", ()) if f"`{required}`" not in said] == []
    assert "return" in said or name == "finish"


@pytest.mark.parametrize("name", sorted(OWN))
def test_tool_carries_the_version_of_who_made_it(name: str) -> None:
    assert origin_of_tool(name) == ("ohsandbox", ohsandbox.__version__)


# --- the runtime's tools ------------------------------------------------------------------------------


class Kitchen(RecordingRuntime):
    """A runtime with a tool of its own."""

    def get_tools(self) -> list[dict[str, Any]]:
        properties = {"cups": {"type": "integer"}}
        schema = {"type": "object", "properties": properties, "required": ["cups"]}
        return [*super().get_tools(), {"name": "pour", "description": "Pour tea.", "inputSchema": schema}]

    def execute_tool(self, name: str, arguments: Mapping[str, Any], **_: Any) -> Observation:
        return TextObservation(text=f"{arguments}") if name == "pour" else super().execute_tool(name, arguments)


def test_runtime_needs_no_event_bus() -> None:
    assert set(inspect.signature(Runtime.__init__).parameters) & {"bus", "event_stream", "sid", "file_store"} == set()
    assert RecordingRuntime().execute_tool("execute_bash", {"command": "ls"}).is_error is False


def test_what_a_runtime_lists_becomes_the_parameter_of_a_model() -> None:
    params = [RuntimeTool.model_validate(tool).to_param() for tool in Kitchen().get_tools()]
    assert [param["function"]["name"] for param in params] == ["execute_bash", "file_read", "file_write", "pour"]
    assert all(param["type"] == "function" for param in params)
    assert params[-1]["function"]["parameters"]["required"] == ["cups"]


def test_tool_of_a_runtime_is_checked_and_run_by_it_and_others_are_not_replaced() -> None:
    tools = Agent(tools=["pour", "file_read"]).initialize(_state(Kitchen()))
    pour = tools["pour"]
    assert pour(pour.action_from_arguments({"cups": 2, "security_risk": "LOW"})) == TextObservation(text="{'cups': 2}")
    with pytest.raises(FunctionCallValidationError):
        pour.action_from_arguments({"cups": "many"})
    assert tools["file_read"].action_type is ohsandbox.tools.FileReadAction
    with pytest.raises(ohsandbox.UsageError, match="'pour' is not registered"):
        Agent(tools=["pour"]).initialize(_state())
    with pytest.raises(ohsandbox.UsageError, match="takes no params"):
        Agent(tools=[Tool(name="pour", params={"a": 1})]).initialize(_state(Kitchen()))


def test_unknown_tool_of_a_runtime_is_told_in_the_fixed_words() -> None:
    assert RecordingRuntime().execute_tool("nope", {}) == ErrorObservation(message="Unknown tool: nope")


# --- the conversation ---------------------------------------------------------------------------------


def test_exit_finishes_without_asking_the_model(tmp_path: Path) -> None:
    model = FakeModel()
    with Conversation(Agent(model), RecordingRuntime(), tmp_path) as conversation:
        assert conversation.run(" /exit\n", timeout_s=20) == ConversationStatus.FINISHED
        assert model.seen == []
        assert conversation.run("Leave with /exit?", timeout_s=20) == ConversationStatus.IDLE


def test_tool_that_requires_confirmation_waits_under_every_policy(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    calls = [call("execute_bash", {"command": "rm x"}, call_id="a"), call("think", {"thought": "t"}, call_id="b")]
    agent = Agent(FakeModel(answer("", *calls)), tools=[Tool(name="execute_bash", require_confirmation=True), "think"])
    with Conversation(agent, runtime, tmp_path, confirmation="never") as conversation:
        assert conversation.run("Go.", timeout_s=20) == ConversationStatus.WAITING_FOR_CONFIRMATION
        assert [waiting.tool_call_id for waiting in conversation.pending] == ["a"]
        assert runtime.commands == []
        conversation.confirm()
        assert conversation.wait(20) == ConversationStatus.IDLE
        assert runtime.commands == ["rm x"]
        assert [result["status"] for result in results_of(conversation)] == ["ok", "ok"]


def test_each_call_is_followed_by_its_result_as_json_before_the_next_request(tmp_path: Path) -> None:
    model = FakeModel(answer("", call("execute_bash", {"command": "a"}, call_id="1"), call("nope", call_id="2")))
    with Conversation(Agent(model), RecordingRuntime(), tmp_path) as conversation:
        conversation.run("Go.", timeout_s=20)
        kinds = [event.type for event in conversation.events() if event.type.startswith("tool_")]
        assert kinds == ["tool_call", "tool_result", "tool_call", "tool_result"]
        system, *_ = data_of(conversation.events(), "system_message")
    roles = [message["role"] for message in model.seen[-1]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert model.seen[-1][0]["content"] == system["content"]
    contents = [json.loads(message["content"]) for message in model.seen[-1][-2:]]
    assert [content["status"] for content in contents] == ["ok", "error"]
    assert [message["tool_call_id"] for message in model.seen[-1][-2:]] == ["1", "2"]


@pytest.mark.parametrize("word", [None, False, True])
def test_skills_of_a_repository_bring_servers_that_start_only_after_the_persons_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, word: bool | None
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "home"))
    started = "touch started; exec cat"
    servers = {"stdio_servers": [{"name": "brought", "command": "sh", "args": ["-c", started]}]}
    text = f"---\nname: repo\ntype: repo\nmcp_tools: {json.dumps(servers)}\n---\n"
    (tmp_path / "work").mkdir()
    with ohsandbox.CLIRuntime(tmp_path / "work", bubblewrap=False, quiet=True) as runtime:
        runtime.write_bytes(".openhands/microagents/repo.md", text.encode())
        agent = Agent(FakeModel(), ["finish"])
        with Conversation(
            agent, runtime, tmp_path / "c", skill_servers=None if word is None else lambda _: word is True
        ) as conversation:
            conversation.run("Go.", timeout_s=60)
            [told, *_] = [data for data in data_of(conversation.events(), "notice") if data["code"] == "SkillServers"]
    assert (tmp_path / "work" / "started").exists() is (word is True)
    assert ("are not started" in told["message"]) is (word is not True)


# --- a model that repeats itself ----------------------------------------------------------------------


def test_model_that_repeats_itself_is_told_once_then_stopped_also_across_processes(tmp_path: Path) -> None:
    again = [answer("", call("execute_bash", {"command": "ls"})) for _ in range(4)]
    models = FakeModel(*again[:3], OSError("killed")), FakeModel(again[3])
    for model in models:
        with Conversation(Agent(model), RecordingRuntime(), tmp_path, conversation_id="c") as conversation:
            if model is models[0]:
                conversation.run("List.", timeout_s=20)
            elif conversation.resume():
                conversation.wait(20)
    told = [data for data in data_of(conversation.events(), "notice") if data["code"] == "Repetition"]
    assert len(told) == 1
    assert "3 times the same call of execute_bash with the same result" in told[0]["message"]
    for model in models:
        last = model.seen[-1][-1]
        assert last["role"] == "user"
        assert told[0]["message"] in last["content"]
    assert "4 times the same call" in str(conversation.error)


# --- resuming -----------------------------------------------------------------------------------------


def _stored(root: Path, name: str, text: str) -> None:
    with Conversation(Agent(FakeModel()), RecordingRuntime(), root, conversation_id=name) as conversation:
        conversation.run(text, timeout_s=20)


def test_newest_is_by_the_last_event_and_one_without_events_never_wins(tmp_path: Path) -> None:
    _stored(tmp_path, "a", "first")
    _stored(tmp_path, "b", "second")
    _stored(tmp_path, "a", "third")
    EventLog(tmp_path / "empty", conversation_id="empty").close()
    assert Conversation.autoresume(persist_dir=tmp_path).id == "a"
    assert find_stored(tmp_path, "last").name == "a"
    for name in ("a", "b"):
        (tmp_path / name / "sdk_events.jsonl").unlink()
        (tmp_path / name / "metadata.json").unlink()
    with pytest.raises(UsageError, match="No conversation to resume"):
        Conversation.autoresume(persist_dir=tmp_path)


@pytest.mark.parametrize("wanted", ["a", None])
def test_autoresume_of_an_instance_continues_the_stored_one_in_it(tmp_path: Path, wanted: str | None) -> None:
    _stored(tmp_path, "a", "My name is Ann.")
    model, heard = FakeModel(), list[str]()
    conversation = Conversation(Agent(model), RecordingRuntime(), tmp_path)
    conversation.register_callback(lambda event: heard.append(event.conversation_id))
    assert conversation.autoresume(wanted) is conversation
    with conversation:
        conversation.run("What is it?", timeout_s=20)
        assert conversation.autoresume() is conversation
        with pytest.raises(UsageError, match="No conversation 'b'"):
            conversation.autoresume("b")
    assert [one["content"] for one in model.seen[0] if one["role"] == "user"] == ["My name is Ann.", "What is it?"]
    assert {conversation.id, *heard} == {"a"}


@pytest.mark.parametrize("wanted", ["a", None])
def test_autoresume_of_an_open_conversation_without_a_message_continues_the_stored_one(
    tmp_path: Path, wanted: str | None
) -> None:
    _stored(tmp_path, "a", "My name is Ann.")
    model, heard = FakeModel(), list[str]()
    with Conversation(Agent(model), RecordingRuntime(), tmp_path) as conversation:
        conversation.register_callback(lambda event: heard.append(event.conversation_id))
        assert conversation.autoresume(wanted).id == "a"
        conversation.run("What is it?", timeout_s=20)
    assert [one["content"] for one in model.seen[0] if one["role"] == "user"] == ["My name is Ann.", "What is it?"]
    assert {conversation.id, *heard} == {"a"}
    assert [event.type for event in read_events(tmp_path / "a" / "sdk_events.jsonl")].count("user_message") == 2


def test_autoresume_of_an_open_conversation_without_any_to_resume_says_so(tmp_path: Path) -> None:
    with (
        Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path) as conversation,
        pytest.raises(UsageError, match="No conversation to resume"),
    ):
        conversation.autoresume()


def test_autoresume_of_an_instance_keeps_to_its_own_log(tmp_path: Path) -> None:
    _stored(tmp_path, "a", "first")
    _stored(tmp_path, "b", "second")
    with Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path, conversation_id="a") as conversation:
        assert conversation.autoresume().id == "a"
        with pytest.raises(UsageError, match="has begun and cannot become 'b'"):
            conversation.autoresume("b")
        with pytest.raises(UsageError, match="takes an id alone"):
            conversation.autoresume(persist_dir=tmp_path)


# --- the log ------------------------------------------------------------------------------------------


def test_log_of_the_four_keys_alone_loads_resumes_and_round_trips(tmp_path: Path) -> None:
    result = {"status": "ok", "output": "a.txt"}
    records: list[tuple[str, dict[str, Any]]] = [
        ("user_message", {"content": "List."}),
        ("tool_call", {"tool_call_id": "c1", "name": "execute_bash", "arguments": '{"command": "ls"}'}),
        ("tool_result", {"tool_call_id": "c1", "name": "execute_bash", "result": result}),
        ("assistant_message", {"content": "One file."}),
        ("status_update", {"status": "IDLE"}),
    ]
    lines = [
        json.dumps({"type": kind, "ts": f"2026-01-02T00:00:0{seq}", "conversation_id": "old", "data": data})
        for seq, (kind, data) in enumerate(records)
    ]
    log = tmp_path / "old" / "sdk_events.jsonl"
    log.parent.mkdir(mode=0o700)
    log.write_text("\n".join(lines) + "\n")
    model = FakeModel(answer("Still one."))
    with Conversation.autoresume("old", persist_dir=tmp_path, agent=Agent(model), runtime=RecordingRuntime()) as again:
        assert again.run("And now?", timeout_s=20) == ConversationStatus.IDLE
    sent = [(message["role"], message["content"]) for message in model.seen[0][1:]]
    assert sent[0] == ("user", "List.")
    assert sent[2:] == [
        ("tool", json.dumps(result)), ("assistant", "One file."), ("user", "And now?"),
    ]  # fmt: skip
    assert log.read_text().splitlines()[: len(lines)] == lines
    read = read_events(log)
    assert [SDKEvent.model_validate_json(line).ts for line in lines] == [event.ts for event in read[: len(lines)]]
    assert [event.seq for event in read] == list(range(len(read)))
    copied = tmp_path / "copy.jsonl"
    copied.write_text("".join(event.model_dump_json(exclude={"seq"}) + "\n" for event in read))
    assert read_events(copied) == read


def test_record_that_lost_its_checksum_is_damage_and_no_record_of_four_keys(tmp_path: Path) -> None:
    with EventLog(tmp_path / "c", conversation_id="c") as log:
        log.append(user_message("a"))
        log.append(user_message("b"))
    text = log.path.read_text()
    log.path.write_text(text.replace('"a"', '"x"'))
    with pytest.raises(LogCorruptError, match="checksum"):
        read_events(log.path)
