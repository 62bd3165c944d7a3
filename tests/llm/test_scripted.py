from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.llm import (
    ChatMessage,
    ChatModel,
    ChatResponse,
    DeltaEvent,
    LLMConfig,
    LLMEvent,
    ReplayLLM,
    ScriptedLLM,
    ScriptError,
    open_model,
)
from ohsandbox.llm.scripted import answers_from_events

if TYPE_CHECKING:
    from collections.abc import Sequence
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
        ('[{"expect_regex": "("}]', "invalid regular expression"),
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


# --- a recorded conversation --------------------------------------------------------------------------


def call(name: str, arguments: str, response_id: str, thought: str = "", call_id: str = "call_1") -> dict[str, Any]:
    data = {"tool_call_id": call_id, "name": name, "arguments": arguments, "response_id": response_id, "total_calls": 1}
    return {"type": "tool_call", "data": data | ({"thought": thought} if thought else {})}


def said(content: str, response_id: str) -> dict[str, Any]:
    return {"type": "assistant_message", "data": {"content": content, "response_id": response_id}}


RECORDED = [
    {"type": "user_message", "data": {"content": "go"}},
    call("look", '{"a":', "r1", thought="I look."),
    {"type": "tool_result", "data": {"output": "x"}},
    call("look", "{}", "r2", call_id="call_2"),
    call("read", "{}", "r2", call_id="call_3"),
    said("Done.", "r3"),
]


def record(tmp_path: Path, events: Sequence[dict[str, Any]] = RECORDED, tail: str = "") -> Path:
    lines = [json.dumps({"ts": "2030", "conversation_id": "c"} | event) for event in events]
    (tmp_path / "sdk_events.jsonl").write_text("\n".join(lines) + "\n" + tail)
    return tmp_path


def replay(model: ChatModel) -> tuple[list[dict[str, Any]], list[ChatMessage]]:
    messages, answers = list(ASK), []
    for _ in range(3):
        answers.append(model.send(messages).message)
        messages.append(answers[-1].to_llm_dict())
    return messages, answers


@pytest.mark.parametrize("tail", ["", '{"type": "tool_ca'])
def test_a_recorded_conversation_is_answered_again(tmp_path: Path, tail: str) -> None:
    model = open_model(LLMConfig(model=f"replay:{record(tmp_path, tail=tail)}"))
    messages, (first, second, third) = replay(model)
    assert (first.content, first.tool_calls[0].function.arguments) == ("I look.", '{"a":')
    assert [each.function.name for each in second.tool_calls] == ["look", "read"]
    assert third.content == "Done."
    with pytest.raises(ScriptError, match=r"over after 3 answers"):
        model.send(messages)


def test_a_strict_replay_ends_where_the_conversation_differs(tmp_path: Path) -> None:
    model = ReplayLLM.load(record(tmp_path), strict=True)
    messages, _ = replay(model)
    changed = [*messages[:1], {"role": "assistant", "content": "Something else."}]
    with pytest.raises(ScriptError, match=r"differs .* at answer 1"):
        model.send(changed)


def test_what_the_model_sent_is_replayed_not_what_was_made_of_it() -> None:
    mended = call("execute_bash", "{}", "r1")
    mended["data"] |= {"raw_arguments": '{"command":', "raw_name": "terminal"}
    [answer] = answers_from_events([mended])
    assert answer["tool_calls"][0]["function"] == {"name": "terminal", "arguments": '{"command":'}


def test_answers_with_one_id_are_told_apart() -> None:
    first, second, third = (call("look", "{}", "same", call_id=f"call_{number}") for number in (1, 2, 3))
    for event, index in ((first, 0), (second, 1), (third, 0)):
        event["data"]["call_index"] = index
    answers = answers_from_events([first, second, third, said("Done.", "same")])
    assert [len(answer["tool_calls"]) for answer in answers] == [2, 1, 0]


def test_messages_can_be_replayed_without_a_file() -> None:
    model = ReplayLLM([{"role": "assistant", "content": "Hello."}])
    assert model.send(ASK).message.content == "Hello."
    assert "no model is asked" in model.note


def test_a_recording_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ReplayLLM.load(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="without an answer"):
        ReplayLLM.load(record(tmp_path, RECORDED[:1]))
    (tmp_path / "sdk_events.jsonl").write_text('{"type":\n{}\n')
    with pytest.raises(UsageError, match="line 1"):
        ReplayLLM.load(tmp_path)
