"""Standing approvals: what they let pass, and that it is no more than they say."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.agent import ActionSecurityRisk, Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.approvals.decisions import Decision
from ohsandbox.conversation.approvals.scopes import (
    AnyCall,
    EditsUnder,
    ExactCall,
    PendingCall,
    StandingApprovals,
    covers,
    offers,
)
from ohsandbox.conversation.storage import delete_stored
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus as Status
from ohsandbox.events import SDKEvent
from ohsandbox.events.event import unchecked
from ohsandbox.runtime.local import CLIRuntime
from ohsandbox.tool import CallHint
from ohsandbox.tools import hint_of
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

BASH = "execute_bash"
LOW, HIGH, UNKNOWN = ActionSecurityRisk.LOW, ActionSecurityRisk.HIGH, ActionSecurityRisk.UNKNOWN
GIT_STATUS = ExactCall(tool=BASH, arguments={"command": "git status"})
SRC = EditsUnder(directory="/workspace/src")


def bash(command: str, **arguments: Any) -> Any:
    return call(BASH, {"command": command, **arguments})


def talk(tmp_path: Path, *turns: Any, runtime: Runtime | None = None, **options: Any) -> Conversation:
    return Conversation(
        Agent(FakeModel(*turns)),
        runtime or RecordingRuntime(),
        tmp_path,
        conversation_id="c",
        **{"confirmation": "always"} | options,
    )


def candidate_of(
    name: str, arguments: dict[str, Any], risk: ActionSecurityRisk = LOW, why: tuple[str, ...] = ()
) -> PendingCall:
    return PendingCall("1", name, arguments, risk, why, hint_of(name, {"arguments": json.dumps(arguments)}))


def write(path: str, risk: ActionSecurityRisk = LOW, name: str = "file_write", **arguments: Any) -> PendingCall:
    return candidate_of(name, {"path": path, **arguments}, risk)


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "git status "},
        {"command": "git status; rm -rf /root"},
        {"command": "git status\nrm -rf /root"},
        {"command": "git -c core.fsmonitor=./x status"},
        {"command": "git  status"},
        {"command": "git status", "reset": True},
        {"command": "git status", "is_input": True},
        {"command": "git status", "timeout": 5},
        {"command": "git status\r"},
        {"command": "git status", "security_risk": "LOW"},
        {},
    ],
    ids=str,
)
def test_an_exact_call_covers_no_other(arguments: dict[str, Any]) -> None:
    assert not covers(GIT_STATUS, candidate_of(BASH, arguments, LOW))
    assert not covers(GIT_STATUS, candidate_of("other", {"command": "git status"}, LOW))


def test_an_exact_call_covers_itself_whatever_its_risk() -> None:
    for risk in (LOW, HIGH, UNKNOWN):
        assert covers(GIT_STATUS, candidate_of(BASH, {"command": "git status"}, risk))


def test_keys_for_a_running_program_are_no_call_to_be_repeated() -> None:
    keys = candidate_of(BASH, {"command": "y", "is_input": True}, LOW)
    assert not covers(ExactCall(tool=BASH, arguments=keys.arguments), keys)


def test_every_call_of_a_tool_leaves_out_what_is_high_or_hidden() -> None:
    scope = AnyCall(tool=BASH)
    assert covers(scope, candidate_of(BASH, {"command": "ls"}, LOW))
    assert not covers(scope, candidate_of(BASH, {"command": "ls"}, HIGH))
    assert not covers(scope, candidate_of(BASH, {"command": "ls \u202e"}, LOW))
    assert not covers(scope, candidate_of("execute_bash_2", {"command": "ls"}, LOW))


@pytest.mark.parametrize(
    ("candidate", "covered"),
    [
        (write("/workspace/src/a.py"), True),
        (write("/workspace/src/deep/./a.py", name="edit_file"), True),
        (write("//workspace//src/a.py"), True),
        (write("/workspace/src/a.py", name="file_editor", command="create"), True),
        (write("/workspace/src/a.py", name="file_editor", command="view"), False),
        (write("/workspace/src/a.py", HIGH), False),
        (write("/workspace/src"), False),
        (write("/workspace/srcs/a.py"), False),
        (write("/workspace/src/../a.py"), False),
        (write("/workspace/src/x/../../../etc/passwd"), False),
        (write("src/a.py"), False),
        (write("/workspace/src/a\u200b.py"), False),
        (write("/workspace/src/a.py", name="other__write"), False),
        (candidate_of(BASH, {"command": "echo", "path": "/workspace/src/a.py"}, LOW), False),
        (candidate_of("file_write", {"path": ["/workspace/src/a.py"]}, LOW), False),
    ],
    ids=str,
)
def test_edits_under_a_directory(candidate: PendingCall, covered: bool) -> None:  # noqa: FBT001 - a case
    assert covers(SRC, candidate) is covered


def test_what_is_offered_covers_the_call_itself() -> None:
    assert offers(candidate_of(BASH, {"command": "ls"})) == [
        ExactCall(tool=BASH, arguments={"command": "ls"}), AnyCall(tool=BASH),
    ]  # fmt: skip
    assert offers(candidate_of(BASH, {"command": "ls"}, HIGH)) == [ExactCall(tool=BASH, arguments={"command": "ls"})]
    written = {"path": "/workspace/src/a.py", "content": "x"}
    assert offers(candidate_of("file_write", written)) == [ExactCall(tool="file_write", arguments=written), SRC]
    assert offers(candidate_of(BASH, {"command": "ls\r"}, HIGH)) == []
    assert offers(candidate_of(BASH, {"command": "y", "is_input": True})) == [AnyCall(tool=BASH)]
    assert offers(candidate_of(BASH, {"command": "ls"}, why=("The tool is set to ask each time.",))) == []


def test_edits_of_a_plug_in_tool_are_approved_by_its_name_and_not_with_those_of_ours() -> None:
    call = PendingCall(
        "1", "my_patch", {"target": "/workspace/src/a"}, LOW, (), CallHint(kind="edit", subject="target")
    )
    scope = offers(call)[1]
    assert scope == EditsUnder(directory="/workspace/src", tools=("my_patch",))
    assert "with my_patch of every file below /workspace/src" in str(scope)
    assert covers(scope, call)
    assert not covers(scope, call._replace(hint=CallHint(subject="target")))
    assert not covers(SRC, call)


def test_an_approval_of_edits_in_an_older_log_covers_the_tools_that_its_question_named() -> None:
    data = {"number": 1, "by": "ada", "scope": {"kind": "edits", "directory": "/workspace/src"}}
    standing = StandingApprovals()
    standing.add(stored("approval", **data))
    assert [one.scope for one in standing.in_force] == [SRC]
    assert standing.covering(write("/workspace/src/a.py"))
    hint = CallHint(kind="edit", subject="path")
    assert not standing.covering(write("/workspace/src/a.py", name="my_write")._replace(hint=hint))


def test_an_approved_call_runs_unasked_and_the_log_says_by_which_approval(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    turns = [answer("", bash(word)) for word in ("git status", "git status", "git status; id")]
    with talk(tmp_path, *turns, answer("ok"), runtime=runtime) as conversation:
        assert conversation.run("go", 20) == Status.WAITING_FOR_CONFIRMATION
        conversation.confirm(by="ada", scope=GIT_STATUS)
        assert conversation.wait(60) == Status.WAITING_FOR_CONFIRMATION
        assert runtime.commands == ["git status", "git status"]
        assert [data.get("approval") for data in data_of(conversation.events(), "tool_call")] == [None, 1, None]
        [said] = data_of(conversation.events(), "approval")
        assert (said["number"], said["by"], said["scope"]["arguments"]) == (1, "ada", {"command": "git status"})
        assert data_of(conversation.events(), "confirmation")[0]["approval"] == 1
        assert [one.arguments["command"] for one in conversation.pending] == ["git status; id"]


def test_approvals_hold_after_a_restart_and_a_revoked_one_lets_nothing_pass(tmp_path: Path) -> None:
    with talk(tmp_path, answer("hello")) as conversation:
        conversation.run("go", 20)
        assert conversation.approve(AnyCall(tool=BASH), by="ada").number == 1
        assert conversation.approve(SRC, by="ada").number == 2
    runtime = RecordingRuntime()
    with talk(tmp_path, answer("", bash("ls")), answer("ok"), answer("", bash("id")), runtime=runtime) as conversation:
        assert [one.number for one in conversation.approvals] == [1, 2]
        assert conversation.run("go", 20) == Status.IDLE
        assert runtime.commands == ["ls"]
        conversation.revoke(1)
        assert [one.scope for one in conversation.approvals] == [SRC]
        assert conversation.run("go", 20) == Status.WAITING_FOR_CONFIRMATION
        assert runtime.commands == ["ls"]
        with pytest.raises(UsageError, match=r"Approval 1 is not in force. In force: 2\."):
            conversation.revoke(1)
        assert conversation.approve(AnyCall(tool="x")).number == 3


def test_a_call_that_waits_by_a_revoked_approval_waits_for_a_person(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    turns = [answer("both", bash("ls"), bash("id")), answer("ok")]
    with talk(tmp_path, *turns, runtime=runtime) as conversation:
        conversation.approve(ExactCall(tool=BASH, arguments={"command": "ls"}))
        conversation.run("go", 20)
        assert [one.arguments["command"] for one in conversation.pending] == ["id"]
        conversation.revoke(1)
        assert [one.arguments["command"] for one in conversation.pending] == ["ls", "id"]
        conversation.reject("no", [conversation.pending[0].tool_call_id])
        conversation.confirm()
        conversation.wait(60)
    assert runtime.commands == ["id"]


def test_a_scope_that_does_not_cover_the_call_allows_nothing(tmp_path: Path) -> None:
    with talk(tmp_path, answer("", bash("rm -rf x"))) as conversation:
        conversation.run("go", 20)
        with pytest.raises(UsageError, match="does not cover"):
            conversation.confirm(scope=GIT_STATUS)
        assert conversation.approvals == []
        assert len(conversation.pending) == 1


def test_a_call_with_hidden_characters_cannot_be_approved_for_later(tmp_path: Path) -> None:
    with talk(tmp_path, answer("", bash("ls\r"))) as conversation:
        conversation.run("go", 20)
        with pytest.raises(UsageError):
            conversation.approve(ExactCall(tool=BASH, arguments={"command": "ls\r"}))
        with pytest.raises(UsageError):
            conversation.confirm(scope=ExactCall(tool=BASH, arguments={"command": "ls\r"}))
        for directory in ("src", "/a/../b", "/a/", "/a\u200b"):
            with pytest.raises(UsageError):
                conversation.approve(EditsUnder(directory=directory))
        assert conversation.approvals == []


def test_a_callback_may_answer_with_a_scope(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    asked: list[str] = []

    def allow(waiting: Any) -> Decision:
        asked.append(waiting[0].arguments["command"])
        return Decision(approved=True, scope=AnyCall(tool=BASH))

    turns = [answer("", bash("ls")), answer("", bash("id")), answer("ok")]
    with talk(tmp_path, *turns, runtime=runtime, confirm=allow) as conversation:
        assert conversation.run("go", 20) == Status.IDLE
    assert (asked, runtime.commands) == (["ls"], ["ls", "id"])


def test_an_edit_through_a_link_is_asked_about(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    (work / "src" / "new").mkdir(parents=True)
    (work / "src" / "new" / "a").write_text("old")
    outside.mkdir()
    (work / "src" / "link").symlink_to(outside)
    (work / "src" / "file").symlink_to(outside / "file")
    (outside / "kept").write_text("mine")
    (work / "src" / "hard").hardlink_to(outside / "kept")
    paths = [work / "src" / name for name in ("new/a", "link/b", "file", "hard")]
    turns = [answer("", call("file_write", {"path": str(path), "content": "x"})) for path in paths]
    runtime = CLIRuntime(work, quiet=True)
    with runtime, talk(tmp_path / "c", *turns, answer("ok"), runtime=runtime) as conversation:
        conversation.approve(EditsUnder(directory=str(work / "src")))
        for path in paths[1:]:
            assert conversation.run("go", 30) == Status.WAITING_FOR_CONFIRMATION
            assert [one.arguments["path"] for one in conversation.pending] == [str(path)]
            conversation.reject("no", run=False)
    assert (work / "src" / "new" / "a").read_text() == "x"
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "mine")]


@pytest.mark.docker
def test_going_back_brings_no_revoked_approval_back(tmp_path: Path) -> None:
    runtime = DockerRuntime(os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian"))
    turns = [answer("", bash("echo x > a")), answer("ok"), answer("ok")]
    with talk(tmp_path, *turns, runtime=runtime, confirmation="never", checkpoints=True) as conversation:
        conversation.approve(AnyCall(tool=BASH))
        conversation.approve(SRC)
        conversation.run("go", 60)
        at = max(event.seq for event in conversation.events() if event.type == "checkpoint")
        conversation.revoke(1)
        with conversation.fork(at) as branch:
            assert [one.scope for one in branch.approvals] == [SRC]
        delete_stored(branch.directory)


def stored(kind: str, **data: Any) -> SDKEvent:
    return unchecked(kind, ts=datetime.now(UTC), conversation_id="c", seq=0, data=data)


def test_a_malformed_approval_allows_nothing_and_a_malformed_revocation_revokes_all() -> None:
    sound = {"number": 1, "scope": GIT_STATUS.model_dump(), "text": "", "by": "ann"}
    standing = StandingApprovals()
    for amiss in (
        {"number": "2"},
        {"number": 1e300},
        {"number": 0},
        {"by": None},
        {"scope": None},
        {"scope": {"kind": "tool"}},
        {"scope": {"kind": "all", "tool": BASH}},
        {"scope": {"kind": "edits", "directory": ""}},
    ):
        standing.add(stored("approval", **sound | amiss))
    assert (standing.in_force, standing.last_number) == ([], 0)
    standing.add(stored("approval", **sound))
    standing.add(stored("approval_revoked", number=7))
    assert [one.scope for one in standing.in_force] == [GIT_STATUS]
    standing.add(stored("approval_revoked", number="1"))
    assert standing.in_force == []
