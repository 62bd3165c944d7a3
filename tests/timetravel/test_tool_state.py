from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime, events
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage import read_stored
from ohsandbox.persistence import read_events
from ohsandbox.persistence.layout import TOOL_SNAPSHOTS_NAME
from ohsandbox.timetravel import fork as forks
from ohsandbox.timetravel import tool_state
from ohsandbox.timetravel.fork import TOOLS_UNKNOWN, fork
from ohsandbox.timetravel.turns import seq_before_turns
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of
from tests.timetravel.test_fork import KeepingRuntime, bash

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.llm import ChatResponse

TOOLS = ["execute_bash", "file_editor", "task_tracker", "delegate", "finish"]


def plan(*titles: str) -> ChatResponse:
    return answer("", call("task_tracker", {"command": "plan", "task_list": [{"title": title} for title in titles]}))


def edit(command: str, **arguments: Any) -> ChatResponse:
    return answer("", call("file_editor", {"command": command, "path": "/workspace/f", **arguments}))


def replace(old: str, new: str) -> ChatResponse:
    return edit("str_replace", old_str=old, new_str=new)


def delegate(*work: ChatResponse) -> list[ChatResponse]:
    """A sub-agent that works so, and ends."""
    asked = answer("", call("delegate", {"task": "t", "name": "helper"}))
    return [asked, *work, answer("", call("finish", {"message": "done"}))]


def titles(directory: Path) -> list[str]:
    path = directory / "tools" / "task_tracker" / "TASKS.json"
    return [task["title"] for task in json.loads(path.read_bytes())] if path.exists() else []


def agents(directory: Path) -> list[str]:
    return read_stored(directory).sub_agents


@pytest.mark.docker
def test_a_fork_has_undo_tasks_and_sub_agents_of_then_and_shares_none(tmp_path: Path) -> None:
    model = FakeModel(
        *(plan("a"), edit("create", file_text="one\n"), replace("one", "two"), *delegate(plan("its own")), answer("1")),
        *(plan("a", "b"), replace("two", "three"), *delegate(), answer("2")),
    )
    with Conversation(Agent(model, TOOLS), DockerRuntime("ohsandbox-base:debian"), tmp_path, checkpoints=True) as first:
        first.run("first")
        first.run("second")
        assert [result["status"] for result in results_of(first)] == ["ok"] * 7
        then, now = first.fork(seq_before_turns(first.directory, 1)), first.fork()
        assert (titles(then.directory), titles(now.directory)) == (["a"], ["a", "b"])
        assert (agents(then.directory), agents(now.directory)) == (["helper-1"], ["helper-1", "helper-2"])
        assert titles(then.directory / "agents" / "helper-1") == ["its own"]
        for forked, undone in ((then, ["one\n", "no f"]), (now, ["two\n", "one\n"])):
            show = bash("cat f 2>/dev/null || echo no f")
            forked.agent = Agent(FakeModel(edit("undo_edit"), show, edit("undo_edit"), show, plan("mine")), TOOLS)
            with forked:
                forked.run("undo")
                outputs = [str(result["output"]) for result in results_of(forked)[-5:]]
                assert [outputs[1].startswith(undone[0]), outputs[3].startswith(undone[1])] == [True, True], outputs
        first.agent.llm.turns = [edit("undo_edit")]  # type: ignore[union-attr]
        first.run("undo")
        assert results_of(first)[-1]["status"] == "ok"
        assert titles(first.directory) == ["a", "b"]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One turn that writes between two plans, and one that only plans."""
    monkeypatch.setattr(forks, "_keep_images", lambda target, found: None)  # noqa: ARG005 - no engine
    runtime = KeepingRuntime()
    runtime.files["/workspace/f"] = b"one\n"
    model = FakeModel(plan("1"), replace("one", "two"), plan("1", "2"), answer(), plan("1", "2", "3"), answer("ok"))
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, conversation_id="c", checkpoints=True) as conversation:
        conversation.run("first")
        conversation.run("second")
    return tmp_path / "c"


def _tool_results(directory: Path, name: str) -> list[int]:
    return [e.seq for e in read_events(directory) if e.type == "tool_result" and e.data["name"] == name]


def test_the_task_list_is_that_of_the_event_also_between_checkpoints(stored: Path) -> None:
    for number, seq in enumerate(_tool_results(stored, "task_tracker"), start=1):
        assert len(titles(fork(stored, seq).directory)) == number
        assert len(titles(fork(stored, seq - 1).directory)) == number - 1
    assert titles(fork(stored, -1).directory) == []


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '"plan"', ""])
def test_a_call_with_arguments_that_are_no_object_does_not_stand_in_the_way(arguments: str) -> None:
    called: Any = events.tool_call(
        tool_call_id="1", name="task_tracker", arguments="{}", response_id="r", call_index=0, total_calls=1
    )
    called.data["arguments"] = arguments  # a log that another program has written
    assert tool_state._last_plan([called]) is None


def test_a_fork_of_a_fork_goes_back_before_the_first_fork(stored: Path) -> None:
    (edited,) = _tool_results(stored, "file_editor")
    forked = fork(stored, edited).directory
    shutil.rmtree(stored)
    assert [path.suffix for path in (fork(forked, edited).directory / "tools" / "file_editor").glob("0*")] == [".edit"]
    assert not list((fork(forked, edited - 2).directory / "tools").glob("file_editor/0*"))


@pytest.mark.parametrize("lost", ["snapshots", "field"])
def test_a_fork_says_where_it_does_not_know_what_the_tools_kept(stored: Path, lost: str) -> None:
    if lost == "snapshots":
        shutil.rmtree(stored / TOOL_SNAPSHOTS_NAME)
    else:
        (stored / TOOL_SNAPSHOTS_NAME / "000002.json").write_text("{}")
    (edited,) = _tool_results(stored, "file_editor")
    forked = fork(stored, edited)
    (notice,) = data_of(read_events(forked.directory), "notice")
    assert notice["message"].endswith(TOOLS_UNKNOWN)
    assert [path.name for path in (forked.directory / "tools").iterdir()] == ["task_tracker"]
    runtime = RecordingRuntime()
    runtime.files["/workspace/f"] = b"two\n"
    agent = Agent(FakeModel(edit("undo_edit"), replace("two", "three")), TOOLS)
    with Conversation(agent, runtime, stored.parent, conversation_id=forked.id) as again:
        again.run("undo")
        assert [result["status"] for result in results_of(again)[-2:]] == ["error", "ok"]
