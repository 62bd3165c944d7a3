from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.errors import UsageError
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "ohsandbox-base:debian"


def _model(*commands: str) -> FakeModel:
    turns = [(answer("", call("execute_bash", {"command": one})), answer("ok")) for one in commands]
    return FakeModel(*(turn for pair in turns for turn in pair))


def _begin(root: Path, *commands: str, workspace: Path | None = None) -> Conversation:
    runtime = DockerRuntime(IMAGE, workspace=workspace)
    return Conversation(Agent(_model(*commands), ["execute_bash"]), runtime, root, checkpoints=True)


@pytest.mark.docker
def test_undo_and_redo_of_a_workspace_go_back_and_forth(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("mine")
    with _begin(tmp_path / "c", "echo one >a", "echo two >>a", "cat a", workspace=work) as conversation:
        conversation.run("first")
        conversation.run("second")
        assert b"+two" in conversation.diff()
        earlier = conversation.undo()
        assert (work / "a").read_text() == "one\n"
    with earlier:
        earlier.run("third")
        assert [data["content"] for data in data_of(earlier.events(), "user_message")] == ["first", "third"]
        assert data_of(earlier.events(), "tool_result")[-1]["result"]["output"].startswith("one\n")
        later = earlier.redo()
        assert later.id == conversation.id
        assert (work / "a").read_text() == "one\ntwo\n"
    assert (work / "mine").read_text() == "mine"


@pytest.mark.docker
def test_undo_in_a_container_gives_a_sandbox_with_the_files_of_then(tmp_path: Path) -> None:
    with _begin(tmp_path, "echo one >a", "echo two >>a", "cat a") as conversation:
        conversation.run("first")
        before_second = conversation.events()[-1]
        conversation.run("second")
        assert conversation.diff(since=before_second).count(b"\n+two") == 1
        earlier = conversation.undo()
    with earlier:
        earlier.run("look")
        result = data_of(earlier.events(), "tool_result")[-1]["result"]["output"]
        assert result.startswith("one\n")
        (told,) = [data["message"] for data in data_of(earlier.events(), "notice") if data["code"] == "Resumed"]
        assert "The user went to this point" in told


@pytest.mark.slow
@pytest.mark.docker
def test_what_undo_leaves_alone_is_told_in_the_new_conversation(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with _begin(tmp_path / "c", "echo one >a", workspace=work) as conversation:
        conversation.run("first")
        (work / "a").write_text("mine\n")
        earlier = conversation.undo()
    (told,) = [data["message"] for data in data_of(earlier.events(), "notice") if data["code"] == "LeftAlone"]
    assert "'a'" in told
    assert (work / "a").read_text() == "mine\n"


def test_what_was_not_kept_cannot_be_undone(tmp_path: Path) -> None:
    with Conversation(Agent(FakeModel(), []), RecordingRuntime(), tmp_path) as conversation:
        conversation.run("one")
        with pytest.raises(UsageError, match="cannot be undone"):
            conversation.undo()
        with pytest.raises(UsageError, match="has 1"):
            conversation.undo(2)
        with pytest.raises(UsageError, match="not made by `ohsandbox undo`"):
            conversation.redo()
        with pytest.raises(UsageError, match="turns"):
            conversation.undo("1")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.docker
def test_a_sandbox_that_is_handed_over_is_resumed_by_its_new_conversation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path))
    with DockerRuntime(IMAGE, conversation="before") as sandbox:
        sandbox.execute("echo here >/tmp/mark")
        sandbox.hand_over("after")
        sandbox.leave()
    other = DockerRuntime(IMAGE, conversation="before")
    try:
        assert other.resume().how == "new"
    finally:
        other.close()
    after = DockerRuntime(IMAGE, conversation="after")
    try:
        assert after.resume().how == "same"
        assert after.name == sandbox.name
        assert after.execute("cat /tmp/mark").output == "here\n"
    finally:
        after.close()
