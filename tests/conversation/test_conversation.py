from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime, events
from ohsandbox.agent import Agent
from ohsandbox.content import OutputLimits
from ohsandbox.conversation import Conversation, FileConversationStore, RunLimits
from ohsandbox.conversation.environment.conversation_environment import default_runtime
from ohsandbox.errors import (
    ConversationOpenError,
    LimitReachedError,
    ModelError,
    SandboxGone,
    UsageError,
)
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.events import SDKEvent
from ohsandbox.llm import DeltaEvent, ReplayLLM, RetryEvent, WarningEvent
from ohsandbox.persistence import EventLog, LogWriteError, read_events
from ohsandbox.runtime.docker import DockerRuntime
from ohsandbox.schema import TextObservation
from ohsandbox.settings import Settings
from ohsandbox.tool import CallHint, ToolExecutor
from ohsandbox.tools import DEFAULT_TOOLS, AgentThinkAction
from ohsandbox.tools.finish import make_finish_tool
from ohsandbox.tools.think import make_think_tool
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

BASH = "execute_bash"


def talk(tmp_path: Path, model: FakeModel, runtime: Runtime | None = None, **options: Any) -> Conversation:
    return Conversation(Agent(model), runtime or RecordingRuntime(), tmp_path, **options)


def run(tmp_path: Path, *turns: Any, runtime: Runtime | None = None, **options: Any) -> Conversation:
    conversation = talk(tmp_path, FakeModel(*turns), runtime, **options)
    conversation.run("go", timeout_s=60)
    conversation.close()
    return conversation


def types(conversation: Conversation) -> list[str]:
    return [event.type for event in conversation.events()]


def test_answer_in_words_ends_idle(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer("Hello."))
    assert conversation.status() is Status.IDLE
    assert types(conversation) == [
        "user_message",
        "status_update",
        "system_message",
        "assistant_message",
        "status_update",
    ]


def test_finish_ends_finished(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer("", call("finish", {"message": "It is done."})))
    assert conversation.status() is Status.FINISHED
    assert results_of(conversation)[-1]["output"] == "It is done."


def test_a_refusal_is_cut_to_the_limit_of_the_settings(tmp_path: Path) -> None:
    tools = [replace(make_think_tool(), name=f"{'x' * 60}{number}") for number in range(40)]  # the refusal names all
    agent = Agent(FakeModel(answer("", call("?")), answer("Sorry.")), tools=tools)
    settings = Settings(output=OutputLimits(max_result_chars=1000))
    with Conversation(agent, RecordingRuntime(), tmp_path, settings=settings) as conversation:
        conversation.run("go", timeout_s=60)
    [result] = results_of(conversation)
    assert 500 < result["error"].count("x") < 1000


def test_a_finish_of_ones_own_ends_the_task_too(tmp_path: Path) -> None:
    end = replace(make_finish_tool(), name="my_end", hint=CallHint())
    model = FakeModel(answer("", call("my_end", {"message": "It is done."})))
    conversation = Conversation(Agent(model, (end,)), RecordingRuntime(), tmp_path / "c")
    conversation.run("go", timeout_s=30)
    conversation.close()
    assert conversation.status() is Status.FINISHED


def test_tool_call_is_logged_before_the_tool_runs(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def look(_: str) -> str:
        seen.append([event.type for event in read_events(conversation.directory)])
        return ""

    conversation = talk(tmp_path, FakeModel(answer("", call(BASH, {"command": "true"}))), RecordingRuntime(look))
    conversation.run("go", 20)
    assert seen[0][-1] == "tool_call"
    conversation.close()


def test_calls_of_one_turn_run_in_their_order_each_answered_before_the_next(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    turn = answer(
        "I look.", call(BASH, {"command": "a"}), call("think", {"thought": "b"}), call(BASH, {"command": "c"})
    )
    conversation = run(tmp_path, turn, runtime=runtime)
    assert runtime.commands == ["a", "c"]
    assert types(conversation)[3:9] == ["tool_call", "tool_result"] * 3
    calls = data_of(conversation.events(), "tool_call")
    assert [(data.get("thought"), data["total_calls"], data["call_index"]) for data in calls] == [
        ("I look.", 3, 0),
        (None, 3, 1),
        (None, 3, 2),
    ]


def test_model_sees_calls_before_their_results(tmp_path: Path) -> None:
    model = FakeModel(answer("x", call(BASH, {"command": "a"}, call_id="1"), call(BASH, {"command": "b"}, call_id="2")))
    conversation = talk(tmp_path, model)
    conversation.run("go", 20)
    conversation.close()
    messages = model.seen[1]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool"]
    assert [item["id"] for item in messages[2]["tool_calls"]] == ["1", "2"]
    assert [message["tool_call_id"] for message in messages[3:]] == ["1", "2"]
    assert json.loads(messages[3]["content"])["status"] == "ok"


def test_system_message_holds_the_exact_prompt_and_the_tools(tmp_path: Path) -> None:
    model = FakeModel()
    conversation = talk(tmp_path, model)
    conversation.run("go", 20)
    conversation.close()
    [data] = data_of(conversation.events(), "system_message")
    assert model.seen[0][0] == {"role": "system", "content": data["content"]}
    assert tuple(tool["function"]["name"] for tool in data["tools"]) == DEFAULT_TOOLS


@pytest.mark.parametrize("arguments", ['{"a":', "[]", "", "null", '{"command": NaN}', "x" * 3_000_000, "[" * 100_000])
def test_malformed_arguments_run_nothing_and_the_loop_goes_on(tmp_path: Path, arguments: str) -> None:
    runtime = RecordingRuntime()
    conversation = run(tmp_path, answer("", call(BASH, arguments)), runtime=runtime)
    assert runtime.commands == []
    [data] = data_of(conversation.events(), "tool_call")
    assert data["arguments"] == "{}"
    assert data["raw_arguments"] == arguments[:20_000]
    assert "Failed to parse tool call arguments" in results_of(conversation)[0]["error"]
    assert conversation.status() is Status.IDLE


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("no_such", {}, "Unknown tool: no_such"),
        (None, {}, "Unknown tool: "),
        (BASH, {}, 'Missing required argument "command" in tool call execute_bash'),
        (BASH, {"command": "x", "cwd": "/"}, "Unexpected argument 'cwd'"),
        (BASH, {"command": "x", "timeout": "soon"}, "argument 'timeout'"),
        (BASH, {"command": "x", "security_risk": "none"}, "Allowed are: LOW, MEDIUM, HIGH"),
        (BASH, {"command": "\ud800"}, "lone surrogate"),
    ],
)
def test_wrong_calls_are_told_to_the_model_and_run_nothing(
    tmp_path: Path, name: str | None, arguments: Any, text: str
) -> None:
    runtime = RecordingRuntime()
    conversation = run(tmp_path, answer("", call(name, arguments)), runtime=runtime)
    assert text in results_of(conversation)[0]["error"]
    assert runtime.commands == []


def test_missing_and_repeated_call_ids_become_unique(tmp_path: Path) -> None:
    think = {"thought": "x"}
    turn = answer("", call("think", think, call_id="a"), call("think", think, call_id="a"), call("think", think))
    conversation = run(tmp_path, turn, answer("", call("think", think, call_id="a")))
    ids = [data["tool_call_id"] for data in data_of(conversation.events(), "tool_call")]
    assert ids[0] == "a"
    assert len(set(ids)) == 4
    assert all(ids)


def test_responses_with_the_same_id_get_their_own(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer("", call("think", {"thought": "x"})), answer("Done.", id="r"))
    ids = [event.data["response_id"] for event in conversation.events() if "response_id" in event.data]
    assert ids[0] == "r"
    assert len(set(ids)) == 2


@pytest.mark.slow
def test_of_five_hundred_calls_sixteen_run_and_all_are_answered(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    conversation = run(tmp_path, answer("", *[call(BASH, {"command": str(i)}) for i in range(500)]), runtime=runtime)
    results = results_of(conversation)
    assert len(runtime.commands) == 16
    assert len(results) == 500
    assert "too many" in results[16]["error"]


def test_cut_reply_runs_nothing(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    turn = answer("", call(BASH, {"command": "rm -r x"}), call(BASH, '{"command": "rm'), finish_reason="length")
    conversation = run(tmp_path, turn, runtime=runtime)
    assert runtime.commands == []
    assert ["cut at the output limit" in result["error"] for result in results_of(conversation)] == [True, True]


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        ("length", "at the output limit"),
        ("content_filter", "by the provider's content filter"),
        ("tool_calls", "before the tool call that it announces"),
    ],
)
def test_run_whose_answer_was_cut_fails_and_says_where(tmp_path: Path, reason: str, cut: str) -> None:
    conversation = run(tmp_path, answer("I will run the", finish_reason=reason), answer("never asked"))
    [error] = data_of(conversation.events(), "error")
    assert (conversation.status(), error["code"], error["exit_code"]) == (Status.ERROR, "AnswerCut", 1)
    assert f"was cut {cut}" in error["message"]
    assert data_of(conversation.events(), "assistant_message")[0]["content"] == "I will run the"


def test_empty_answers_that_a_filter_cut_are_told_as_such(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer(finish_reason="content_filter"))  # a second request would fail
    [error] = data_of(conversation.events(), "error")
    assert "content filter" in error["message"]
    assert (conversation.status(), error["code"]) == (Status.ERROR, "AnswerCut")


def test_calls_before_finish_run_and_those_after_do_not(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    turn = answer(
        "", call(BASH, {"command": "before"}), call("finish", {"message": "m"}), call(BASH, {"command": "after"})
    )
    conversation = run(tmp_path, turn, runtime=runtime)
    assert runtime.commands == ["before"]
    assert conversation.status() is Status.FINISHED
    assert "finish" in results_of(conversation)[2]["error"]


def test_empty_answer_is_asked_again_with_a_nudge_that_history_forgets(tmp_path: Path) -> None:
    model = FakeModel(answer(), answer("Here."))
    conversation = talk(tmp_path, model)
    conversation.run("go", 20)
    conversation.run("more", 20)
    conversation.close()
    assert "empty" in model.seen[1][-1]["content"]
    assert [message["role"] for message in model.seen[2]] == ["system", "user", "assistant", "user"]
    assert data_of(conversation.events(), "retry")[0]["code"] == "EmptyAnswer"


def test_four_empty_answers_end_idle_with_a_notice(tmp_path: Path) -> None:
    conversation = run(tmp_path, *[answer()] * 4, answer("never asked"))
    assert conversation.status() is Status.IDLE
    assert len(data_of(conversation.events(), "retry")) == 3
    assert data_of(conversation.events(), "notice")[0]["code"] == "EmptyAnswer"


def test_unexpected_fault_in_a_tool_is_told_and_the_loop_goes_on(tmp_path: Path) -> None:
    def fail(_: str) -> str:
        raise ZeroDivisionError("by zero")

    conversation = run(tmp_path, answer("", call(BASH, {"command": "x"})), runtime=RecordingRuntime(fail))
    assert results_of(conversation)[0]["error"] == "Tool 'execute_bash' failed: ZeroDivisionError: by zero"
    assert conversation.status() is Status.IDLE


def test_what_the_runtime_refuses_is_told_and_the_loop_goes_on(tmp_path: Path) -> None:
    def refuse(_: str) -> str:
        raise UsageError("A command cannot hold a NUL byte.")

    conversation = run(tmp_path, answer("", call(BASH, {"command": "a\0b"})), runtime=RecordingRuntime(refuse))
    assert results_of(conversation)[0]["error"] == "A command cannot hold a NUL byte."
    assert conversation.status() is Status.IDLE


def test_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer("", call("file_read", {"path": "/no"})))
    assert results_of(conversation)[0]["error"] == "/no: No such file or directory."


def test_missing_file_is_told_with_its_remedy(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with CLIRuntime(workspace, bubblewrap=False, quiet=True) as runtime:
        conversation = run(tmp_path, answer("", call("file_read", {"path": "/no"})), runtime=runtime)
    error = results_of(conversation)[0]["error"]
    assert error == "/no: No such file or directory. List the directory above it to see what is there."


def test_dead_sandbox_ends_the_run_with_one_error_event(tmp_path: Path) -> None:
    def die(_: str) -> str:
        raise SandboxGone("The container was removed.")

    conversation = run(tmp_path, answer("", call(BASH, {"command": "x"})), runtime=RecordingRuntime(die))
    assert conversation.status() is Status.ERROR
    assert isinstance(conversation.error, SandboxGone)
    assert data_of(conversation.events(), "error") == [
        {"code": "SandboxGone", "message": "The container was removed.", "exit_code": 4}
    ]
    assert results_of(conversation) == []


def test_call_left_open_by_a_dead_sandbox_is_answered_as_unknown_and_not_repeated(tmp_path: Path) -> None:
    outcomes = iter([SandboxGone("gone")])

    def die_once(_: str) -> str:
        if (error := next(outcomes, None)) is not None:
            raise error
        return ""

    model = FakeModel(answer("", call(BASH, {"command": "x"})))
    runtime = RecordingRuntime(die_once)
    conversation = talk(tmp_path, model, runtime)
    conversation.run("go", 20)
    conversation.run("again", 20)
    conversation.close()
    assert [message["role"] for message in model.seen[1]] == ["system", "user", "assistant", "tool", "user"]
    assert "outcome is unknown" in model.seen[1][3]["content"]
    assert runtime.commands == ["x"]


def test_model_failure_is_one_line_and_exit_code_5(tmp_path: Path) -> None:
    conversation = run(tmp_path, ModelError("The key is\nwrong."))
    [data] = data_of(conversation.events(), "error")
    assert data == {"code": "ModelError", "message": "The key is wrong.", "exit_code": 5}
    assert conversation.status() is Status.ERROR


def test_interrupt_raised_inside_a_tool_cancels_the_run(tmp_path: Path) -> None:
    def interrupt(_: str) -> str:
        raise KeyboardInterrupt

    conversation = run(tmp_path, answer("", call(BASH, {"command": "x"})), runtime=RecordingRuntime(interrupt))
    assert conversation.status() is Status.CANCELED


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (RunLimits(max_iterations=2), "MaxIterations"),
        (RunLimits(max_tokens=30), "MaxTokens"),
        (RunLimits(max_cost_usd=0.5), "MaxCost"),
        (RunLimits(max_time_s=1e-9), "MaxTime"),
    ],
)
def test_limit_ends_the_run_before_the_next_request(tmp_path: Path, limits: RunLimits, code: str) -> None:
    thoughts = [answer("", call("think", {"thought": str(i)})) for i in range(9)]
    model = FakeModel(*thoughts)
    conversation = talk(tmp_path, model, limits=limits)
    assert conversation.run("go", 20) == Status.ERROR
    assert isinstance(conversation.error, LimitReachedError)
    assert data_of(conversation.events(), "error")[0]["code"] == code
    assert len(model.seen) == (0 if code == "MaxTime" else 2)
    conversation.close()


def test_stop_interrupts_a_running_tool_and_keeps_its_result(tmp_path: Path) -> None:
    started = threading.Event()

    def wait(_: str) -> str:
        started.set()
        assert runtime.interrupted.wait(60)
        return "^C"

    runtime = RecordingRuntime(wait)
    turn = answer("", call(BASH, {"command": "sleep 99"}), call(BASH, {"command": "next"}))
    conversation = talk(tmp_path, FakeModel(turn), runtime)
    conversation.send_message("go")
    assert started.wait(60)
    assert conversation.stop() is Status.CANCELED
    conversation.close()
    assert runtime.commands == ["sleep 99"]
    assert "^C" in results_of(conversation)[0]["output"]


class _Patient(ToolExecutor[AgentThinkAction, TextObservation]):
    """Waits until it is interrupted."""

    def __init__(self) -> None:
        self.begun = threading.Barrier(3)
        self.interrupted = threading.Event()

    def __call__(self, action: AgentThinkAction) -> TextObservation:
        self.begun.wait(60)
        assert self.interrupted.wait(60)
        return TextObservation(text=f"cut {action.thought}")

    def interrupt(self) -> None:
        self.interrupted.set()


def test_stop_interrupts_all_that_run_side_by_side_and_keeps_their_results(tmp_path: Path) -> None:
    patient = _Patient()
    turn = answer("", call("think", {"thought": "a"}), call("think", {"thought": "b"}), call(BASH, {"command": "next"}))
    runtime = RecordingRuntime()
    agent = Agent(FakeModel(turn), tools=[make_think_tool().with_executor(patient), BASH])
    with Conversation(agent, runtime, tmp_path) as conversation:
        conversation.send_message("go")
        patient.begun.wait(60)
        assert conversation.stop() is Status.CANCELED
        assert [result["output"] for result in results_of(conversation)] == ["cut a", "cut b"]
    assert runtime.commands == []


def test_stop_cancels_a_request_at_once(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns = [model.hang]
    conversation = talk(tmp_path, model)
    conversation.send_message("go")
    assert model.asked.wait(60)
    assert conversation.stop(5) is Status.CANCELED
    assert conversation.error is None
    conversation.close()


def test_callback_that_stops_leaves_the_call_unrun_and_answered(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    conversation = talk(tmp_path, FakeModel(answer("", call(BASH, {"command": "x"}))), runtime)

    def stop_at_call(event: SDKEvent) -> None:
        if event.type == "tool_call":
            conversation.stop()

    conversation.register_callback(stop_at_call)
    assert conversation.run("go", 20) == Status.CANCELED
    conversation.close()
    assert runtime.commands == []
    assert "Not executed" in results_of(conversation)[0]["error"]


def test_message_after_stop_goes_on(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns = [model.hang, answer("Yes.")]
    conversation = talk(tmp_path, model)
    conversation.send_message("go")
    assert model.asked.wait(60)
    conversation.stop(5)
    assert conversation.run("again", 20) == Status.IDLE
    conversation.close()


def test_message_sent_while_the_model_thinks_is_answered_in_the_same_run(tmp_path: Path) -> None:
    asked, spoken = threading.Event(), threading.Event()

    def slow() -> Any:
        asked.set()
        assert spoken.wait(60)
        return answer("First.")

    model = FakeModel(slow, answer("Second."))
    conversation = talk(tmp_path, model)
    conversation.send_message("one")
    assert asked.wait(60)
    conversation.send_message("two")
    spoken.set()
    assert conversation.wait(60) == Status.IDLE
    assert [data["content"] for data in data_of(conversation.events(), "assistant_message")] == ["First.", "Second."]
    conversation.close()


def test_callbacks_hear_everything_in_order_before_wait_returns(tmp_path: Path) -> None:
    heard: list[SDKEvent] = []
    conversation = talk(tmp_path, FakeModel(answer("", call("think", {"thought": "x"}))))
    conversation.register_callback(heard.append)
    conversation.run("go", 20)
    assert heard == conversation.events()
    assert [event.seq for event in heard] == list(range(len(heard)))
    conversation.close()


def test_failing_callback_does_not_end_the_run(tmp_path: Path) -> None:
    conversation = talk(tmp_path, FakeModel(answer("Fine.")))
    conversation.register_callback(lambda event: event.data["no such key"])
    assert conversation.run("go", 20) == Status.IDLE
    conversation.close()


def test_callback_may_send_the_next_message(tmp_path: Path) -> None:
    conversation = talk(tmp_path, FakeModel(answer("One."), answer("Two.")))
    follow = iter(["and now"])

    def speak(event: SDKEvent) -> None:
        if event.type == "assistant_message" and (text := next(follow, None)):
            conversation.send_message(text)

    conversation.register_callback(speak)
    assert conversation.run("go", 20) == Status.IDLE
    assert len(data_of(conversation.events(), "assistant_message")) == 2
    conversation.close()


def test_no_thread_is_left_after_close(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for number in range(5):
        run(tmp_path, conversation_id=f"c{number}")
    left = set(threading.enumerate()) - before
    for thread in left:
        if thread.name.endswith("-preload"):  # which ends by itself, at the first of them after 0.1 s
            thread.join(60)
    assert not any(thread.is_alive() for thread in left)


def test_runtime_that_was_not_running_is_started_and_closed(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    runtime.alive = False
    run(tmp_path, runtime=runtime)
    assert runtime.log == ["start", "close"]


def test_runtime_of_the_caller_is_left_running(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    run(tmp_path, runtime=runtime)
    assert runtime.log == []


def test_forced_tool_choice_holds_for_the_first_request_of_a_run(tmp_path: Path) -> None:
    model = FakeModel(answer("", call("think", {"thought": "x"})), answer("a"), answer("b"))
    conversation = talk(tmp_path, model, tool_choice="required")
    conversation.run("go", 20)
    conversation.run("more", 20)
    conversation.close()
    assert model.choices == ["required", "auto", "required"]


def test_reopened_conversation_goes_on_with_the_same_messages(tmp_path: Path) -> None:
    first = FakeModel(answer("t", call(BASH, {"command": "x"}, call_id="1")), answer("One."))
    conversation = talk(tmp_path, first, conversation_id="c")
    conversation.run("go", 20)
    conversation.close()
    second = FakeModel()
    again = talk(tmp_path, second, conversation_id="c")
    again.run("more", 20)
    again.close()
    assert second.seen[0][: len(first.seen[1])] == first.seen[1]
    assert second.seen[0][-2:] == [{"role": "assistant", "content": "One."}, {"role": "user", "content": "more"}]
    assert len(data_of(again.events(), "system_message")) == 1


def test_reopened_conversation_counts_what_was_spent_before(tmp_path: Path) -> None:
    run(tmp_path, answer("One."), conversation_id="c")
    again = run(tmp_path, conversation_id="c", limits=RunLimits(max_cost_usd=0.2))
    assert data_of(again.events(), "error")[0]["code"] == "MaxCost"


def test_second_opener_is_told_the_process(tmp_path: Path) -> None:
    with talk(tmp_path, FakeModel(), conversation_id="c"), pytest.raises(ConversationOpenError, match=str(os.getpid())):
        talk(tmp_path, FakeModel(), conversation_id="c").start()


@pytest.mark.parametrize("bad", ["", "../x", "a/b", ".hidden", "x" * 200, "a\nb", ".."])
def test_id_that_could_be_a_path_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        talk(tmp_path, FakeModel(), conversation_id=bad)


def test_without_a_state_directory_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OHSANDBOX_HOME")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(UsageError, match="Set HOME"):
        Conversation(Agent(FakeModel()), RecordingRuntime())


def test_unusable_home_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    with pytest.raises(UsageError, match="Make it writable"):
        Conversation(Agent(FakeModel()), RecordingRuntime()).start()


def test_nothing_is_written_before_start(tmp_path: Path) -> None:
    talk(tmp_path / "root", FakeModel())
    assert not (tmp_path / "root").exists()


def test_metadata_has_title_model_and_user(tmp_path: Path) -> None:
    conversation = run(tmp_path, user_id="ann")
    metadata = FileConversationStore(tmp_path).load(conversation.id)
    assert metadata is not None
    assert (metadata.title, metadata.model, metadata.user_id) == ("go", "fake", "ann")


def test_damaged_metadata_does_not_keep_a_conversation_from_opening(tmp_path: Path) -> None:
    run(tmp_path, conversation_id="c")
    (tmp_path / "c" / "metadata.json").write_text("{")
    reopened = run(tmp_path, answer("Hello again."), conversation_id="c")
    assert (reopened.id, types(reopened).count("user_message")) == ("c", 2)


def test_agent_without_model_takes_the_one_of_the_settings(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"content": "From the script."}]')
    settings = Settings(model=f"scripted:{script}", max_iterations=7)
    with Conversation(None, RecordingRuntime(), tmp_path, settings=settings) as conversation:
        assert conversation.run("go", 20) == Status.IDLE
        assert conversation.limits.max_iterations == 7


def test_runtime_that_nobody_named_is_a_container_by_the_settings() -> None:
    runtime = default_runtime(Settings(image="alpine:3"), conversation_id="c")
    assert isinstance(runtime, DockerRuntime)
    assert runtime.describe()["image"] == "alpine:3"


def test_that_container_has_all_that_the_settings_say(tmp_path: Path) -> None:
    settings = Settings(
        memory="1g", pids=99, profile="strict", user="1000", env={"A": "b"}, platform="linux/arm64", git="ro",
        mounts=(f"{tmp_path}:/data",), cache="project", accept_unenforced=True,
    )  # fmt: skip
    runtime = default_runtime(settings, conversation_id="c")
    assert isinstance(runtime, DockerRuntime)
    made = runtime._options
    assert (made.limits.memory_bytes, made.limits.pids, made.limits.enforced) == (1024**3, 99, False)
    assert (made.hardening, made.user, made.env, made.git) == ("strict", "1000", {"A": "b"}, "ro")
    assert ([mount.target for mount in made.mounts], made.platform, made.cache) == (
        ["/data"],
        "linux/arm64",
        None,
    )


def test_missing_model_is_a_usage_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--model"):
        Conversation(None, RecordingRuntime(), tmp_path, settings=Settings()).start()


def test_lone_surrogates_from_the_model_leave_a_log_that_loads(tmp_path: Path) -> None:
    conversation = run(tmp_path, answer("bad \ud800 text"))
    assert data_of(conversation.events(), "assistant_message")[0]["content"] == "bad \ufffd text"


def test_closed_conversation_says_so(tmp_path: Path) -> None:
    conversation = run(tmp_path)
    conversation.close()
    with pytest.raises(UsageError, match="is closed"):
        conversation.send_message("x")


DIES_IN_A_TOOL = """
import os, signal, sys
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from tests.fakes import FakeModel, RecordingRuntime, answer, call
model = FakeModel(answer("", call("execute_bash", {"command": "deploy"}, call_id="1")))
runtime = RecordingRuntime(lambda _: os.kill(os.getpid(), signal.SIGKILL))
Conversation(Agent(model), runtime, sys.argv[1], conversation_id="c").run("go")
"""


def test_kill_while_a_tool_runs_leaves_an_unknown_outcome_and_runs_nothing_again(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", DIES_IN_A_TOOL, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    model, runtime = FakeModel(), RecordingRuntime()
    with talk(tmp_path, model, runtime, conversation_id="c") as conversation:
        assert conversation.status() is Status.IDLE
        conversation.run("what happened?", 20)
    assert [message["role"] for message in model.seen[0]] == ["system", "user", "assistant", "tool", "user"]
    assert "outcome is unknown" in model.seen[0][3]["content"]
    assert runtime.commands == []


def test_log_that_cannot_be_written_stops_the_agent_before_it_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk() -> Any:
        monkeypatch.setattr("ohsandbox.persistence.log.sync_data", fail)
        return answer("", call(BASH, {"command": "x"}))

    def fail(_: int) -> None:
        raise OSError(28, os.strerror(28))

    runtime = RecordingRuntime()
    conversation = talk(tmp_path, FakeModel(fill_disk), runtime)
    assert conversation.run("go", 20) == Status.ERROR
    assert isinstance(conversation.error, LogWriteError)
    assert runtime.commands == []
    assert types(conversation)[-1] == "system_message"
    conversation.close()


def test_retries_and_warnings_of_the_model_are_logged_and_text_is_streamed(tmp_path: Path) -> None:
    def busy() -> Any:
        for event in (RetryEvent(attempt=1, wait_s=2.0, reason="429"), WarningEvent(text="w"), DeltaEvent(text="He")):
            model.on_event(event)
        return answer("Hello.")

    model, streamed = FakeModel(busy), list[Any]()
    conversation = talk(tmp_path, model)
    conversation.register_stream(streamed.append)
    conversation.run("go", 20)
    conversation.close()
    retry = {"code": "ModelRetry", "message": "429", "attempt": 1, "wait_s": 2.0}
    assert data_of(conversation.events(), "retry") == [retry]
    assert data_of(conversation.events(), "notice") == [{"code": "ModelWarning", "message": "w"}]
    assert [event.type for event in streamed] == ["retry", "warning", "delta"]


def test_recorded_conversation_can_be_replayed(tmp_path: Path) -> None:
    turn = answer("t", call(BASH, {"command": "x"}), call("think", {"thought": "y"}))
    recorded = run(tmp_path, turn, answer("Done."))
    replayed = Conversation(Agent(ReplayLLM.load(recorded.directory)), RecordingRuntime(), tmp_path)
    assert replayed.run("go", 20) == Status.IDLE
    replayed.close()
    assert types(replayed) == types(recorded)


def test_three_hundred_steps_cost_the_same_at_the_end_as_at_the_beginning(tmp_path: Path) -> None:
    moments: list[float] = []

    def look() -> Any:
        moments.append(time.perf_counter())
        return answer("", call(BASH, {"command": "x"}))

    class Lean(FakeModel):
        def send(self, *_: Any, **__: Any) -> Any:
            return look() if len(moments) < 300 else answer("Done.")

    run_with = talk(tmp_path, Lean(), RecordingRuntime(lambda _: "x" * 2000))
    run_with.run("go", 60)
    run_with.close()
    steps = [after - before for before, after in itertools.pairwise(moments)]
    assert statistics.median(steps[-50:]) < 5 * statistics.median(steps[:50])


def test_no_descriptor_is_left_after_close(tmp_path: Path) -> None:
    run(tmp_path)
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        run(tmp_path)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_stop_from_every_callback_ends_the_run_and_stop_after_it_is_a_no_op(tmp_path: Path) -> None:
    conversation = talk(tmp_path, FakeModel(answer("", call("think", {"thought": "x"}))))
    conversation.register_callback(lambda _: (conversation.stop(), None)[1])
    assert conversation.run("go", 20) == Status.CANCELED
    assert conversation.stop() is Status.CANCELED
    conversation.close()


def test_a_log_with_events_of_a_newer_version_goes_on(tmp_path: Path) -> None:
    first = types(run(tmp_path, answer("Hello."), conversation_id="c"))
    with EventLog(tmp_path / "c", conversation_id="c") as log:
        for event_type, data in (
            ("telemetry", {"usage": [], "response_id": {}}),
            ("status_update", {"status": "DOZING"}),
        ):
            log.append(events.EventBody(event_type, data))  # a newer version's
    second = run(tmp_path, answer("Hello again."), conversation_id="c")
    assert types(second)[: len(first) + 2] == [*first, "telemetry", "status_update"]
    assert second.status() is Status.IDLE


class BoundRuntime(RecordingRuntime):
    """Bound to a directory."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self._workspace = workspace

    @property
    def host_workspace(self) -> Path:
        return self._workspace


@pytest.mark.parametrize("place", ["w/conversations", ".", "link"])
def test_a_conversation_that_the_agent_could_replace_by_a_link_is_refused_before_anything_is_written(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "link").symlink_to("w")
    root, workspace = tmp_path / place, tmp_path / "w" if place != "." else tmp_path / "c" / "w"
    workspace.mkdir(parents=True, exist_ok=True)
    conversation = Conversation(Agent(FakeModel(), []), BoundRuntime(workspace), root, conversation_id="c")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="lie in one another"):
        conversation.send_message("go")
    later = Conversation(Agent(FakeModel(), []), persist_dir=root, conversation_id="c")
    with pytest.raises(UsageError, match="lie in one another"):
        later.runtime = BoundRuntime(workspace)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ["short", "x" * 300_000])
def test_a_conversation_whose_directory_is_replaced_by_a_link_ends_and_writes_nothing_there(
    tmp_path: Path, text: str
) -> None:
    outside = tmp_path / "outside"

    def replace() -> Any:
        (tmp_path / "c").rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", outside)
        (outside / "blobs").mkdir(exist_ok=True)
        (tmp_path / "c").symlink_to(outside)
        before.update({path: path.stat().st_mtime_ns for path in outside.rglob("*")})
        return answer(text)

    before: dict[Path, int] = {}
    model = FakeModel(replace)
    with Conversation(Agent(model, []), RecordingRuntime(), tmp_path, conversation_id="c") as conversation:
        assert conversation.run("go") == Status.ERROR
        assert "its directory replaced" in str(conversation.error)
    assert {path: path.stat().st_mtime_ns for path in outside.rglob("*")} == before
    with pytest.raises(UsageError, match="symbolic link"):
        Conversation(Agent(FakeModel(), []), RecordingRuntime(), tmp_path, conversation_id="c").start()
    assert {path: path.stat().st_mtime_ns for path in outside.rglob("*")} == before
