"""The shipped script, played in a shell that remembers: what it expects is what happens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.llm import ChatModel, LLMConfig, ScriptError, open_model
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Act = Callable[[str, dict[str, str]], str]

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Show me what you can do."}]


@pytest.fixture
def act() -> Iterator[Act]:
    with FakeRuntime() as runtime:

        def call(name: str, arguments: dict[str, str]) -> str:
            observation = runtime.execute_tool(name, arguments)
            assert not observation.is_error
            return observation.visualize.plain

        yield call


def play(model: ChatModel, act: Act) -> tuple[list[dict[str, Any]], str]:
    messages = list(ASK)
    while True:
        message = model.send(messages).message
        messages.append(message.to_llm_dict())
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "finish":
                return messages, arguments["message"]
            result = json.dumps({"status": "ok", "output": act(call.function.name, arguments)})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def test_the_demo_fails_fixes_and_finishes(act: Act) -> None:
    messages, said = play(open_model(LLMConfig(model="scripted:demo")), act)
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert sum("FAILED (failures=1)" in result for result in results) == 1
    assert sum("Ran 4 tests" in result and "\\nOK\\n" in result for result in results) == 1
    assert "busy: [(9, 12), (13, 17)]\\nhours: 7" in results[-1]
    assert "four tests" in said


def test_the_demo_does_not_pretend_without_a_sandbox() -> None:
    with pytest.raises(ScriptError, match=r"the script expected"):
        play(open_model(LLMConfig(model="scripted:demo")), lambda *_: "sh: not found")


def test_every_turn_of_the_demo_says_a_thought(act: Act) -> None:
    messages, _ = play(open_model(LLMConfig(model="scripted:demo")), act)
    assert all(message["content"] for message in messages if message["role"] == "assistant")
