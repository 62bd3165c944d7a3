"""What `run` and `wait` return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus, StatusUpdateEvent, UserMessageEvent
from tests.fakes import FakeModel, RecordingRuntime, answer, call
from tests.timetravel.test_undo import BoundRuntime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes import Turn


def talk(
    tmp_path: Path, *turns: Turn, tools: tuple[str, ...] = ("execute_bash", "file_write", "finish")
) -> Conversation:
    agent = Agent(FakeModel(*turns), tools=tools)
    return Conversation(agent, RecordingRuntime(), tmp_path / "conversations")


def test_result_equals_its_status_and_no_other(tmp_path: Path) -> None:
    with talk(tmp_path, answer("Hello.")) as conversation:
        result = conversation.run("go", 20)
    assert result == ConversationStatus.IDLE
    assert result != ConversationStatus.FINISHED
    assert result.status is ConversationStatus.IDLE
    assert {ConversationStatus.IDLE: 1}[result] == 1  # type: ignore[index]
    assert result.error is None


def test_answer_usage_and_events_are_those_of_this_run_alone(tmp_path: Path) -> None:
    look = answer("", call("execute_bash", {"command": "ls"}), id="r1")
    with talk(tmp_path, look, answer("One.", id="r2"), answer("Two.", id="r3")) as conversation:
        first, second = conversation.run("go", 20), conversation.run("again", 20)
        assert (first.answer, second.answer) == ("One.", "Two.")
        assert (first.usage.prompt_tokens, second.usage.prompt_tokens) == (20, 10)
        assert (first.usage.completion_tokens, first.cost_usd, second.cost_usd) == (10, 0.5, 0.25)
        assert [*first.events, *second.events] == conversation.events()
    for result in (first, second):
        assert isinstance(result.events[0], UserMessageEvent)
        assert isinstance(result.events[-1], StatusUpdateEvent)


def test_message_of_finish_is_the_answer(tmp_path: Path) -> None:
    with talk(tmp_path, answer("So.", call("finish", {"message": "All is done."}))) as conversation:
        result = conversation.run("go", 20)
    assert (result.status, result.answer) == (ConversationStatus.FINISHED, "All is done.")


def test_run_without_words_and_prices_says_so(tmp_path: Path) -> None:
    with talk(tmp_path, OSError("gone")) as conversation:
        result = conversation.run("go", 20)
        assert (result.status, result.answer, result.cost_usd) == (ConversationStatus.ERROR, None, None)
        assert isinstance(result.error, OSError)


def test_changed_files_are_those_that_successful_edits_named_once_each(tmp_path: Path) -> None:
    write = answer("", *(call("file_write", {"path": path, "content": "x"}) for path in ("a.py", "/tmp/b", "./a.py")))
    refused = answer("", call("file_write", {"path": "c.py"}), call("execute_bash", {"command": "touch d"}))
    with talk(tmp_path, write, refused) as conversation:
        assert conversation.run("go", 20).changed_files == ("/workspace/a.py", "/tmp/b")
        assert conversation.run("more", 20).changed_files == ()


def test_changed_files_of_a_bound_directory_are_those_of_commands_too(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "old").write_text("1")
    runtime = BoundRuntime(work, [lambda root: (root / "old").write_text("2"), lambda root: (root / "new").touch()])
    calls = [answer("", call("execute_bash", {"command": number})) for number in "01"]
    turns = [calls[0], answer("ok"), calls[1], answer("ok")]
    with Conversation(Agent(FakeModel(*turns), ["execute_bash"]), runtime, tmp_path, checkpoints=True) as conversation:
        assert conversation.run("go", 20).changed_files == ("/workspace/old",)
        (work / "of the user").write_text("")
        assert conversation.run("more", 20).changed_files == ("/workspace/new",)
        assert conversation.run("nothing", 20).changed_files == ()


def test_wait_of_a_resumed_conversation_is_about_what_came_since(tmp_path: Path) -> None:
    with talk(tmp_path, answer("One.")) as conversation:
        conversation.run("go", 20)
    again = Conversation(
        Agent(FakeModel()), RecordingRuntime(), tmp_path / "conversations", conversation_id=conversation.id
    )
    assert again.wait(60).events == ()
    with again:
        assert (again.wait(60).events, again.wait(60).answer) == ((), None)


def test_result_of_a_log_that_was_deleted_says_so(tmp_path: Path) -> None:
    with talk(tmp_path) as conversation:
        result = conversation.run("go", 20)
    (conversation.directory / "sdk_events.jsonl").unlink()
    with pytest.raises(UsageError, match="No such file"):
        _ = result.answer
