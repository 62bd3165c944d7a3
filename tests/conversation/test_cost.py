from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.cost import Cost, cost_of
from ohsandbox.errors import UsageError
from tests.fakes import FakeModel, RecordingRuntime, answer, call

if TYPE_CHECKING:
    from pathlib import Path


def test_cost_is_told_by_turn_and_in_all_and_what_has_no_price_is_counted(tmp_path: Path) -> None:
    steps = answer("", call("execute_bash", {"command": "ls"}), id="r1"), answer("Done.", id="r2")
    model = FakeModel(*steps, answer("Free?", id="r3", cost_usd=None))
    with Conversation(
        Agent(model, ["execute_bash"]), RecordingRuntime(), tmp_path, conversation_id="c"
    ) as conversation:
        assert not [*conversation.cost.turns]
        conversation.run("List the\nfiles")
        conversation.run("And then?")
        first, second = conversation.cost.turns
        assert (first.number, first.title, first.models) == (1, "List the files", ("fake",))
        assert first.cost == Cost(requests=2, prompt_tokens=20, completion_tokens=10, cost_usd=0.5)
        assert second.cost == Cost(requests=1, prompt_tokens=10, completion_tokens=5, unpriced=1)
        assert conversation.cost.total == first.cost.plus(second.cost)
    assert cost_of(tmp_path / "c").total.tokens == 45


def test_a_condensation_is_paid_for_by_the_turn_before_it(tmp_path: Path) -> None:
    model = FakeModel(answer("a", id="r1"), answer("b", id="r2"), answer("SUMMARY", id="r3"))
    with Conversation(Agent(model, []), RecordingRuntime(), tmp_path, conversation_id="c") as conversation:
        conversation.run("one")
        conversation.run("two")
        conversation.compact()
        conversation.wait()
        assert [turn.cost.requests for turn in conversation.cost.turns] == [1, 2]


def test_the_share_of_the_context_window_is_that_of_the_last_request(tmp_path: Path) -> None:
    model = FakeModel(answer("a"))
    with Conversation(Agent(model, []), RecordingRuntime(), tmp_path, conversation_id="c") as conversation:
        conversation.run("one")
        assert conversation.context.share is None
        model.context_tokens = 100
        used = conversation.context
        assert (used.tokens, used.window) == (10, 100)
        assert used.share == pytest.approx(0.1)


def test_a_directory_without_a_log_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        cost_of(tmp_path)
