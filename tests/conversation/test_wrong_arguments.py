"""Wrong arguments are told on entry: name, value, what is expected, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import Agent, Conversation, RunLimits, Settings, UsageError, register_tool
from ohsandbox.tool import Tool, is_registered, unregister_tool
from ohsandbox.tools.think import make_think_tool
from tests.fakes import FakeModel, RecordingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def wrong(value: Any) -> Any:
    """Past the type checker, as a user without one has it."""
    return value


CASES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: Conversation(wrong(Settings(model="m"))),
        r"agent=... is of type Settings; expected is Agent.*settings=",
    ),
    (lambda: Conversation(runtime=wrong("docker")), "runtime='docker' is of type str; expected is Runtime"),
    (
        lambda: Conversation(settings=wrong({"model": "m"})),
        r"settings=\.\.\. is of type dict; expected is Settings",
    ),
    (lambda: Conversation(limits=wrong(5)), "limits=5 is of type int; expected is RunLimits"),
    (lambda: Agent(wrong("openai/x")), r"llm='openai/x' is of type str.*open_model\(LLMConfig\(model='openai/x'\)\)"),
    (lambda: Agent(wrong(RunLimits())), "is of type RunLimits; expected is a model"),
    (lambda: Agent(enable_browsng=True), "Did you mean 'enable_browsing'"),
    (lambda: Settings(**wrong({"modle": "x"})), r"Settings\(...\): unknown key 'modle'.*Did you mean 'model'\?"),
    (lambda: Settings(max_iterations=0), "Settings.*key 'max_iterations' is wrong"),
    (lambda: register_tool("execute_bash", make_think_tool()), "'execute_bash' is built in.*replace=True"),
]


@pytest.mark.parametrize(("made", "message"), CASES)
def test_wrong_argument_is_told_in_one_line(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        made()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [None, b"hi", 5])
def test_message_that_is_no_text_is_refused_before_anything_is_stored(text: Any, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path)
    with pytest.raises(UsageError, match=f"text={text!r} is of type {type(text).__name__}; expected is str"):
        conversation.run(text)
    assert not conversation.directory.exists()


@pytest.mark.parametrize("entry", ["execute_bsh", Tool(name="execute_bsh")])
def test_unknown_tool_is_told_at_the_start_with_the_one_that_was_meant(entry: Any, tmp_path: Path) -> None:
    conversation = Conversation(Agent(FakeModel(), tools=[entry]), RecordingRuntime(), tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'execute_bash'"):
        conversation.start()


def test_built_in_tool_is_replaced_by_who_says_so() -> None:
    tool = make_think_tool()
    register_tool("think", tool, replace=True)
    assert is_registered("think")
    register_tool("of my own", tool)
    register_tool("of my own", tool)
    unregister_tool("of my own")
