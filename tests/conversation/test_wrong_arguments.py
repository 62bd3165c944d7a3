"""Wrong arguments are told on entry: name, value, what is expected, in one line, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import ohsandbox
from ohsandbox import Agent, Conversation, RunLimits, Settings, UsageError, register_tool
from ohsandbox.compat import CodeActAgent
from ohsandbox.content import OutputLimits
from ohsandbox.tool import Tool, ToolRegistry, is_registered, unregister_tool
from ohsandbox.tools.think import make_think_tool
from tests.fakes import FakeModel, RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X: Any = ohsandbox
"""Past the type checker, as a user without one has it."""


def wrong(value: Any) -> Any:
    return value


def undescribed() -> None:
    pass  # without a docstring, as the test below needs it


# fmt: off
CASES: list[tuple[Callable[[], Any], str]] = [
    # what configures: pydantic's own words in one line
    (X.LLMConfig, r"LLMConfig\(...\): key 'model' is missing"),
    (lambda: X.LLMConfig(modle="m"), r"LLMConfig\(...\): unknown key 'modle'.*Did you mean 'model'\?"),
    (lambda: X.LLMConfig(model="m", temperature=5), "key 'temperature' is wrong: 5. Give a number less than"),
    (lambda: X.LLMConfig(model="m", reasoning_effort="hi"), "'hi'. Give 'low', 'medium'"),
    (lambda: X.RunLimits(max_iteration=1), r"RunLimits\(...\): unknown key.*Did you mean 'max_iterations'\?"),
    (lambda: X.RunLimits(max_iterations=0), "key 'max_iterations' is wrong: 0. Give a number greater than 0"),
    (lambda: X.SandboxLimits(memory=5), r"SandboxLimits\(...\): unknown key.*Did you mean 'memory_bytes'\?"),
    (lambda: X.SandboxLimits(memory_bytes=2**26, shm_bytes=2**26), r"SandboxLimits\(...\): shm_bytes is over half"),
    (lambda: X.Tool(5), r"Tool\(...\): key 'name' is wrong: 5. Give a string"),
    (lambda: X.Tool("a", parms={}), r"Tool\(...\): unknown key 'parms'.*Did you mean 'params'\?"),
    (lambda: X.ToolFlags(enable_browsng=True), r"Did you mean 'enable_browsing'\?"),
    (lambda: X.ToolAnnotations(readOnly=True), r"Did you mean 'readOnlyHint'\?"),
    (lambda: OutputLimits(**wrong({"max_char": 1})), r"Did you mean 'max_chars'\?"),
    (lambda: Settings(**wrong({"modle": "x"})), r"Settings\(...\): unknown key 'modle'.*Did you mean 'model'\?"),
    (lambda: Settings(max_iterations=0), "Settings.*key 'max_iterations' is wrong"),
    (lambda: X.Settings(tools={"enable_browsng": True}), r"unknown key 'tools.enable_browsng'.*Did you mean"),
    (lambda: Settings(model="m", temperature=3).llm_config(), r"Settings\(...\): key 'temperature' is wrong: 3"),
    # conversations
    (lambda: Conversation(wrong(Settings(model="m"))), r"agent=... is of type Settings; expected is Agent.*settings="),
    (lambda: Conversation(runtime=wrong("docker")), "runtime='docker' is of type str; expected is Runtime"),
    (lambda: X.Conversation(settings={"model": "m"}), r"settings=\.\.\. is of type dict; expected is Settings"),
    (lambda: Conversation(limits=wrong(5)), "limits=5 is of type int; expected is RunLimits"),
    (lambda: Conversation(tool_choice="any"), "Invalid tool_choice 'any'. Use one of 'auto', 'required', 'none'"),
    (lambda: X.Conversation(checkpoints="no"), "checkpoints='no' is of type str; expected is bool"),
    (lambda: X.Conversation(confirm="risky"), "confirm='risky' is of type str.*a function.*confirmation='risky'"),
    (lambda: Conversation(confirmation="risk"), r"Unknown confirmation policy 'risk'.*Did you mean 'risky'\?"),
    (lambda: X.Conversation(confirmation=5), "confirmation=5 is of type int; expected is a ConfirmationPolicy"),
    (lambda: setattr(Conversation(), "confirmation", "risk"), "Unknown confirmation policy 'risk'"),
    (lambda: setattr(Conversation(), "limits", 5), "limits=5 is of type int; expected is RunLimits"),
    (lambda: X.Conversation(user_id=5), "user_id=5 is of type int; expected is str"),
    (lambda: X.Conversation(conversation_id=5), "Conversation id 5 is not allowed"),
    (lambda: X.Conversation(persist_dir=5), "Invalid persist_dir 5. Give a string, or a path object"),
    (lambda: X.Conversation.autoresume(persist_dir=5), "Invalid persist_dir 5"),
    (lambda: X.Conversation(metadata_store=5), "metadata_store=5 is of type int; expected is a ConversationStore"),
    (lambda: X.Conversation(security_analyzer=5), "expected is a SecurityAnalyzer"),
    (lambda: X.FileConversationStore(5), "Invalid root 5"),
    # agents, models, tools
    (lambda: Agent(wrong("openai/x")), r"llm='openai/x' is of type str.*open_model\(LLMConfig\(model='openai/x'\)\)"),
    (lambda: Agent(wrong(RunLimits())), "is of type RunLimits; expected is a model"),
    (lambda: Agent(enable_browsng=True), "Did you mean 'enable_browsing'"),
    (lambda: X.ToolFlags().switched(on=("browsng",)), "Did you mean 'browsing'"),
    (lambda: X.Agent(enable_browsing="yes"), "enable_browsing='yes' is of type str; expected is bool"),
    (lambda: X.Agent(condenser="x"), "condenser='x' is of type str; expected is a Condenser"),
    (lambda: Agent(microagents="x"), "microagents='x' is of type str; expected is a list of str"),
    (lambda: X.Agent(microagents=[5]), r"microagents\[0\]=5 is of type int; expected is str"),
    (lambda: Agent(system_prompt_extensions="x"), "system_prompt_extensions='x' is of type str; expected is a list"),
    (lambda: Agent(tools="execute_bash"), "tools='execute_bash' is of type str; expected is a list of tools"),
    (lambda: CodeActAgent(wrong("openai/x")), "config='openai/x' is of type str; expected is ToolFlags"),
    (lambda: X.LLM("openai/x"), r"config='openai/x' is of type str.*LLMConfig\(model='openai/x'\)"),
    (lambda: X.open_model(None), "config=None is of type NoneType; expected is LLMConfig"),
    (lambda: X.ScriptedLLM("demo"), r"script='demo' is of type str.*ScriptedLLM.load\(path\)"),
    (lambda: X.ReplayLLM("x.jsonl"), r"answers='x.jsonl' is of type str.*ReplayLLM.load\(path\)"),
    (lambda: register_tool("execute_bash", make_think_tool()), "'execute_bash' is built in.*replace=True"),
    (lambda: X.register_tool(5, make_think_tool()), "name=5 is of type int; expected is str"),
    (lambda: register_tool("undescribed", undescribed), "Function 'undescribed' has no docstring"),
    (lambda: X.ToolDefinition(name=5, description="d", action_type=X.Action), "name=5 is of type int"),
    (lambda: X.ToolDefinition(name="t", description="d", action_type=dict), "Invalid action_type <class 'dict'>"),
    (lambda: X.ToolDefinition(name="t", description="d", action_type=X.Action, executor=print), "is ToolExecutor"),
    (lambda: X.DockerRuntime(build=X.Build(".", args="A=1")), r"Build\(args=...\)='A=1' is of type str"),
    (lambda: X.CLIRuntime(5), "Invalid workdir 5"),
    (lambda: X.CLIRuntime(bubblewrap="x"), "bubblewrap='x' is of type str; expected is bool"),
    (lambda: X.ReplayLLM.load(5), "Invalid path 5"),
    (lambda: X.Settings.load(5), "Invalid path 5"),
    (lambda: X.Conversation.autoresume(5), "conversation_id=5 is of type int"),
    (lambda: X.Conversation().register_callback(5), "Invalid callback 5. Give a function"),
    (lambda: X.Conversation().fork("x"), "at='x' is of type str; expected is int"),
    (lambda: setattr(Conversation(), "runtime", "x"), "runtime='x' is of type str; expected is Runtime"),
    (lambda: register_tool("partial", wrong(print)), "'partial' is a callable without a parameter conv_state"),
]
# fmt: on


@pytest.mark.parametrize(("made", "message"), CASES)
def test_wrong_argument_is_told_in_one_line(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        made()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: X.DockerRuntime(netwrk="open"), r"DockerRuntime\(\) got .* 'netwrk'. Did you mean 'network'\?"),
        (lambda: X.CLIRuntime(bublewrap=True), r"CLIRuntime\(\) got .* Did you mean 'bubblewrap'\?"),
        (lambda: X.Conversation(runtme=None), r"Conversation\(\) got .* Did you mean 'runtime'\?"),
        (lambda: X.Agent(condensr=None), r"Agent\(\) got .* 'condensr'. Did you mean 'condenser'\?"),
        (lambda: X.LLM(X.LLMConfig(model="m"), clok=1), r"LLM\(\) got .* Did you mean 'clock'\?"),
        (lambda: X.find_sandbox(label={}), r"find_sandbox\(\) got .* Did you mean 'labels'\?"),
        (lambda: X.LLMConfig("m"), r"LLMConfig\(...\) takes its values by name: give model=\.\.\."),
    ],
)
def test_wrong_name_of_an_argument_is_a_type_error_with_the_one_that_was_meant(
    made: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        made()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "made",
    [
        lambda secret: X.LLMConfig(model="m", api_key=[secret]),
        lambda _: X.LLMConfig(model="m", api_key=271828),
        lambda secret: X.LLMConfig(model="m", temperature=secret),
        lambda secret: X.LLMConfig(model="m", extra_body={"key": secret}, temperature=9),
        lambda secret: X.LLMConfig(model="m", api_kye=secret),
        lambda _: X.Settings(secrets={"A": 271828}),
        lambda secret: X.Settings(secrets={"A": secret}),
        lambda secret: X.Settings(api_key=secret, mcpServers=secret),
        lambda secret: X.Tool("t", params=secret),
        lambda secret: X.Conversation(secrets={"A": secret}),
        lambda secret: X.Conversation(secrets=secret),
        lambda secret: X.Conversation(settings={"api_key": secret}),
        lambda secret: X.Agent({"api_key": secret}),
    ],
)
def test_no_message_shows_what_may_be_a_key_or_a_password(made: Callable[[str], Any]) -> None:
    with pytest.raises(UsageError) as caught:
        made("hunter2-271828")
    assert "271828" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, b"hi", 5])
def test_message_that_is_no_text_is_refused_before_anything_is_stored(text: Any, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path)
    with pytest.raises(UsageError, match=f"text={text!r} is of type {type(text).__name__}; expected is str"):
        conversation.run(text)
    assert not conversation.directory.exists()


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_blank_message_is_refused_before_anything_is_stored(text: str, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path)
    with pytest.raises(UsageError, match="is blank"):
        conversation.run(text)
    assert not conversation.directory.exists()


@pytest.mark.parametrize("timeout_s", [-5, "5", True])
def test_wrong_timeout_is_refused_before_anything_is_stored(timeout_s: Any, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path)
    for call in (conversation.wait, conversation.stop, lambda timeout_s: conversation.run("hi", timeout_s)):
        with pytest.raises(UsageError, match=f"Invalid timeout_s {timeout_s!r}. Give a number of seconds"):
            call(timeout_s)
    assert not conversation.directory.exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.approve("x"), "scope='x' is of type str; expected is ExactCall or AnyCall or EditsUnder"),
        (lambda it: it.confirm("abc"), "tool_call_ids='abc' is of type str; expected is a list of str"),
    ],
)
def test_wrong_answer_for_a_call_is_refused(call: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path)
    with conversation, pytest.raises(UsageError, match=message):
        call(conversation)


def test_wrong_form_of_a_configuration_of_servers_is_refused_by_the_agent() -> None:
    with pytest.raises(UsageError, match="Invalid mcp_config 5"):
        Agent(FakeModel(), mcp_config=wrong(5))


@pytest.mark.parametrize("entry", ["execute_bsh", Tool(name="execute_bsh")])
def test_unknown_tool_is_told_at_once_with_the_one_that_was_meant(entry: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'execute_bash'"):
        Conversation(Agent(FakeModel(), tools=[entry]), RecordingRuntime(), tmp_path)


def test_built_in_tool_is_replaced_by_who_says_so() -> None:
    tool = make_think_tool()
    register_tool("think", tool, replace=True)
    assert is_registered("think")
    register_tool("of my own", tool)
    register_tool("of my own", tool)
    unregister_tool("of my own")


def test_legal_forms_stay_legal(tmp_path: Path) -> None:
    Conversation(
        tool_choice="required", confirmation="risky", confirm=print, persist_dir=str(tmp_path), checkpoints=False
    )
    Conversation(tool_choice=wrong({"type": "function", "function": {"name": "finish"}}), persist_dir=tmp_path)
    Agent(grep=False)
    Agent(microagents=("a", "b"), tools=())
    ToolRegistry().register("t", make_think_tool())
    assert X.LLMConfig(model="m", temperature="0.5").temperature == 0.5
