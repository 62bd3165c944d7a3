from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pydantic import ValidationError

from ohsandbox import events
from ohsandbox.events import (
    KNOWN_TYPES,
    ConversationStatus,
    SDKEvent,
    StatusUpdateEvent,
    ToolCallEvent,
    ToolResult,
    ToolResultEvent,
)
from ohsandbox.events.event import KINDS, json_safe, short_fields, unchecked
from ohsandbox.persistence import EventLog, read_events
from ohsandbox.persistence.blobs import MIN_BLOB_CHARS

CALL = events.tool_call(
    tool_call_id="1", name="ls", arguments='{"a":1}', response_id="r", call_index=0, total_calls=1, cost_usd=0.5
)


def test_event_is_frozen_and_its_time_is_utc() -> None:
    ts = datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=3)))
    event = SDKEvent(type="notice", ts=ts, conversation_id="c", data={"code": "c", "message": "m"})
    assert event.ts == datetime(2026, 1, 2, 2, tzinfo=UTC)
    assert event.ts.tzinfo is UTC
    with pytest.raises(ValidationError):
        event.seq = 3  # type: ignore[misc]


def test_event_without_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        SDKEvent(
            type="notice",
            ts=datetime(2026, 1, 2),  # noqa: DTZ001 - the fault itself
            conversation_id="c",
            data={"code": "c", "message": "m"},
        )


def test_everything_becomes_plain_json() -> None:
    value = {1: float("nan"), "b": (float("inf"), {2}), "c": "\ud83d\ude00 \ud800", "d": Path("/x"), "e": b"x"}
    safe = json_safe(value)
    assert json.loads(json.dumps(safe, allow_nan=False)) == safe
    assert safe == {"1": "nan", "b": ["inf", [2]], "c": "\U0001f600 \ufffd", "d": "/x", "e": "b'x'"}


def test_nesting_without_end_is_cut() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    text = json.dumps(json_safe(deep))
    assert text.strip("[]") == '"<list nested too deep>"'


def test_error_message_is_one_line() -> None:
    assert events.error(code="X", message="a\n  b\r\nc").data["message"] == "a b c"


def test_call_has_no_fields_that_say_nothing() -> None:
    body = events.tool_call(tool_call_id="1", name="n", arguments="{}", response_id="r", call_index=0, total_calls=1)
    assert set(body.data) == {"tool_call_id", "name", "arguments", "response_id", "call_index", "total_calls"}


def test_tool_result_is_status_output_error() -> None:
    body = events.tool_result(tool_call_id="1", name="n", result=ToolResult.failed("no"))
    assert body.data["result"] == {"status": "error", "output": None, "error": "no"}


def test_details_are_short_and_stand_nowhere_else() -> None:
    fields = {"exit_code": 1, "cwd": "/", "output": "x", "long": "x" * 300, "list": [1], "none": None}
    assert short_fields(fields) == {"exit_code": 1, "cwd": "/", "none": None}


# --- a class a kind -----------------------------------------------------------------------------------


def stored(directory: Path, *bodies: events.EventBody) -> list[str]:
    """The lines of a log of these events."""
    with EventLog(directory, conversation_id="c") as log:
        for body in bodies:
            log.append(body)
    return (directory / "sdk_events.jsonl").read_text().splitlines()


def test_every_known_type_has_a_class() -> None:
    assert set(KINDS) == KNOWN_TYPES


def test_a_line_of_the_log_becomes_the_event_of_its_kind(tmp_path: Path) -> None:
    result = events.tool_result(tool_call_id="1", name="ls", result=ToolResult.ok("x"), details={"exit_code": 0})
    lines = stored(tmp_path / "c", CALL, result, events.status_update(ConversationStatus.FINISHED))
    call, answer, status = map(SDKEvent.model_validate_json, lines)
    assert isinstance(call, ToolCallEvent)
    assert (call.data.name, call.data.cost_usd, call.data.thought, call.data["name"]) == ("ls", 0.5, None, "ls")
    assert isinstance(answer, ToolResultEvent)
    assert answer.data.result == ToolResult.ok("x")
    assert isinstance(status, StatusUpdateEvent)
    assert status.data.status is ConversationStatus.FINISHED
    assert [call, answer, status] == read_events(tmp_path / "c")


def test_every_way_to_make_an_event_makes_the_one_of_its_kind() -> None:
    fields = {"type": "tool_call", "ts": datetime.now(UTC), "conversation_id": "c", "data": CALL.data}
    made = SDKEvent(**fields)
    assert type(made) is type(SDKEvent.model_validate(fields)) is type(pickle.loads(pickle.dumps(made)))
    assert type(made) is type(copy.deepcopy(made)) is type(made.model_copy()) is ToolCallEvent
    assert SDKEvent.model_validate_json(made.model_dump_json()) == made
    assert json.loads(made.model_dump_json())["data"] == CALL.data == made.model_dump()["data"]


def test_data_of_a_known_kind_is_checked() -> None:
    line = {"type": "tool_call", "ts": "2026-01-02T00:00:00Z", "conversation_id": "c", "data": {"name": 1}}
    with pytest.raises(ValidationError, match=r"data\.tool_call_id"):
        SDKEvent.model_validate_json(json.dumps(line))


def test_an_event_of_a_newer_version_is_kept_as_it_is() -> None:
    line = {"type": "dream", "ts": "2026-01-02T00:00:00Z", "conversation_id": "c", "seq": 0, "data": {"a": [1]}}
    event = SDKEvent.model_validate_json(json.dumps(line))
    assert type(event) is SDKEvent
    assert json.loads(event.model_dump_json()) == line


def test_keys_of_a_newer_version_stay_in_the_data() -> None:
    event = unchecked("notice", ts=datetime.now(UTC), conversation_id="c", seq=0, data={"code": "c", "x": 1})
    assert event.data["x"] == 1
    with pytest.raises(AttributeError, match="has no 'message'"):
        _ = event.data.message  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="not changed"):
        event.data.code = "d"  # type: ignore[attr-defined]


def test_a_line_whose_long_text_lies_apart_is_an_event(tmp_path: Path) -> None:
    [line] = stored(tmp_path / "c", events.user_message("x" * (MIN_BLOB_CHARS + 1)))
    assert SDKEvent.model_validate_json(line).data == {"content": ""}
