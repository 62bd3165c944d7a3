"""What the documents show of tools, prompts and models works exactly as it stands there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field

from ohsandbox.agent import Agent, ToolCallMetadata, render_system_prompt, response_to_actions
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.policy import ConfirmationPolicy, ConfirmRisky, policy_of
from ohsandbox.conversation.approvals.rules.analyzers import default_analyzer
from ohsandbox.errors import ToolArgumentsError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.schema import Action
from ohsandbox.state import ConversationState
from ohsandbox.testing import FakeRuntime
from ohsandbox.tool import Tool, ToolAnnotations, ToolDefinition, function_tool, resolve_tool
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime


def state(runtime: Runtime | None = None, **options: Any) -> ConversationState:
    return ConversationState(conversation_id="c", runtime=runtime or RecordingRuntime(), **options)


@pytest.fixture
def sandbox() -> Iterator[FakeRuntime]:
    with FakeRuntime() as started:
        yield started


# --- what `Tool` and `Agent(tools=...)` take ---------------------------------------------------------------


def test_bash_tool_of_the_documents_begins_in_its_working_dir(sandbox: FakeRuntime) -> None:
    sandbox.execute("mkdir -p src", session="other")
    params = {"working_dir": f"{sandbox.workdir}/src", "timeout": 60, "idle_timeout": 5}
    [tool] = resolve_tool(Tool(name="BashTool", params=params), state(sandbox))
    assert tool(tool.action_from_arguments({"command": "pwd"})).output == f"{sandbox.workdir}/src\n"
    assert tool(tool.action_from_arguments({"command": "cd /; pwd"})).output == "/\n"
    assert tool(tool.action_from_arguments({"command": "pwd", "reset": True})).output == f"{sandbox.workdir}/src\n"
    assert "after 5 s without output, or 60 s in all" in tool.description


@pytest.mark.parametrize(
    ("name", "params", "told"),
    [
        ("BashTool", {"workdir": "/"}, "no params 'workdir'. It has: session, working_dir, timeout, idle_timeout."),
        ("file_editor", {"root": "/"}, "no params 'root'. It has: none."),
        ("BashTool", {"timeout": 0}, "timeout is 0. Give seconds"),
        ("file_*", {"root": "/"}, "no params 'root'"),
    ],
)
def test_params_that_a_tool_does_not_know_are_refused_with_those_it_knows(
    name: str, params: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        resolve_tool(Tool(name=name, params=params), state())
    assert told in str(refused.value)


@pytest.mark.parametrize("entry", ["file_*", Tool(name="file_*")])
def test_tools_are_found_by_pattern_each_once(entry: Any) -> None:
    assert sorted(Agent(tools=[entry]).initialize(state())) == ["file_editor", "file_read", "file_write"]
    assert list(Agent(tools=["*Tool", "execute_bash"]).initialize(state())) == ["execute_bash", "browser"]
    assert {tool.name for tool in resolve_tool(Tool(name="file_*"), state())} == {
        *("file_editor", "file_read", "file_write")
    }


def test_what_was_named_beside_a_pattern_keeps_its_params() -> None:
    asking = Tool(name="file_write", require_confirmation=True)
    orders: list[list[str | Tool]] = [["file_*", asking], [asking, "file_*"]]
    for tools in orders:
        assert Agent(tools=tools).initialize(state())["file_write"].require_confirmation


def test_pattern_that_nothing_matches_is_refused() -> None:
    with pytest.raises(UsageError, match=r"No tool matches 'nothing_\*'"):
        Agent(tools=["nothing_*"]).initialize(state())
    with pytest.raises(UsageError, match=r"No registered tool matches 'nothing_\*'"):
        resolve_tool(Tool(name="nothing_*"), state())


DESCRIBED = {"type": "function", "function": {"name": "execute_bash", "description": "Mine.", "parameters": {}}}


def test_dict_in_the_form_of_openai_names_a_registered_tool() -> None:
    assert list(Agent(tools=[DESCRIBED, {"name": "think"}]).initialize(state())) == ["execute_bash", "think"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "function", "function": {"name": "weather"}}, "nothing runs a dict"),
        ({"type": "function"}, "needs a name"),
        ({"type": "retrieval", "name": "execute_bash"}, "needs a name"),
        ({"inputSchema": {}}, "not as Runtime.get_tools has it"),
        (7, "cannot hold the int 7"),
        (Tool, "cannot hold the class 'Tool'"),
        (lambda: 1, "no docstring"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_once_with_a_sentence(given: Any, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Agent(tools=[given])
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_runtime_lists_can_be_handed_to_the_agent() -> None:
    runtime = Kitchen()
    assert list(Agent(tools=runtime.get_tools()).initialize(state(runtime))) == [
        *("execute_bash", "file_read", "file_write", "pour", "web_read")
    ]


# --- functions ------------------------------------------------------------------------------------------------


def weather(city: str, days: Annotated[int, Field(ge=1, description="How many.")] = 1, *, copy: bool = False) -> Any:
    """Tell the weather of a city."""
    return {"city": city, "days": days, "copy": copy}


def test_function_is_a_tool_by_its_signature_and_docstring() -> None:
    tool = Agent(tools=[weather]).initialize(state())["weather"]
    function = tool.to_openai_tool()["function"]
    assert function["description"] == "Tell the weather of a city."
    assert list(function["parameters"]["properties"]) == ["security_risk", "city", "days", "copy"]
    assert function["parameters"]["properties"]["days"]["description"] == "How many."
    assert function["parameters"]["required"] == ["city"]
    action = tool.action_from_arguments({"city": "Oslo", "copy": "true"})
    assert tool(action).text == '{"city":"Oslo","days":1,"copy":true}'
    with pytest.raises(ToolArgumentsError, match="'days'"):
        tool.action_from_arguments({"city": "Oslo", "days": 0})


def test_coroutine_function_and_its_text_are_a_tool_too() -> None:
    async def greet(name: str = "you", since: Any = range(3)) -> str | None:
        """Greet."""
        return f"Hello, {name}: {list(since)}" if name else None

    tool = function_tool(greet)
    assert tool(tool.action_from_arguments({})).to_llm_content[0].text == "Hello, you: [0, 1, 2]"  # type: ignore[union-attr]
    assert "Done" in tool(tool.action_from_arguments({"name": ""})).to_llm_content[0].text  # type: ignore[union-attr]


class Odd:
    """Nothing that JSON has."""


class Wordless:
    """A type whose error has no message."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> object:
        raise TypeError


def test_function_that_cannot_be_a_tool_says_why() -> None:
    def starred(*parts: str) -> None:
        """Join."""

    def odd(value: Odd) -> None:
        """Take it."""

    def wordless(value: Wordless) -> None:
        """Take it."""

    def factory(conv_state: ConversationState) -> None:
        """Make tools."""

    for function, told in (
        (starred, "takes parts"),
        (odd, "JSON cannot describe"),
        (wordless, "JSON cannot describe: TypeError"),
        (factory, "register_tool"),
    ):
        with pytest.raises(UsageError, match=told):
            function_tool(function)


def test_function_is_rated_as_what_runs_on_the_host_and_asks(tmp_path: Path) -> None:
    called: list[str] = []

    def note(text: str) -> str:
        """Note a text."""
        called.append(text)
        return "noted"

    model = FakeModel(answer("", call("note", {"text": "x", "security_risk": "LOW"})))
    with Conversation(Agent(model, [note]), RecordingRuntime(), tmp_path, confirmation="risky") as conversation:
        assert conversation.run("Go.", timeout_s=20) == ConversationStatus.WAITING_FOR_CONFIRMATION
        assert called == []
        conversation.confirm()
        assert conversation.wait(20) == ConversationStatus.IDLE
        assert called == ["x"]
        assert [result["output"] for result in results_of(conversation)] == ["noted"]


# --- agents -----------------------------------------------------------------------------------------------------


def test_agent_is_a_tool_of_another_with_its_own_tools_prompt_and_model(tmp_path: Path, sandbox: FakeRuntime) -> None:
    own = FakeModel(answer("", call("file_read", {"path": "a.txt"})), answer("", call("finish", {"message": "fine"})))
    reviewer = Agent(
        own, ["file_read", "ask_human"], name="reviewer", description="Reads and judges", system_prompt="J."
    )
    model = FakeModel(answer("", call("reviewer", {"task": "Judge a.txt."})), answer("done"))
    sandbox.write_bytes("a.txt", b"good")
    with Conversation(Agent(model, ["think", reviewer]), sandbox, tmp_path) as conversation:
        conversation.run("Go.", timeout_s=30)
        [system] = data_of(conversation.events(), "system_message")
        [result] = results_of(conversation)
    described = {tool["function"]["name"]: tool["function"]["description"] for tool in system["tools"]}
    assert list(described) == ["think", "reviewer"]
    assert "Reads and judges." in described["reviewer"]
    assert result["output"].startswith("fine\n[Sub-agent 'reviewer-1'")
    assert own.seen[0][0]["content"].startswith("J.\n")
    assert own.seen[0][1]["content"] == "Judge a.txt."
    assert "good" in own.seen[1][-1]["content"]
    assert conversation.status() is ConversationStatus.IDLE


def test_agent_without_a_model_takes_that_of_the_agent_that_asks_it(tmp_path: Path, sandbox: FakeRuntime) -> None:
    model = FakeModel(answer("", call("helper", {"task": "t"})), answer("yes"), answer("done"))
    with Conversation(Agent(model, [Agent(name="helper", tools=[])]), sandbox, tmp_path) as conversation:
        conversation.run("Go.", timeout_s=30)
        assert results_of(conversation)[0]["output"].startswith("yes\n")


@pytest.mark.parametrize("name", ["", "a b", "x" * 41])
def test_agent_has_a_name_that_a_tool_can_have(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        Agent(name=name)


# --- the runtime's own tools --------------------------------------------------------------------------------------


class Kitchen(RecordingRuntime):
    """A runtime with two tools of its own, one of them by the name of a tool that is off by default."""

    def get_tools(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"cups": {"type": "integer"}}}
        own = [{"name": name, "description": "Pour tea.", "inputSchema": schema} for name in ("pour", "web_read")]
        return [*super().get_tools(), *own]


def test_runtime_with_more_tools_offers_them_by_default() -> None:
    offered = Agent().initialize(state(Kitchen()))
    assert "pour" in offered
    assert list(offered)[:-1] == list(Agent().initialize(state()))
    assert "web_read" not in offered
    assert "pour" not in Agent(tools=["think"]).initialize(state(Kitchen()))
    assert "pour" in Agent(enable_think=False).initialize(state(Kitchen()))


def test_tools_of_a_runtime_are_found_by_pattern_too() -> None:
    assert list(Agent(tools=["po*"]).initialize(state(Kitchen()))) == ["pour"]


def test_llm_editor_replaces_the_string_editor() -> None:
    offered = Agent(enable_llm_editor=True).initialize(state(ask_model=lambda prompt, *, system="": ""))  # noqa: ARG005
    assert "edit_file" in offered
    assert "file_editor" not in offered
    assert "file_editor" in Agent().initialize(state())


# --- actions and annotations ---------------------------------------------------------------------------------------


def test_action_carries_the_metadata_of_its_call() -> None:
    tools = Agent(tools=["think", "file_editor"]).initialize(state())
    view = call("file_editor", {"command": "view", "path": "/f"}, call_id="b")
    response = answer("", call("think", {"thought": "t"}, call_id="a"), view)
    for index, event in enumerate(response_to_actions(response, tools)):
        assert event.action is not None
        metadata = event.action.tool_call_metadata
        assert (metadata.tool_call_id, metadata.call_index) == ("ab"[index], index)
        assert metadata.model_response is response
        assert metadata.total_calls_in_response == 2
        assert event.action == tools[event.name].action_from_arguments(event.action.to_arguments())
        assert "metadata" not in event.action.model_dump_json()
    assert tools["think"].action_from_arguments({"thought": "t"}).tool_call_metadata is None
    assert (
        ToolCallMetadata(
            tool_call_id="a", function_name="think", model_response=response, total_calls_in_response=1
        ).response_id
        == ""
    )


def test_progress_enabled_is_accepted_and_ignored() -> None:
    annotations = ToolAnnotations(progressEnabled=True, readOnlyHint=True)
    assert annotations.model_dump() == ToolAnnotations(readOnlyHint=True).model_dump()


class Clear(Action):
    path: str = "/workspace/x"


@pytest.mark.parametrize(
    "annotations",
    [
        ToolAnnotations(destructiveHint=True),
        ToolAnnotations(destructiveHint=True, readOnlyHint=True),
        ToolAnnotations(destructiveHint=True, openWorldHint=False, idempotentHint=True),
    ],
)
@pytest.mark.parametrize("policy", ["risky", "medium", "always"])
def test_destructive_tool_asks_and_never_less_than_one_without_annotations(
    annotations: ToolAnnotations, policy: str
) -> None:
    def asks(hints: ToolAnnotations | None, confirm: ConfirmationPolicy) -> bool:
        tool: ToolDefinition[Clear, Any] = ToolDefinition(
            name="clear", description="Clear.", action_type=Clear, annotations=hints
        )
        [event] = response_to_actions(answer("", call("clear", {"path": "/workspace/x"})), {"clear": tool})
        return confirm.asks(event, default_analyzer().assess(event).risk)

    assert asks(annotations, policy_of(policy))
    assert asks(annotations, ConfirmRisky(confirm_unknown=False))
    assert asks(annotations, policy_of(policy)) >= asks(None, policy_of(policy))


# --- prompts --------------------------------------------------------------------------------------


FACTS = {
    "execute_bash": "`command` `is_input` `timeout` `reset` exit background 2>&1 C-c C-d C-z 3600 persistent 30 "
    "120 `kill 30000",
    "file_editor": "view create str_replace insert undo_edit `view_range` `file_text` `old_str` `new_str` "
    "`insert_line` image `encoding` directory once exactly 30000 64 AFTER",
    "execute_ipython_cell": "`code` `timeout` `reset` %pip !command %cd matplotlib input() variables import "
    "3600 traceback background|child available",
    "browser": "`code` goto go_back go_forward noop scroll fill select_option click dblclick hover press focus clear "
    "drag_and_drop upload_file new_tab tab_focus tab_close on_dialog screenshot localhost pdf webpage data",
    "grep": "`pattern` `path` `include` `ignore_case` `context` `mode` `files` `counts` `hidden` `ignored` `max_files` "
    ".gitignore lookaround CRLF newest binary",
}
"""What a model must hear of a tool to use all of it."""


@pytest.mark.parametrize(
    "model", ["openai/gpt-4o", "azure/my-o1", "o3-mini", "proxy/company-gpt-4.1", "openai/o4-mini"]
)
def test_short_description_is_written_and_complete(model: str) -> None:
    llm = FakeModel()
    llm.name = model
    for name, tool in Agent(llm, enable_browsing=True).initialize(state(delegate=print, ask_model=print)).items():
        assert len(tool.description) <= 1024, name
        said = tool.description.lower()
        missing = [fact for fact in FACTS.get(name, "").lower().split() if not any(f in said for f in fact.split("|"))]
        assert missing == [], name
        assert "return" in said or name == "finish"


def test_only_models_that_need_them_get_short_descriptions() -> None:
    llm = FakeModel()
    llm.name = "anthropic/claude-sonnet-4-5"
    long = Agent(llm, enable_browsing=True).initialize(state(delegate=print))
    assert {name for name, tool in long.items() if len(tool.description) > 1024} == set(FACTS)
    assert all(tool.short_description for name, tool in long.items() if name in FACTS)


def test_prompt_and_descriptions_hold_the_facts_of_the_documents() -> None:
    tools = Agent(enable_browsing=True).initialize(state(delegate=print))
    prompt = render_system_prompt(tool_names=tools, runtime=None)
    for text in (prompt, tools["execute_ipython_cell"].description):
        assert "define variables and import packages before you use them" in text.replace("\n", " ").lower()
        assert "available outside of" in text
    for text in (prompt, tools["browser"].description):
        assert "only when you need to interact" in text
        assert "pdf" in text
    assert "IPython" not in render_system_prompt(tool_names=["think"], runtime=None)


# --- the web ---------------------------------------------------------------------------------------------


def test_delegation_to_the_browsing_agent_works_after_a_plain_install(
    tmp_path: Path, sandbox: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.tools.web_read.page.CONVERTER", "no_such_library")
    monkeypatch.setattr("ohsandbox.tools.delegate_to_browsing_agent.find_browser", lambda _: False)
    model = FakeModel(
        answer("", call("delegate_to_browsing_agent", {"task": "Read it."})),
        answer("", call("finish", {"message": "It says hello."})),
    )
    with Conversation(Agent(model, enable_browsing=True), sandbox, tmp_path) as conversation:
        conversation.run("Go.", timeout_s=30)
        [result] = results_of(conversation)
    assert result["status"] == "ok"
    assert result["output"].startswith("It says hello.\n")
    assert "no browser" in result["output"]
    assert model.seen[1][-1]["content"] == "Read it."
