from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation, RunLimits
from ohsandbox.conversation.config import run_limits_of
from ohsandbox.conversation.run.limits import Deadline, Spending
from ohsandbox.errors import LimitReachedError, UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.llm import LLM, LLMConfig
from ohsandbox.price import ModelPrice
from ohsandbox.settings import Settings
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from pathlib import Path

BASH = "execute_bash"
SHORT_S = 0.2


def talk(tmp_path: Path, model: FakeModel, runtime: RecordingRuntime | None = None, **limits: Any) -> Conversation:
    return Conversation(Agent(model), runtime or RecordingRuntime(), tmp_path, limits=RunLimits(**limits))


def error_of(conversation: Conversation) -> dict[str, Any]:
    return data_of(conversation.events(), "error")[-1]


def test_time_ends_a_request_that_runs(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns.append(model.hang)
    conversation = talk(tmp_path, model, max_time_s=SHORT_S)
    assert conversation.run("go", 20) == Status.ERROR
    assert error_of(conversation)["code"] == "MaxTime"
    assert "Raise max_time_s" in error_of(conversation)["message"]
    conversation.close()


def test_time_ends_a_tool_that_runs_and_its_result_is_kept(tmp_path: Path) -> None:
    def wait(_: str) -> str:
        assert runtime.interrupted.wait(60)
        return "so far"

    runtime = RecordingRuntime(wait)
    model = FakeModel(answer("", call(BASH, {"command": "a"}), call(BASH, {"command": "b"})))
    conversation = talk(tmp_path, model, runtime, max_time_s=SHORT_S)
    assert conversation.run("go", 20) == Status.ERROR
    [result] = results_of(conversation)
    assert (runtime.commands, result["status"]) == (["a"], "ok")
    assert error_of(conversation)["code"] == "MaxTime"
    conversation.close()


def test_next_message_has_the_whole_time_again(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns.append(model.hang)
    conversation = talk(tmp_path, model, max_time_s=SHORT_S)
    conversation.run("go", 20)
    assert conversation.run("again", 20) == Status.IDLE
    conversation.close()


def test_stop_by_the_person_is_no_limit(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns.append(model.hang)
    conversation = talk(tmp_path, model, max_time_s=60)
    conversation.send_message("go")
    assert model.asked.wait(60)
    assert conversation.stop() is Status.CANCELED
    assert data_of(conversation.events(), "error") == []
    conversation.close()


def test_circles_end_the_run_and_the_user_sets_it_free(tmp_path: Path) -> None:
    turns = [answer("", call(BASH, {"command": "a"})) for _ in range(10)]
    conversation = talk(tmp_path, FakeModel(*turns[:4], answer("ok")))
    assert conversation.run("go", 20) == Status.ERROR
    assert error_of(conversation)["code"] == "Stuck"
    assert len(results_of(conversation)) == 4
    assert conversation.run("otherwise, please", 20) == Status.IDLE
    conversation.close()


def test_circles_are_seen_across_processes(tmp_path: Path) -> None:
    turns = [answer("", call(BASH, {"command": "a"})) for _ in range(3)]
    first = Conversation(Agent(FakeModel(*turns)), RecordingRuntime(), tmp_path, conversation_id="c")
    first.run("go", 20)
    first.close()
    with Conversation(Agent(FakeModel()), RecordingRuntime(), tmp_path, conversation_id="c") as second:
        detector = second._log.stuck
        assert len(detector._turns) == 3


def test_detection_is_switched_off(tmp_path: Path) -> None:
    turns = [answer("", call(BASH, {"command": "a"})) for _ in range(6)]
    conversation = talk(tmp_path, FakeModel(*turns), stuck_detection=False)
    assert conversation.run("go", 20) == Status.IDLE
    assert len(results_of(conversation)) == 6
    conversation.close()


def test_every_limit_is_a_setting_of_the_same_name() -> None:
    given = {"max_iterations": 3, "max_time_s": 4.0, "max_tokens": 5, "max_cost_usd": 6.0, "stuck_detection": False}
    given |= {"nudge_after": 7, "stuck_after": 8}
    assert set(given) == set(RunLimits.model_fields)
    assert run_limits_of(Settings(**given)) == RunLimits(**given)


def test_time_stands_still_while_a_person_is_asked() -> None:
    spending, limits = Spending(), RunLimits(max_time_s=SHORT_S)
    spending.begin_run()
    spending.end_run()
    time.sleep(2 * SHORT_S)
    spending.begin_run()
    spending.check(limits)
    time.sleep(2 * SHORT_S)
    with pytest.raises(LimitReachedError):
        spending.check(limits)


def test_a_deadline_cuts_until_it_is_left_and_not_after() -> None:
    cuts = threading.Semaphore(0)
    with Deadline(0.0, cuts.release) as deadline:
        assert cuts.acquire(timeout=60)
        assert cuts.acquire(timeout=60)
    assert deadline.passed
    while cuts.acquire(blocking=False):
        pass
    assert not cuts.acquire(timeout=0.6)


def test_no_deadline_starts_no_thread() -> None:
    before = threading.active_count()
    with Deadline(None, lambda: None) as deadline:
        assert threading.active_count() == before
    assert not deadline.passed


def test_exit_ends_the_conversation_at_a_limit_as_well(tmp_path: Path) -> None:
    model = FakeModel(answer("one"))
    conversation = talk(tmp_path, model, max_tokens=1)
    conversation.run("go", 20)
    asked = len(model.seen)
    assert conversation.run("/exit", 20) == Status.FINISHED
    assert len(model.seen) == asked
    conversation.close()


# --- cost that cannot be known ----------------------------------------------------------------------------------------

UNKNOWN = "The price of model 'openai/mine' is unknown, so max_cost_usd=1 cannot be kept. Give its price by --price"


def model_of(price: ModelPrice | None = None) -> LLM:
    return LLM(LLMConfig(model="openai/mine", base_url="http://127.0.0.1:9", price=price))


def test_limit_on_cost_is_refused_on_entry_for_a_model_of_unknown_price(tmp_path: Path) -> None:
    limits, settings = RunLimits(max_cost_usd=1), Settings(max_cost_usd=1)
    with pytest.raises(UsageError, match=UNKNOWN):
        Conversation(Agent(model_of()), RecordingRuntime(), tmp_path, limits=limits)
    with pytest.raises(UsageError, match=UNKNOWN):
        Conversation(Agent(model_of()), RecordingRuntime(), tmp_path, settings=settings)
    with pytest.raises(UsageError, match=UNKNOWN):  # of an agent that is a tool
        Conversation(Agent(FakeModel(), [Agent(model_of(), name="helper")]), None, tmp_path, limits=limits)
    named = settings.with_flags(model="openai/mine")
    with pytest.raises(UsageError, match=UNKNOWN):  # the model comes with the settings
        Conversation(None, RecordingRuntime(), tmp_path, settings=named).start()
    conversation = Conversation(Agent(model_of()), RecordingRuntime(), tmp_path)
    with pytest.raises(UsageError, match=UNKNOWN):
        conversation.limits = limits
    Conversation(Agent(model_of(ModelPrice(1, 2))), RecordingRuntime(), tmp_path, limits=limits)


def test_an_answer_of_unknown_cost_ends_a_run_whose_cost_is_limited(tmp_path: Path) -> None:
    unpriced = answer("", call("think", {"thought": "x"})).model_copy(update={"cost_usd": None})
    conversation = talk(tmp_path, FakeModel(unpriced), max_cost_usd=1)
    assert conversation.run("go", 20) == Status.ERROR
    assert isinstance(conversation.error, LimitReachedError)
    assert conversation.error.code == "MaxCost"
    assert "cost of an answer is unknown" in str(conversation.error)
    conversation.close()
    with talk(tmp_path / "without", FakeModel(unpriced)) as unlimited:
        assert unlimited.run("go", 20) == Status.IDLE
