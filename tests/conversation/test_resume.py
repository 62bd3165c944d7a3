"""What a conversation knows of its past, and how it goes on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import events
from ohsandbox.agent import Agent
from ohsandbox.agent.history import OUTCOME_UNKNOWN
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.environment.conversation_environment import ResumeState
from ohsandbox.conversation.storage import find_conversation
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.events import EventBody, ToolResult
from ohsandbox.persistence import EventLog
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.runtime.results import ResumeReport
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, stamp

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RUNNING = events.status_update(Status.RUNNING)


def called(number: int, name: str = "execute_bash", arguments: str = '{"command": "x"}') -> EventBody:
    return events.tool_call(
        tool_call_id=str(number), name=name, arguments=arguments, response_id=f"r{number}", call_index=0, total_calls=1
    )


def result(number: int, name: str = "execute_bash", **details: Any) -> EventBody:
    return events.tool_result(tool_call_id=str(number), name=name, result=ToolResult.ok("fine"), details=details)


def written(root: Path, *bodies: EventBody, name: str = "c") -> None:
    with EventLog(root / name, conversation_id=name) as log:
        for body in bodies:
            log.append(body)


class LostRuntime(RecordingRuntime):
    """Finds nothing of before."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = False
        self.asked: Sequence[str] = ()

    def resume(self, checkpoints: Sequence[str] = ()) -> ResumeReport:
        self.start()
        self.asked = checkpoints
        self.resumed = ResumeReport("new", ("A note.",), "box")
        return self.resumed


def test_the_past_knows_where_each_shell_stood_and_the_newest_checkpoint_first() -> None:
    past = ResumeState()
    bodies = [
        called(1), result(1, session="main", cwd="/a"), events.checkpoint(id="one", label=""),
        called(2), result(2, session="other", cwd="/b"), called(3), result(3, session="main", cwd="/c"),
        events.checkpoint(id="two", label=""), events.checkpoint(id=None, label="workspace only"),
    ]  # fmt: skip
    for event in stamp(*bodies):
        past.add(event)
    assert past.workdirs == {"main": "/c", "other": "/b"}
    assert past.checkpoints == ["two", "one"]


def test_a_cut_off_run_goes_on_without_a_message_and_its_call_is_answered_unknown(tmp_path: Path) -> None:
    written(tmp_path, events.user_message("go"), RUNNING, called(1), result(1), called(2))
    model, runtime = FakeModel(), RecordingRuntime()
    with Conversation.autoresume(persist_dir=tmp_path, agent=Agent(model), runtime=runtime) as conversation:
        assert conversation.resume()
        assert conversation.wait(60) == Status.IDLE
        assert not conversation.resume()
    assert runtime.commands == []
    roles = [message["role"] for message in model.seen[0]]
    assert roles == ["system", "user", *["assistant", "tool"] * 2]
    assert OUTCOME_UNKNOWN in model.seen[0][-1]["content"]
    assert data_of(conversation.events(), "notice")[0]["tool_call_id"] == "2"


def test_a_sandbox_that_is_gone_is_told_to_person_and_model(tmp_path: Path) -> None:
    kept = events.checkpoint(id="sha256:1", label="")
    written(tmp_path, events.user_message("go"), RUNNING, called(1), result(1, session="main", cwd="/a"), kept)
    model, runtime = FakeModel(), LostRuntime()
    with Conversation.autoresume("c", persist_dir=tmp_path, agent=Agent(model), runtime=runtime) as conversation:
        conversation.resume()
        conversation.wait(60)
    assert runtime.asked == ["sha256:1"]
    assert "sandbox of before is gone" in model.seen[0][-1]["content"]
    assert data_of(conversation.events(), "notice")[0]["message"] == "A note."


def test_a_sandbox_that_held_nothing_is_started_and_nothing_is_told(tmp_path: Path) -> None:
    written(tmp_path, events.user_message("go"), RUNNING)
    runtime = LostRuntime()
    with Conversation.autoresume("c", persist_dir=tmp_path, agent=Agent(FakeModel()), runtime=runtime) as conversation:
        conversation.resume()
        conversation.wait(60)
    assert runtime.resumed is None
    assert data_of(conversation.events(), "notice") == []


@pytest.mark.parametrize("last", [[], [events.status_update(Status.FINISHED)]])
def test_after_finish_nothing_goes_on_even_where_its_status_was_not_stored(
    tmp_path: Path, last: list[EventBody]
) -> None:
    finish = called(1, "finish", '{"message": "done"}')
    written(tmp_path, events.user_message("go"), RUNNING, finish, result(1, "finish"), *last)
    with Conversation.autoresume(
        "c", persist_dir=tmp_path, agent=Agent(FakeModel()), runtime=RecordingRuntime()
    ) as conversation:
        assert conversation.status() is Status.FINISHED
        assert not conversation.resume()


def test_a_shell_comes_back_in_its_directory_and_says_what_is_lost(tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    cwd = str(tmp_path / "work" / "deep")
    written(tmp_path, events.user_message("go"), RUNNING, called(1), result(1, session="main", cwd=cwd))
    model = FakeModel(answer("", call("execute_bash", {"command": "pwd"}, call_id="2"), id="n"))
    runtime = CLIRuntime(tmp_path / "work", quiet=True)
    with Conversation.autoresume("c", persist_dir=tmp_path, agent=Agent(model), runtime=runtime) as conversation:
        conversation.resume()
        conversation.wait(60)
    output = data_of(conversation.events(), "tool_result")[-1]["result"]["output"]
    assert output.startswith(f"{cwd}\n[The shell is new, in {cwd}; ")


def test_the_newest_event_decides_not_the_newest_file(tmp_path: Path) -> None:
    written(tmp_path, events.user_message("one"), name="first")
    time.sleep(0.002)
    written(tmp_path, events.user_message("two"), name="second")
    os.utime(tmp_path / "first" / "sdk_events.jsonl")
    assert find_conversation(tmp_path, None) == "second"
    assert find_conversation(tmp_path, "fi") == "first"
    with pytest.raises(UsageError, match="sub-agent"):
        find_conversation(tmp_path, "first/x")
