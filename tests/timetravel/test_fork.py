from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime, events
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage.catalog import list_stored
from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.persistence import LOG_NAME, EventLog, read_events
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.results import Checkpoint
from ohsandbox.secrets import Secrets
from ohsandbox.timetravel import fork as forks
from ohsandbox.timetravel.checkpoints import find_checkpoint
from ohsandbox.timetravel.fork import fork
from ohsandbox.timetravel.turns import seq_before_turns
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of, results_of

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.llm import ChatResponse

TOOLS = ["execute_bash", "file_read"]
LONG = "x" * 300_000


class KeepingRuntime(RecordingRuntime):
    """Keeps checkpoints by name only."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.labels: list[str] = []

    @property
    def keeps_checkpoints(self) -> bool:
        return True

    def checkpoint(self, label: str = "", *, owner: Path | None = None) -> Checkpoint:  # noqa: ARG002 - a fake
        from datetime import UTC, datetime  # noqa: PLC0415 - the one place

        if self.fault is not None:
            raise self.fault
        self.labels.append(label)
        return Checkpoint(f"c{len(self.labels)}", label, datetime.now(UTC), 0)


def bash(command: str) -> ChatResponse:
    return answer("", call("execute_bash", {"command": command}))


def _types(conversation: Conversation) -> list[str]:
    return [event.type for event in conversation.events()]


def test_files_are_kept_before_the_first_change_of_a_turn_and_after_the_last(tmp_path: Path) -> None:
    runtime = KeepingRuntime()
    runtime.files["/f"] = b"x"
    model = FakeModel(answer("", call("file_read", {"path": "/f"})), bash("a"), bash("b"), answer("ok"))
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, checkpoints=True) as conversation:
        conversation.run("go")
        kinds = [kind for kind in _types(conversation) if kind in {"checkpoint", "tool_call"}]
        assert kinds == ["tool_call", "checkpoint", "tool_call", "tool_call", "checkpoint"]
        model.turns = [answer("only words")]
        conversation.run("and?")
        assert len(runtime.labels) == 2


@pytest.mark.parametrize("asked", [None, False])
def test_nothing_is_kept_unless_it_was_asked_for(tmp_path: Path, asked: bool | None) -> None:  # noqa: FBT001
    runtime = KeepingRuntime()
    model = FakeModel(bash("a"), answer("ok"))
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, checkpoints=asked) as conversation:
        conversation.run("go")
        assert runtime.labels == []
        with pytest.raises(UsageError, match="No files are kept: checkpoints are off"):
            conversation.fork(2)


def test_what_cannot_be_kept_is_told_once_a_turn_and_the_work_goes_on(tmp_path: Path) -> None:
    runtime = KeepingRuntime(SandboxUnavailable("no space left"))
    model = FakeModel(bash("a"), bash("b"), answer("ok"))
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, checkpoints=True) as conversation:
        conversation.run("go")
        assert runtime.commands == ["a", "b"]
        (notice,) = data_of(conversation.events(), "notice")
        assert notice["code"] == "CheckpointFailed"
        assert "no space left" in notice["message"]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversation of two turns with a long text in it; its images are not looked for."""
    monkeypatch.setattr(forks, "_keep_images", lambda target, found: None)  # noqa: ARG005 - no engine
    runtime = KeepingRuntime()
    runtime.on_execute = lambda _: LONG
    model = FakeModel(bash("a"), answer(LONG), bash("b"), answer("ok"))
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, conversation_id="c", checkpoints=True) as conversation:
        conversation.run("first")
        conversation.run("second")
    return tmp_path / "c"


def test_a_fork_holds_the_same_events_sealed_as_its_own_and_shares_no_file(stored: Path) -> None:
    before = (stored / LOG_NAME).read_bytes()
    at = next(event.seq for event in read_events(stored) if event.type == "assistant_message")
    forked = fork(stored, at)
    assert (stored / LOG_NAME).read_bytes() == before
    shutil.rmtree(stored / "blobs")
    own = read_events(forked.directory)
    assert {event.conversation_id for event in own} == {forked.id}
    assert [event.seq for event in own] == list(range(at + 3))
    assert own[at].data["content"] == LONG
    assert own[-2].data["conversation_id"] == "c"
    assert own[-1].data["id"] == find_checkpoint(stored, at).data["id"]
    with Conversation(Agent(FakeModel(), TOOLS), RecordingRuntime(), stored.parent, conversation_id=forked.id) as again:
        again.run("go on")
        assert [each["content"] for each in data_of(again.events(), "user_message")][:2] == ["first", "go on"]


def test_a_malformed_revocation_revokes_all_in_a_fork_too_and_a_malformed_approval_is_none(stored: Path) -> None:
    scope = {"kind": "tool", "tool": "file_read"}
    with EventLog(stored, conversation_id="c") as log:
        log.append(events.approval(number=1, scope=scope, text="", by="ann"))
        log.append(events.EventBody("approval", {}))
        at = log.append(events.checkpoint(id="c9", label="", workspace=None, size_bytes=0)).seq
        log.append(events.EventBody("approval_revoked", {}))
    own = read_events(fork(stored, at).directory)
    assert [event.data["number"] for event in own if event.type == "approval_revoked"] == [1]


@pytest.mark.parametrize(("turns", "kept"), [(1, ["first"]), (2, [])])
def test_turns_are_counted_by_what_the_person_said(stored: Path, turns: int, kept: list[str]) -> None:
    forked = fork(stored, seq_before_turns(stored, turns))
    assert [data["content"] for data in data_of(read_events(forked.directory), "user_message")] == kept


@pytest.mark.parametrize("turns", [0, 3])
def test_turns_that_never_were_cannot_be_undone(stored: Path, turns: int) -> None:
    with pytest.raises(UsageError, match=f"{turns} turns cannot be undone"):
        seq_before_turns(stored, turns)


def test_a_fork_where_the_files_were_not_kept_is_refused_and_leaves_nothing(stored: Path) -> None:
    at = next(event.seq for event in read_events(stored) if event.type == "tool_call")
    with pytest.raises(UsageError, match=rf"The files after event {at} .* for events 0-{at - 1}, "):
        fork(stored, at)
    with pytest.raises(UsageError, match="Invalid event 99"):
        fork(stored, 99)
    assert [path.name for path in stored.parent.glob("[!.]*")] == ["c"]


def test_a_fork_that_is_killed_leaves_no_conversation_and_the_next_one_removes_the_rest(stored: Path) -> None:
    at = next(event.seq for event in read_events(stored) if event.type == "assistant_message")
    script = (
        "import os, signal, sys, pathlib; from ohsandbox.timetravel import fork\n"
        "fork._keep_images = lambda *_: None  # there is no engine\n"
        "fork._copy_agents = lambda *_: os.kill(os.getpid(), getattr(signal, sys.argv[3]))\n"
        "print(fork.fork(pathlib.Path(sys.argv[1]), int(sys.argv[2])).id, flush=True)"
    )
    command = [sys.executable, "-c", script, str(stored), str(at)]
    assert subprocess.run([*command, "SIGKILL"], check=False).returncode == -signal.SIGKILL
    [leftover] = stored.parent.glob(".unfinished-*")
    assert [one.id for one in list_stored(stored.parent)] == ["c"]
    with subprocess.Popen([*command, "SIGSTOP"], stdout=subprocess.PIPE, text=True) as stopped:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        [unfinished] = set(stored.parent.glob(".unfinished-*")) - {leftover}
        assert not leftover.exists()
        forked = fork(stored, at)
        assert {one.id for one in list_stored(stored.parent)} == {"c", forked.id}
        assert unfinished.exists()
        stopped.send_signal(signal.SIGCONT)
        assert stopped.stdout is not None
        other = stopped.stdout.read().strip()
    assert {one.id for one in list_stored(stored.parent)} == {"c", forked.id, other}
    assert [*stored.parent.glob(".unfinished-*")] == []


@pytest.mark.docker
def test_a_fork_whose_image_is_gone_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = FakeModel(bash("echo x > f"), answer("ok"))
    runtime = DockerRuntime("ohsandbox-base:debian")
    with Conversation(Agent(model, TOOLS), runtime, tmp_path, conversation_id="c", checkpoints=True) as conversation:
        conversation.run("go")
        engine = connect()
        for data in data_of(conversation.events(), "checkpoint"):
            checkpoint_images.drop(engine, data["id"])
        engine.close()
        with pytest.raises(ImageUnavailable, match="does not exist any more"):
            conversation.fork(0)
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["c"]


@pytest.mark.docker
@pytest.mark.parametrize("bound", [False, True])
def test_a_fork_has_conversation_and_files_as_they_were_and_neither_touches_the_other(
    tmp_path: Path, *, bound: bool
) -> None:
    workspace = tmp_path / "w" if bound else None
    if workspace is not None:
        workspace.mkdir()
    model = FakeModel(
        bash("echo one > f; mkdir d; touch d/x"), answer("ok"), bash("echo two > f; rm -r d"), answer("2")
    )
    runtime = DockerRuntime("ohsandbox-base:debian", workspace=workspace)
    with Conversation(Agent(model, TOOLS), runtime, tmp_path / "c", checkpoints=True) as conversation:
        conversation.run("first")
        conversation.run("second")
        places = [tmp_path / "then", tmp_path / "now"] if bound else [None, None]
        then = conversation.fork(seq_before_turns(conversation.directory, 1), workspace=places[0])
        now = conversation.fork(workspace=places[1])
        for forked, shown in ((then, "one\nd\nd/x\nf\n"), (now, "two\nf\n")):
            forked.agent = Agent(FakeModel(bash("cat f; find * | sort; echo mine > f"), answer("ok")), TOOLS)
            with forked:
                forked.run("look")
                assert forked.error is None
                assert str(results_of(forked)[-1]["output"]).startswith(shown)
        assert runtime.run(["cat", "f"]).stdout == b"two\n"


@pytest.mark.docker
def test_a_person_changing_a_bound_workspace_between_turns_is_seen(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    model = FakeModel(bash("echo one > f"), answer("ok"), bash("echo two > f"), answer("ok"))
    runtime = DockerRuntime("ohsandbox-base:debian", workspace=workspace)
    with Conversation(Agent(model, TOOLS), runtime, tmp_path / "c", checkpoints=True) as conversation:
        conversation.run("first")
        (workspace / "f").write_text("by hand")
        conversation.run("second")
        said = [event.seq for event in conversation.events() if event.type == "user_message"][-1]
        conversation.fork(said, workspace=tmp_path / "fork")
    assert (tmp_path / "fork" / "f").read_text() == "by hand"


class ForkingRuntime(KeepingRuntime):
    """Its forks are runtimes like it."""

    def fork(self, checkpoint: str, **_: object) -> RecordingRuntime:
        self.log.append(f"fork {checkpoint}")
        return RecordingRuntime()


def test_a_fork_asks_and_hides_as_the_conversation_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_keep_images", lambda target, found: None)  # noqa: ARG005 - no engine
    runtime = ForkingRuntime()
    secrets = Secrets({"TOKEN": "s3cret-value"})
    options: dict[str, Any] = {"confirmation": "always", "secrets": secrets, "user_id": "u", "tool_choice": "required"}
    agent = Agent(FakeModel(bash("a"), answer("ok"), bash("b")), TOOLS)
    with Conversation(agent, runtime, tmp_path, checkpoints=True, **options) as conversation:
        conversation.run("go")
        conversation.confirm()
        conversation.wait()
        forked = conversation.fork()
        assert runtime.log == ["fork c2"]
    with forked:
        assert forked.run("again") == ConversationStatus.WAITING_FOR_CONFIRMATION
        assert (forked.user_id, forked.secrets.names) == ("u", ("TOKEN",))
        assert agent.llm.choices[-1] == "required"  # type: ignore[union-attr]


def test_a_workspace_that_holds_something_is_not_given_to_a_fork(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(UsageError, match="is not empty"):
        forks.empty_directory(tmp_path)
