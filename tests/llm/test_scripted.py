from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.llm import ChatModel, ChatResponse, DeltaEvent, LLMConfig, LLMEvent, ScriptedLLM, ScriptError, open_model

if TYPE_CHECKING:
    from pathlib import Path

ASK: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
LOOK = {"content": "I look.", "tool_calls": [{"name": "execute_bash", "arguments": {"command": "ls"}}]}


def after(response: ChatResponse, result: str) -> list[dict[str, Any]]:
    call = response.message.tool_calls[0]
    return [*ASK, response.message.to_llm_dict(), {"role": "tool", "tool_call_id": call.id, "content": result}]


def load(tmp_path: Path, script: object) -> ChatModel:
    path = tmp_path / "script.json"
    path.write_text(script if isinstance(script, str) else json.dumps(script))
    return open_model(LLMConfig(model=f"scripted:{path}"))


def test_turns_are_answered_one_after_another(tmp_path: Path) -> None:
    model = load(tmp_path, {"turns": [LOOK, {"content": "Done."}]})
    first = model.send(ASK)
    assert json.loads(first.message.tool_calls[0].function.arguments) == {"command": "ls"}
    assert model.send(after(first, "a.txt")).message.content == "Done."


def test_the_text_is_told(tmp_path: Path) -> None:
    seen: list[LLMEvent] = []
    load(tmp_path, [LOOK]).send(ASK, on_event=seen.append)
    assert seen == [DeltaEvent(text="I look.")]


def test_ids_differ_between_turns(tmp_path: Path) -> None:
    model = load(tmp_path, [LOOK, LOOK])
    first = model.send(ASK)
    second = model.send(after(first, "x"))
    assert first.message.tool_calls[0].id != second.message.tool_calls[0].id


@pytest.mark.parametrize("expectation", [{"expect": "OK"}, {"expect_regex": r"^Ran \d+ tests"}])
def test_a_script_cannot_pretend(tmp_path: Path, expectation: dict[str, str]) -> None:
    model = load(tmp_path, [LOOK, {"content": "Green!"} | expectation])
    first = model.send(ASK)
    with pytest.raises(ScriptError, match=r"the script expected .* 'all is FAILED'"):
        model.send(after(first, "all is\nFAILED"))
    assert model.send(after(first, "\nRan 4 tests\nOK")).message.content == "Green!"


def test_a_script_that_is_over_says_so(tmp_path: Path) -> None:
    model = load(tmp_path, [LOOK])
    with pytest.raises(ScriptError, match=r"over after 1 turns"):
        model.send(after(model.send(ASK), "x"))


def test_json_lines_and_raw_arguments_are_read(tmp_path: Path) -> None:
    broken = {"tool_calls": [{"name": "x", "arguments": '{"a":'}]}
    model = load(tmp_path, f"{json.dumps(LOOK)}\n\n{json.dumps(broken)}\n")
    second = model.send(after(model.send(ASK), "x"))
    assert second.message.tool_calls[0].function.arguments == '{"a":'


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "neither JSON nor JSON Lines"),
        ("{", "neither JSON nor JSON Lines"),
        ('{"turns": []}', "Invalid script .* at turns"),
        ('{"turns": [{"contents": "x"}]}', "Invalid script .* at turns.0.contents"),
        ('[{"expect_regex": "("}]', "no regular expression"),
        ("3", "Invalid script .* at its top"),
    ],
)
def test_a_malformed_script_is_named_with_the_place(tmp_path: Path, script: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(tmp_path, script)


def test_a_missing_script_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Shipped scripts: demo"):
        ScriptedLLM.load(tmp_path / "none.json")


def test_the_demo_says_what_it_is() -> None:
    model = open_model(LLMConfig(model="scripted:demo"))
    assert model.name == "scripted:demo"
    assert "no model is asked" in str(model.note)
