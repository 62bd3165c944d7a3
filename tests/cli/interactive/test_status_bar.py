"""The bottom line: what it counts, and what it leaves out where there is little room."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.cli.interactive.region import Region
from ohsandbox.cli.interactive.status_bar import StatusBar
from ohsandbox.conversation import Conversation
from ohsandbox.events import SDKEvent
from tests.fakes import FakeModel, RecordingRuntime, answer

if TYPE_CHECKING:
    from pathlib import Path


def event(kind: str, **data: Any) -> SDKEvent:
    return SDKEvent.model_construct(seq=0, conversation_id="c", type=kind, ts=datetime.now(UTC), data=data)


@pytest.fixture
def bar() -> StatusBar:
    bar = StatusBar()
    bar.model, bar.window, bar.place, bar.waits_for = "openai/gpt-5", 200_000, "ohsandbox-1", "your turn"
    return bar


def test_tokens_cost_context_and_steps_are_counted_once_a_response(bar: StatusBar) -> None:
    usage = {"prompt_tokens": 9000, "completion_tokens": 1000}
    bar.add(event("tool_call", response_id="a", usage=usage, cost_usd=0.02))
    bar.add(event("tool_call", response_id="a"))
    bar.add(event("assistant_message", response_id="b", usage=usage, cost_usd=0.01))
    line = bar.line(200)
    assert "20k tokens" in line
    assert "context 10k (5% of 200k)" in line
    assert "$0.0300" in line
    assert "step 2" in line


def test_a_conversation_that_is_resumed_is_counted_with_what_it_has_spent(tmp_path: Path, bar: StatusBar) -> None:
    model = FakeModel(answer("a", id="r1"), answer("b", id="r2"))
    with Conversation(Agent(model, []), RecordingRuntime(), tmp_path) as conversation:
        conversation.run("one")
        conversation.run("two")
        bar.open(conversation, "box")
    line = bar.line(200)
    assert "30 tokens" in line
    assert "$0.5000" in line
    assert "step 2" in line


def test_a_price_that_is_not_known_is_not_nothing(bar: StatusBar) -> None:
    bar.add(event("assistant_message", response_id="a", usage={"prompt_tokens": 5}, cost_usd=None))
    assert "price unknown" in bar.line(200)
    bar.add(event("assistant_message", response_id="b", usage={"prompt_tokens": 5}, cost_usd=0.5))
    assert "$0.5000+" in bar.line(200)


@pytest.mark.parametrize("columns", [10, 20, 39, 60, 79, 119, 249])
def test_it_never_is_longer_than_the_terminal_and_whom_it_waits_for_goes_last(bar: StatusBar, columns: int) -> None:
    line = bar.line(columns)
    assert 0 < len(line) <= columns
    assert ("your turn" in line) == (columns > 9)
    assert ("gpt-5" in line) == (columns >= len("gpt-5 · your turn"))
    assert ("openai/" in line) == (columns > 100)


def test_what_the_session_spent_in_other_conversations_stands_beside(bar: StatusBar) -> None:
    bar.add(
        event("assistant_message", usage={"prompt_tokens": 1, "completion_tokens": 1}, cost_usd=0.25, response_id="1")
    )
    bar.session_usd = lambda: 0.25
    assert "session" not in bar.line(200)
    bar.session_usd = lambda: 0.5
    assert "$0.2500 (session $0.5000)" in bar.line(200)


def test_what_is_over_soon_is_not_shown_to_be_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ohsandbox.cli.interactive.region.time.monotonic", lambda: now[0])
    region = Region(list)
    region.show_status("/undo", after_s=0.3)
    assert not region.shows_status
    now[0] += 0.3
    assert region.shows_status
    region.show_status("")
    assert not region.shows_status
    region.show_status("ls")
    assert region.shows_status
