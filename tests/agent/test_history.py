from __future__ import annotations

import json
from typing import Any

import pytest

from ohsandbox import events
from ohsandbox.agent import CondensationAction, History, messages_from_events
from ohsandbox.events import EventBody, ToolResult
from tests.fakes import stamp


def calls(tool_call_id: str, index: int = 0, response: str = "r", **fields: Any) -> EventBody:
    return events.tool_call(
        tool_call_id=tool_call_id,
        arguments="{}",
        response_id=response,
        call_index=index,
        total_calls=2,
        **{"name": "think", **fields},
    )


def result(tool_call_id: str, text: str = "ok") -> EventBody:
    return events.tool_result(tool_call_id=tool_call_id, name="think", result=ToolResult.ok(text))


def shape(messages: list[dict[str, Any]]) -> list[str]:
    return [
        message["role"][0]
        + "".join(call["id"] for call in message.get("tool_calls", []))
        + message.get("tool_call_id", "")
        for message in messages
    ]


def test_no_events_are_no_messages() -> None:
    assert messages_from_events([]) == []


def test_system_message_stands_first_and_the_last_one_counts() -> None:
    log = stamp(
        events.user_message("u"), events.system_message("one", tools=[]), events.system_message("two", tools=[])
    )
    assert messages_from_events(log) == [{"role": "system", "content": "two"}, {"role": "user", "content": "u"}]


def test_calls_of_one_response_become_one_message_before_their_results() -> None:
    log = stamp(calls("1", thought="t"), result("1"), calls("2", 1), result("2"))
    messages = messages_from_events(log)
    assert shape(messages) == ["a12", "t1", "t2"]
    assert messages[0]["content"] == "t"


def test_first_call_of_a_response_begins_a_message_whatever_its_id() -> None:
    assert shape(messages_from_events(stamp(calls("1"), result("1"), calls("2"), result("2")))) == [
        "a1",
        "t1",
        "a2",
        "t2",
    ]


def test_what_the_user_says_between_calls_comes_after_their_results() -> None:
    log = stamp(calls("1"), events.user_message("u"), result("1"), calls("2", 1), events.user_message("v"), result("2"))
    assert shape(messages_from_events(log)) == ["a12", "t1", "t2", "u", "u"]


def test_call_without_result_is_answered_as_interrupted() -> None:
    log = stamp(calls("1"), result("1"), calls("2", 1), events.user_message("u"))
    messages = messages_from_events(log)
    assert shape(messages) == ["a12", "t1", "t2", "u"]
    assert "outcome is unknown" in json.loads(messages[2]["content"])["error"]


def test_late_or_second_or_foreign_result_is_left_out() -> None:
    log = stamp(
        calls("1"), result("1"), result("1", "again"), result("x"), events.assistant_message("a", response_id="s")
    )
    assert shape(messages_from_events(log)) == ["a1", "t1", "a"]


def test_result_is_json_of_status_and_output() -> None:
    [_, message] = messages_from_events(stamp(calls("1"), result("1", "é\n")))
    assert message == {"role": "tool", "tool_call_id": "1", "content": '{"status": "ok", "output": "é\\n"}'}


def test_status_errors_notices_and_retries_are_not_for_the_model() -> None:
    log = stamp(
        events.status_update(events.ConversationStatus.RUNNING),
        events.error(code="X", message="m"),
        events.notice(code="X", message="m"),
        events.retry(code="X", message="m"),
    )
    assert messages_from_events(log) == []


def test_one_at_a_time_gives_the_same_as_all_at_once_after_every_step() -> None:
    log = stamp(
        events.user_message("u"), calls("1"), result("1"), events.user_message("v"), calls("2", 1), result("2"),
        events.assistant_message("a", response_id="s"), events.user_message("w"), calls("3"), result("3"),
    )  # fmt: skip
    history = History()
    for position, event in enumerate(log, 1):
        history.add(event)
        if position in {1, 6, 7, 8, 10}:
            assert history.messages() == messages_from_events(log[:position])


def test_model_has_the_next_word_after_user_and_tool_only() -> None:
    assert not History().needs_answer
    assert History.from_events(stamp(events.user_message("u"))).needs_answer
    assert History.from_events(stamp(calls("1"), result("1"))).needs_answer
    assert History.from_events(stamp(calls("1"))).needs_answer
    assert not History.from_events(stamp(events.assistant_message("a", response_id="r"))).needs_answer


@pytest.mark.parametrize(
    ("name", "stored"), [("ask_human", {}), ("poll", {"hint": {"kind": "question"}})], ids=["older log", "by its hint"]
)
def test_user_has_the_next_word_after_a_question_until_they_speak(name: str, stored: dict[str, Any]) -> None:
    question = calls("1", name=name, **stored)
    asked = events.tool_result(tool_call_id="1", name=name, result=ToolResult.ok("asked"))
    failed = events.tool_result(tool_call_id="1", name=name, result=ToolResult.failed("no"))
    said = events.user_message("u")
    assert not History.from_events(stamp(question, asked)).needs_answer
    assert History.from_events(stamp(question, failed)).needs_answer
    assert History.from_events(stamp(question, asked, said)).needs_answer
    assert History.from_events(stamp(question, said, asked)).needs_answer
    assert History.from_events(stamp(question, asked, calls("2"))).needs_answer  # it went on without an answer


def test_condensation_is_an_action_on_the_messages_and_done_by_its_event() -> None:
    body = events.condensation(keep_first=1, dropped=2, summary="Notes.", reason="requested")
    log = [events.user_message(text) for text in "abcd"]
    action = CondensationAction.from_event(body.data)
    assert action == CondensationAction(keep_first=1, dropped=2, summary="Notes.")
    after = messages_from_events(stamp(*log, body))
    assert after == action.apply(messages_from_events(stamp(*log)))
    told = "[Of this conversation 2 older messages are no longer shown.]\nNotes."
    assert [message["content"] for message in after] == ["a", told, "d"]


def test_calls_that_were_allowed_are_pending_from_the_next_run_until_their_results() -> None:
    waiting = events.held(calls("1"), asks=True, risk="HIGH", why=[], only_reads=False)
    allowed = events.confirmation(tool_call_ids=["1"], approved=True, reason="", by="user")
    running = events.status_update(events.ConversationStatus.RUNNING)
    log = [waiting, allowed, running, result("1")]
    pending = [len(History.from_events(stamp(*log[:end])).pending_actions) for end in range(1, 5)]
    assert pending == [0, 0, 1, 0]


def test_list_given_out_is_not_the_one_kept() -> None:
    history = History.from_events(stamp(events.user_message("u")))
    history.messages().clear()
    assert len(history.messages()) == 1
