from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import ActionSecurityRisk, Agent, History
from ohsandbox.agent.history import OUTCOME_UNKNOWN
from ohsandbox.conversation import Conversation, RunLimits
from ohsandbox.conversation.approvals.analysis import ModelsWord, conceals
from ohsandbox.conversation.approvals.decisions import Decision, pending_of
from ohsandbox.conversation.approvals.policy import ConfirmRisky
from ohsandbox.errors import SandboxGone, UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.persistence import read_events
from ohsandbox.settings import Settings
from ohsandbox.testing import FakeRuntime
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from ohsandbox.conversation.approvals.scopes import PendingCall

BASH = "execute_bash"
WAITING = Status.WAITING_FOR_CONFIRMATION


def bash(command: str, call_id: str = "", **arguments: Any) -> Any:
    return call(BASH, {"command": command, **arguments}, call_id=call_id)


def talk(
    tmp_path: Path, *turns: Any, runtime: RecordingRuntime | None = None, confirmation: Any = "always", **options: Any
) -> Conversation:
    return Conversation(
        Agent(FakeModel(*turns)),
        runtime or RecordingRuntime(),
        tmp_path,
        conversation_id="c",
        confirmation=confirmation,
        **options,
    )


def waiting(tmp_path: Path, *calls: Any, **options: Any) -> tuple[Conversation, RecordingRuntime]:
    """A conversation whose first response waits."""
    runtime = RecordingRuntime()
    conversation = talk(tmp_path, answer("I do it.", *calls), runtime=runtime, **options)
    assert conversation.run("go", 20) == WAITING
    return conversation, runtime


def statuses(conversation: Conversation) -> list[str]:
    return [data["status"] for data in data_of(conversation.events(), "status_update")]


def types(conversation: Conversation) -> list[str]:
    return [event.type for event in conversation.events()]


def seen(conversation: Conversation) -> list[dict[str, Any]]:
    """The tool results that the model was shown last."""
    model = conversation.agent.llm
    assert isinstance(model, FakeModel)
    return [json.loads(message["content"]) for message in model.seen[-1] if message["role"] == "tool"]


def test_all_calls_are_stored_and_none_runs_before_the_answer(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), bash("b"))
    assert types(conversation)[-3:] == ["tool_call", "tool_call", "status_update"]
    assert statuses(conversation)[-1] == "WAITING_FOR_CONFIRMATION"
    assert runtime.commands == []
    assert [pending.arguments["command"] for pending in conversation.pending] == ["a", "b"]
    conversation.close()


@pytest.mark.parametrize(
    "planned",
    [
        bash("awk 'BEGIN{system(\"id\")}' #\rls -la /workspace"),
        bash("ls \u202egnol\u202c"),
        bash("p\u0430ypal"),
        call("file_write", {"path": "/workspace/a\u200b", "content": "x"}),
        call("file_write", {"path": "/workspace/a", "content": "x\x1b]0;y\x07"}),
    ],
)
def test_a_call_with_hidden_characters_is_high_with_the_reason(tmp_path: Path, planned: Any) -> None:
    conversation, runtime = waiting(tmp_path, planned, confirmation="risky", security_analyzer=ModelsWord())
    [pending] = conversation.pending
    assert pending.risk is ActionSecurityRisk.HIGH
    assert pending.why[0].startswith("It holds ")
    assert runtime.commands == []
    conversation.close()


def test_hidden_characters_are_found_in_nested_arguments_and_names() -> None:
    assert conceals("t", {"a": [{"b": ["x", {"c\u2066": 1}]}]})
    assert conceals("t\u200b", {})
    assert conceals("t", {"a": {"deep": ["\r"]}})
    assert not conceals("t", {"a": {"deep": ["plain\n\ttext", 1, None, True]}})


def test_words_with_a_no_break_space_ask_nobody(tmp_path: Path) -> None:
    turn = answer("", call("finish", {"message": "Fini\xa0!"}))
    conversation = talk(tmp_path, turn, confirmation="risky")
    assert conversation.run("go", 20) == Status.FINISHED
    conversation.close()


def test_confirmed_calls_run_in_order_and_the_run_goes_on(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), bash("b"))
    conversation.confirm(by="ada")
    assert conversation.wait(60) == Status.IDLE
    assert runtime.commands == ["a", "b"]
    [data] = data_of(conversation.events(), "confirmation")
    assert (data["approved"], data["by"], len(data["tool_call_ids"])) == (True, "ada", 2)
    assert [result["status"] for result in seen(conversation)] == ["ok", "ok"]
    assert data_of(conversation.events(), "assistant_message")[-1]["content"] == "done"
    conversation.close()


def test_refused_calls_go_back_to_the_model_with_the_reason(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), call("file_read", {"path": "x"}))
    conversation.reject("Not on a Friday.")
    assert conversation.wait(60) == Status.IDLE
    assert runtime.commands == []
    assert [result["error"] for result in seen(conversation)] == ["The user refused this call: Not on a Friday."] * 2
    conversation.close()


def test_calls_are_answered_one_by_one(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a", "1"), bash("b", "2"), call("finish", {"message": "x"}))
    conversation.confirm(["2"])
    assert conversation.status() is WAITING
    assert [pending.tool_call_id for pending in conversation.pending] == ["1"]
    conversation.reject("no", ["1"])
    assert conversation.wait(60) == Status.IDLE
    assert runtime.commands == ["b"]
    first, second, finish = seen(conversation)
    assert (first["error"], second["status"]) == ("The user refused this call: no", "ok")
    assert "refused a call before it" in finish["error"]
    conversation.close()


def test_message_while_waiting_refuses_all_and_follows_the_refusals(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), bash("b"))
    assert conversation.run("Do it otherwise.", 20) == Status.IDLE
    assert runtime.commands == []
    model = conversation.agent.llm
    assert isinstance(model, FakeModel)
    assert [message["role"] for message in model.seen[-1][-3:]] == ["tool", "tool", "user"]
    assert "wrote a message instead" in seen(conversation)[0]["error"]
    assert model.seen[-1][-1]["content"] == "Do it otherwise."
    conversation.close()


def test_answers_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    conversation, _ = waiting(tmp_path, bash("a", "1"))
    with pytest.raises(UsageError, match="'9' does not wait"):
        conversation.confirm(["9"])
    conversation.reject()
    conversation.wait(60)
    with pytest.raises(UsageError, match="Nothing waits"):
        conversation.confirm()
    conversation.close()


def test_a_call_that_cannot_run_never_asks_and_is_not_run_as_something_else(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, call("request_x", "{}"), call(BASH, '{"command":'), bash("b"))
    assert [pending.arguments for pending in conversation.pending] == [{"command": "b"}]
    conversation.confirm()
    conversation.wait(60)
    unknown, malformed, fine = seen(conversation)
    assert "Unknown tool" in unknown["error"]
    assert "Failed to parse" in malformed["error"]
    assert (fine["status"], runtime.commands) == ("ok", ["b"])
    conversation.close()


def test_words_alone_never_ask(tmp_path: Path) -> None:
    turns = [answer("", call("think", {"thought": "x"})), answer("", call("finish", {"message": "x"}))]
    conversation = talk(tmp_path, *turns)
    assert conversation.run("go", 20) == Status.FINISHED
    conversation.close()


def test_finish_beside_a_confirmed_call_finishes(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), call("finish", {"message": "x"}))
    conversation.confirm()
    assert conversation.wait(60) == Status.FINISHED
    assert runtime.commands == ["a"]
    conversation.close()


# --- waiting is a state on disk -------------------------------------------------------------------


def test_waiting_survives_the_process_and_is_answered_in_the_next(tmp_path: Path) -> None:
    first, _ = waiting(tmp_path, bash("a"))
    first.close()
    runtime = RecordingRuntime()
    with talk(tmp_path, runtime=runtime) as second:
        assert second.status() is WAITING
        second.confirm()
        assert second.wait(60) == Status.IDLE
        assert runtime.commands == ["a"]
        assert seen(second)[0]["status"] == "ok"


def test_answer_without_a_run_is_kept_for_the_next_and_runs_once(tmp_path: Path) -> None:
    first, runtime = waiting(tmp_path, bash("a"))
    first.confirm(run=False)
    first.close()
    for _ in range(2):
        with talk(tmp_path, runtime=runtime) as later:
            later.run("go on", 20)
    assert runtime.commands == ["a"]
    assert results_of(first)[0]["status"] == "ok"


KILLED = """
import os, signal, sys
from pathlib import Path
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from tests.fakes import FakeModel, RecordingRuntime, answer, call

def die(command):
    if command == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return ""

calls = [call("execute_bash", {"command": name}, call_id=name) for name in ("a", "b", "c")]
talk = Conversation(
    Agent(FakeModel(answer("", *calls))), RecordingRuntime(die), Path(sys.argv[1]), conversation_id="c",
    confirmation="always",
)
def at(event):
    if sys.argv[2] == f"{event.type} {event.data.get('tool_call_id', event.data.get('status', ''))}".strip():
        os.kill(os.getpid(), signal.SIGKILL)
talk.register_callback(at)
talk.run("go")
if sys.argv[2] == "answered":
    talk.confirm(run=False)
    os.kill(os.getpid(), signal.SIGKILL)
talk.confirm()
talk.wait()
"""

NEVER = "waited for the user's approval"
NOT_BEGUN = "its turn came"


def kill_at(tmp_path: Path, point: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), point], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("point", ["tool_call a", "tool_call c", "status_update WAITING_FOR_CONFIRMATION"])
def test_killed_while_it_waits_it_waits_still(tmp_path: Path, point: str) -> None:
    kill_at(tmp_path, point)
    with talk(tmp_path) as resumed:
        assert resumed.status() is WAITING
        assert resumed.pending[0].tool_call_id == "a"
    [*messages] = History.from_events(read_events(tmp_path / "c")).messages()
    assert NEVER in messages[-1]["content"]


@pytest.mark.slow
def test_killed_between_the_answer_and_the_run_it_runs_once(tmp_path: Path) -> None:
    kill_at(tmp_path, "answered")
    runtime = RecordingRuntime()
    with talk(tmp_path, runtime=runtime) as resumed:
        resumed.run("go on", 20)
        assert runtime.commands == ["a", "b", "c"]


def test_killed_in_a_confirmed_call_only_that_one_is_unknown_and_nothing_runs_again(tmp_path: Path) -> None:
    kill_at(tmp_path, "b")
    runtime = RecordingRuntime()
    with talk(tmp_path, runtime=runtime) as resumed:
        assert resumed.pending == []
        resumed.run("go on", 20)
        assert runtime.commands == []
        done, unknown, never = seen(resumed)
        assert (done["status"], unknown["error"]) == ("ok", OUTCOME_UNKNOWN)
        assert NOT_BEGUN in never["error"]


def test_reads_that_ran_side_by_side_are_all_unknown(tmp_path: Path) -> None:
    calls = [call("file_read", {"path": "x"}), call("file_read", {"path": "y"}), bash("z")]

    class Dying(RecordingRuntime):
        def read_bytes(self, path: str | PathLike[str], **options: Any) -> bytes:
            if path in {"x", "y"}:
                raise SandboxGone("The sandbox is gone.")
            return super().read_bytes(path, **options)

    conversation = talk(tmp_path, answer("", *calls), runtime=Dying())
    assert conversation.run("go", 20) == WAITING
    conversation.confirm()
    assert conversation.wait(60) == Status.ERROR
    conversation.run("go on", 20)
    first, second, third = seen(conversation)
    assert first["error"] == second["error"] == OUTCOME_UNKNOWN
    assert NOT_BEGUN in third["error"]
    conversation.close()


def test_another_process_sees_what_waits_by_the_log_alone(tmp_path: Path) -> None:
    conversation, _ = waiting(tmp_path, bash("rm -rf /", security_risk="LOW"), confirmation="risky")
    [pending] = pending_of(History.from_events(read_events(conversation.directory)))
    assert (pending.name, pending.risk) == (BASH, ActionSecurityRisk.HIGH)
    assert "Deletes '/'" in pending.why[0]
    conversation.close()


# --- callback -------------------------------------------------------------------------------------


def test_callback_is_asked_in_the_run_and_the_log_says_that_it_waits(tmp_path: Path) -> None:
    runtime, asked = RecordingRuntime(), []

    def ask(pending: Any) -> Decision:
        asked.append([call.arguments["command"] for call in pending])
        assert statuses(conversation)[-1] == "WAITING_FOR_CONFIRMATION"
        return Decision(approved=len(asked) > 1, reason="first no")

    turns = [answer("", bash("a")), answer("", bash("b"))]
    conversation = talk(tmp_path, *turns, runtime=runtime, confirm=ask)
    assert conversation.run("go", 20) == Status.IDLE
    assert (asked, runtime.commands) == ([["a"], ["b"]], ["b"])
    conversation.close()


def test_callback_that_leaves_it_open_lets_the_run_wait(tmp_path: Path) -> None:
    conversation, runtime = waiting(tmp_path, bash("a"), confirm=lambda _: None)
    conversation.confirm()
    assert conversation.wait(60) == Status.IDLE
    assert runtime.commands == ["a"]
    conversation.close()


def test_callback_that_fails_lets_nothing_pass(tmp_path: Path) -> None:
    def ask(_: Any) -> Decision:
        raise OSError("the terminal is gone")

    runtime = RecordingRuntime()
    conversation = talk(tmp_path, answer("", bash("a")), runtime=runtime, confirm=ask)
    assert conversation.run("go", 20) == Status.ERROR
    assert (runtime.commands, len(conversation.pending)) == ([], 1)
    conversation.close()


def test_answer_of_another_thread_counts_while_the_callback_thinks(tmp_path: Path) -> None:
    runtime, asked, answered = RecordingRuntime(), threading.Event(), threading.Event()

    def ask(_: Any) -> Decision:
        asked.set()
        answered.wait(60)
        return Decision(approved=False, reason="too late")

    conversation = talk(tmp_path, answer("", bash("a")), runtime=runtime, confirm=ask)
    conversation.send_message("go")
    assert asked.wait(60)
    conversation.confirm()
    answered.set()
    assert conversation.wait(60) == Status.IDLE
    assert runtime.commands == ["a"]
    conversation.close()


# --- stopping and limits --------------------------------------------------------------------------


def test_stop_in_a_confirmed_call_keeps_the_next_from_beginning(tmp_path: Path) -> None:
    begun = threading.Event()

    def wait(_: str) -> str:
        begun.set()
        assert runtime.interrupted.wait(60)
        return "cut"

    runtime = RecordingRuntime(wait)
    conversation = talk(tmp_path, answer("", bash("a"), bash("b")), runtime=runtime)
    conversation.run("go", 20)
    conversation.confirm()
    assert begun.wait(60)
    assert conversation.stop() is Status.CANCELED
    assert runtime.commands == ["a"]
    assert "the user stopped the run" in results_of(conversation)[1]["error"]
    conversation.close()


def test_requests_before_a_confirmation_count_after_it_also_in_another_process(tmp_path: Path) -> None:
    turns = [answer("", bash(name)) for name in "abc"]
    first = talk(tmp_path, *turns, limits=RunLimits(max_iterations=2))
    first.run("go", 20)
    first.confirm()
    assert first.wait(60) == WAITING
    first.close()
    with talk(tmp_path, *turns[2:], limits=RunLimits(max_iterations=2)) as second:
        second.confirm()
        assert second.wait(60) == Status.ERROR
        assert data_of(second.events(), "error")[-1]["code"] == "MaxIterations"


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "asks"),
    [
        (bash("ls", security_risk="LOW"), False),
        (bash("ls", security_risk="MEDIUM"), False),
        (bash("ls", security_risk="HIGH"), True),
        (bash("ls"), False),
        (bash("git push -f"), True),
        (bash("curl x | sh", security_risk="LOW"), True),
        (call("file_read", {"path": "/etc/shadow"}), False),
        (call("file_write", {"path": "a.txt", "content": "x"}), False),
        (call("file_write", {"path": "../a.txt", "content": "x"}), True),
        (call("file_write", {"path": "/home/u/.bashrc", "content": "x", "security_risk": "LOW"}), True),
    ],
)
def test_risky_asks_by_the_highest_of_the_models_word_and_the_rules(tmp_path: Path, made: Any, asks: bool) -> None:  # noqa: FBT001 - a parameter of the table
    conversation = talk(tmp_path, answer("", made), confirmation="risky")
    assert (conversation.run("go", 20) == WAITING) is asks
    conversation.close()


def test_threshold_and_unknown_are_chosen(tmp_path: Path) -> None:
    policy = ConfirmRisky(ActionSecurityRisk.MEDIUM, confirm_unknown=False)
    turns = [answer("", bash("ls")), answer("", bash("ls", security_risk="MEDIUM"))]
    conversation = talk(tmp_path, *turns, confirmation=policy, security_analyzer=ModelsWord())
    assert conversation.run("go", 20) == WAITING
    assert len(results_of(conversation)) == 1
    conversation.close()


def test_what_nobody_knows_anything_of_asks(tmp_path: Path) -> None:
    conversation, _ = waiting(tmp_path, bash("ls"), confirmation="risky", security_analyzer=ModelsWord())
    assert conversation.pending[0].risk is ActionSecurityRisk.UNKNOWN
    conversation.close()


def test_analyser_that_fails_counts_as_high(tmp_path: Path) -> None:
    class Broken:
        def assess(self, call: Any) -> Any:
            raise KeyError(call.name)

    conversation, _ = waiting(tmp_path, bash("ls"), confirmation="risky", security_analyzer=Broken())
    assert "KeyError" in conversation.pending[0].why[0]
    conversation.close()


def test_policy_of_the_settings_that_are_given(tmp_path: Path) -> None:
    conversation, _ = waiting(tmp_path, bash("a"), confirmation=None, settings=Settings(confirm="always"))
    conversation.close()


def test_unknown_policy_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never, always, risky"):
        talk(tmp_path, confirmation="sometimes")


def test_sub_agent_asks_as_its_parent_does(tmp_path: Path) -> None:
    asked: list[PendingCall] = []

    def ask(pending: Any) -> Decision | None:
        asked.extend(pending)
        return Decision(approved=True) if pending[0].name == "delegate" else None

    turns = [answer("", call("delegate", {"task": "x"})), answer("", bash("a")), answer("the sub-agent's words")]
    model = FakeModel(*turns)
    agent = Agent(model, [BASH, "delegate"])
    with FakeRuntime() as runtime:
        conversation = Conversation(agent, runtime, tmp_path, confirmation="always", confirm=ask)
        assert conversation.run("go", 20) == Status.IDLE
        conversation.close()
    assert [pending.name for pending in asked] == ["delegate", BASH]
    assert "A sub-agent cannot ask" in model.seen[2][-1]["content"]
