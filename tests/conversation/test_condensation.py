from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent, messages_from_events
from ohsandbox.agent.condenser import Condenser, SummarizingCondenser, WindowCondenser
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.run.limits import RunLimits
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.llm import ScriptedLLM, Usage
from ohsandbox.llm.errors import ContextWindowError
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.events import SDKEvent

TOO_LONG = ContextWindowError("too long")


def turns(count: int, **fields: Any) -> list[Any]:
    """So many answers that each call the shell twice."""
    pair = [call("execute_bash", {"command": "a"}), call("execute_bash", {"command": "b"})]
    return [answer(f"step {number}", *pair, **fields) for number in range(count)]


def run(tmp_path: Path, model: FakeModel, condenser: Condenser | None = None, **switches: Any) -> Conversation:
    count = iter(range(1000))
    runtime = RecordingRuntime(lambda command: f"{command} {next(count)}")
    conversation = Conversation(Agent(model, condenser=condenser, **switches), runtime, tmp_path)
    conversation.run("Build the thing.", timeout_s=60)
    conversation.close()
    return conversation


def is_whole(messages: list[dict[str, Any]]) -> bool:
    """Every call has its result right behind it, and no result is without its call."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not open_ids or message["tool_call_id"] != open_ids.pop(0):
                return False
        elif open_ids:
            return False
        open_ids += [each["id"] for each in message.get("tool_calls", [])]
    return not open_ids


def test_conversation_that_is_too_long_is_summarised_once_and_sent_again(tmp_path: Path) -> None:
    model = FakeModel(*turns(6), TOO_LONG, answer("Notes."), answer("Done."))
    conversation = run(tmp_path, model)
    assert conversation.status() is Status.IDLE
    [data] = data_of(conversation.events(), "condensation")
    assert (data["reason"], data["keep_first"], data["summary"]) == ("over the limit", 1, "Notes.")
    question = model.seen[7]
    assert question[0]["role"] == "system"
    assert "step 0" in question[1]["content"]
    sent = model.seen[-1]
    assert is_whole(sent[1:])
    assert sent[1]["content"] == "Build the thing."
    assert sent[2]["content"].endswith("no longer shown.]\nNotes.")
    assert len(sent) < len(model.seen[6])
    assert messages_from_events(conversation.events())[:-1] == sent


def test_what_stays_too_long_ends_the_run_with_the_providers_words(tmp_path: Path) -> None:
    conversation = run(tmp_path, FakeModel(*turns(6), TOO_LONG, answer("Notes."), TOO_LONG))
    assert conversation.status() is Status.ERROR
    assert conversation.error is TOO_LONG
    assert len(data_of(conversation.events(), "condensation")) == 1


def test_without_a_condenser_too_long_is_the_end(tmp_path: Path) -> None:
    conversation = run(tmp_path, FakeModel(*turns(6), TOO_LONG), WindowCondenser(keep_first=20))
    assert conversation.error is TOO_LONG


def test_near_the_limit_it_is_condensed_before_the_next_request(tmp_path: Path) -> None:
    full = Usage(prompt_tokens=850, completion_tokens=1)
    model = FakeModel(*turns(5), *turns(1, usage=full), *turns(2))
    model.context_tokens = 1000
    conversation = run(tmp_path, model, WindowCondenser(keep_last=4))
    [data] = data_of(conversation.events(), "condensation")
    assert data["reason"] == "near the limit"
    assert all(is_whole(messages[1:]) for messages in model.seen)


def test_model_may_ask_for_it(tmp_path: Path) -> None:
    model = FakeModel(*turns(3), answer("", call("request_condensation")), answer("Done."))
    conversation = run(tmp_path, model, WindowCondenser(), enable_condensation_request=True)
    assert [data["reason"] for data in data_of(conversation.events(), "condensation")] == ["requested"]


def test_request_that_nothing_can_answer_is_asked_for_once(tmp_path: Path) -> None:
    model = FakeModel(answer("", call("request_condensation")), *turns(2), answer("Done."))
    conversation = run(tmp_path, model, WindowCondenser(keep_first=20), enable_condensation_request=True)
    assert conversation.status() is Status.IDLE
    assert data_of(conversation.events(), "condensation") == []


def test_condensed_conversation_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    model = FakeModel(*turns(6), TOO_LONG, answer("Notes."), answer("Done."))
    first = run(tmp_path, model)
    again = FakeModel(answer("Hello."))
    with Conversation(Agent(again), RecordingRuntime(), tmp_path, conversation_id=first.id) as second:
        second.run("And?", timeout_s=60)
    assert again.seen[0][: len(model.seen[-1])] == model.seen[-1]


@pytest.mark.parametrize("condenser", [WindowCondenser(keep_last=keep) for keep in range(12)])
def test_no_cut_parts_a_call_from_its_result(condenser: WindowCondenser) -> None:
    messages = [{"role": "user", "content": "go"}]
    for number in range(5):
        calls = [{"id": f"{number}{letter}", "function": {"name": "x", "arguments": "{}"}} for letter in "ab"]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})  # type: ignore[dict-item]
        messages += [{"role": "tool", "tool_call_id": each["id"], "content": "{}"} for each in calls]  # type: ignore[dict-item]
        messages.append({"role": "user", "content": [{"type": "text", "text": "[Images]"}]})  # type: ignore[dict-item]
    what = condenser.condense(messages, lambda prompt, *, system="": prompt + system)
    assert what is not None
    rest = messages[what.keep_first + what.dropped :]
    assert is_whole([message for message in rest if isinstance(message["content"], str)])
    assert not rest or rest[0]["role"] == "assistant"


def test_nothing_is_dropped_from_a_conversation_that_has_hardly_begun() -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "yes"}]
    assert SummarizingCondenser().condense(messages, lambda prompt, *, system="": prompt + system) is None


@pytest.mark.slow
def test_memory_of_a_condensed_conversation_does_not_grow_with_its_log(tmp_path: Path) -> None:
    # the model answers by how much it is shown: condensed, it begins again in the middle, until the run's limit
    command = {"name": "execute_bash", "arguments": {"command": "make"}}
    steps = [{"tool_calls": [command]}] * 49 + [{"tool_calls": [{"name": "request_condensation"}]}]
    agent = Agent(ScriptedLLM(steps), condenser=WindowCondenser(), enable_condensation_request=True)
    count, objects = iter(range(1000)), []

    def note_objects(event: SDKEvent) -> None:
        if event.type == "condensation":
            gc.collect()
            objects.append(len(gc.get_objects()))

    limits = RunLimits(max_iterations=300)
    runtime = RecordingRuntime(lambda _: str(next(count)))
    with Conversation(agent, runtime, tmp_path, limits=limits) as conversation:
        conversation.register_callback(note_objects)
        conversation.run("Build the thing.")
    # some three objects an event stayed otherwise: messages, calls and their functions
    assert len(objects) > 7
    assert objects[-1] - objects[1] < 200, objects
