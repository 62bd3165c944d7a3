from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pydantic import ValidationError

from ohsandbox import events
from ohsandbox.events import SDKEvent, ToolResult, json_safe


def test_event_is_frozen_and_its_time_is_utc() -> None:
    ts = datetime(2026, 1, 2, 5, tzinfo=timezone(timedelta(hours=3)))
    event = SDKEvent(type="notice", ts=ts, conversation_id="c", data={})
    assert event.ts == datetime(2026, 1, 2, 2, tzinfo=UTC)
    assert event.ts.tzinfo is UTC
    with pytest.raises(ValidationError):
        event.seq = 3  # type: ignore[misc]


def test_event_without_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        SDKEvent(type="notice", ts=datetime(2026, 1, 2), conversation_id="c", data={})  # noqa: DTZ001 - the fault itself


def test_everything_becomes_plain_json() -> None:
    value = {1: float("nan"), "b": (float("inf"), {2}), "c": "\ud83d\ude00 \ud800", "d": Path("/x"), "e": b"x"}
    safe = json_safe(value)
    assert json.loads(json.dumps(safe, allow_nan=False)) == safe
    assert safe == {"1": "nan", "b": ["inf", [2]], "c": "\U0001f600 \ufffd", "d": "/x", "e": "b'x'"}


def test_nesting_without_end_is_cut() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    json.dumps(json_safe(deep))


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
    assert events.short_fields(fields) == {"exit_code": 1, "cwd": "/", "none": None}
