from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime, events
from ohsandbox.agent import Agent
from ohsandbox.cli.commands.time_travel import fork_at
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.cost import cost_of
from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.persistence import DirectoryLock, EventLog, read_events
from ohsandbox.runtime import disk_space
from ohsandbox.timetravel import fork as forks
from ohsandbox.timetravel.snapshots import manifest
from ohsandbox.timetravel.turns import seq_before_turns
from ohsandbox.timetravel.undo import plan_redo, plan_undo, redo, undo
from ohsandbox.timetravel.workspace_diff import copied_workspace, diff_workspace
from tests.fakes import FakeModel, answer, call
from tests.timetravel.test_fork import KeepingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class BoundRuntime(KeepingRuntime):
    """Bound to a directory; a command's name is that of a function that works in it."""

    def __init__(self, workspace: Path, deeds: list[Callable[[Path], Any]]) -> None:
        super().__init__()
        self._workspace = workspace
        self.on_execute = lambda number: str(deeds[int(number)](workspace))

    @property
    def host_workspace(self) -> Path:
        return self._workspace


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(forks, "_keep_images", lambda target, found: None)  # noqa: ARG005 - no engine
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


def work(root: Path, *deeds: Callable[[Path], Any], between: Callable[[Path], Any] | None = None) -> Path:
    """A conversation of a turn for each deed of the agent's; `between` is the person's, after each but the last."""
    turns = [turn for number in range(len(deeds)) for turn in (_bash(number), answer("ok"))]
    agent = Agent(FakeModel(*turns), ["execute_bash"])
    runtime = BoundRuntime(root, list(deeds))
    with Conversation(agent, runtime, root.parent / "c", conversation_id="c", checkpoints=True) as conversation:
        for number in range(len(deeds)):
            conversation.run(f"turn {number}")
            if between is not None and number < len(deeds) - 1:
                between(root)
    return root.parent / "c" / "c"


def _bash(number: int) -> Any:
    return answer("", call("execute_bash", {"command": str(number)}))


def what(root: Path) -> dict[str, Any]:
    """Path -> content, mode or target of everything."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        content = str(path.readlink()) if path.is_symlink() else "dir" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(root))] = (content, None if path.is_symlink() else mode)
    return found


def _fill(root: Path) -> None:
    (root / "text").write_text("1\n2\n3\n4\n5\n")
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o700)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o600)
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_text("f")
    (root / "was file").write_text("file")
    (root / "link").symlink_to("text")
    (root / "closed").mkdir()
    (root / "closed" / "f").write_text("x")
    (root / "closed").chmod(0o500)


def _wreck(root: Path) -> None:
    (root / "text").write_text("one\n2\n3\n4\n5\n")
    (root / "script").chmod(0o644)
    (root / "secret").chmod(0o666)
    shutil.rmtree(root / "d")
    (root / "d").write_text("a file now")
    (root / "was file").unlink()
    (root / "was file").mkdir()
    (root / "was file" / "x").write_text("x")
    (root / "link").unlink()
    (root / "link").symlink_to("/etc/passwd")
    (root / "closed").chmod(0o700)
    shutil.rmtree(root / "closed")
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "f").write_text("new")


def test_a_turn_is_undone_whole_and_redone_whole(root: Path) -> None:
    _fill(root)
    before = what(root)
    directory = work(root, _wreck)
    after = what(root)
    plan = plan_undo(directory, 1)
    assert plan.kept_back == []
    assert what(root) == after, "a plan changes nothing"
    forked, refused = undo(plan)
    assert refused == []
    assert what(root) == before
    older, refused = redo(plan_redo(forked.directory))
    assert (older, refused) == (directory, [])
    assert what(root) == after
    forked, _ = undo(plan_undo(directory, 1))
    assert what(root) == before


def test_what_the_person_did_after_the_turn_stays(root: Path) -> None:
    _fill(root)
    (root / "to go").write_text("x")
    (root / "to rename").write_text("x")
    before = what(root)
    directory = work(root, _wreck)
    (root / "mine").write_text("mine")
    (root / "text").write_text("one\n2\n3\n4\n5 by hand\n")
    (root / "new" / "mine").write_text("mine")
    (root / "to go").unlink()
    (root / "to rename").rename(root / "renamed")
    after = what(root)
    forked, refused = undo(plan_undo(directory, 1))
    assert refused == []
    expected = before | {key: after[key] for key in ("mine", "new", "new/mine", "renamed")}
    del expected["to go"], expected["to rename"]
    expected["text"] = (b"1\n2\n3\n4\n5 by hand\n", 0o644)
    assert what(root) == expected
    redo(plan_redo(forked.directory))
    assert what(root) == after


def test_what_both_have_changed_is_left_and_named_and_the_rest_is_undone(root: Path) -> None:
    for name in ("edited", "deleted", "renamed", "remade", "mode", "other"):
        (root / name).write_text("1\n")

    def deed(root: Path) -> None:
        for name in ("edited", "renamed", "mode", "other", "new"):
            (root / name).write_text("agent\n")
        for name in ("deleted", "remade"):
            (root / name).unlink()

    directory = work(root, deed)
    (root / "edited").write_text("person\n")
    (root / "renamed").rename(root / "elsewhere")
    (root / "remade").write_text("person\n")
    (root / "new").write_text("person\n")
    plan = plan_undo(directory, 1)
    assert sorted(one.path for one in plan.kept_back) == ["edited", "new", "remade", "renamed"]
    _, refused = undo(plan)
    assert sorted(refused) == sorted(plan.kept_back)
    assert {name: content for name, (content, _) in what(root).items()} == {
        "deleted": b"1\n", "mode": b"1\n", "other": b"1\n",
        "edited": b"person\n", "elsewhere": b"agent\n", "remade": b"person\n", "new": b"person\n",
    }  # fmt: skip


def test_between_turns_as_well_the_person_s_changes_stay(root: Path) -> None:
    (root / "f").write_text("a\nb\nc\nd\ne\n")

    def between(root: Path) -> None:
        (root / "mine").write_text("mine")
        (root / "f").write_text((root / "f").read_text().replace("e\n", "e by hand\n"))
        (root / "agent").rename(root / "moved")

    directory = work(
        root,
        lambda root: [(root / "agent").write_text("1"), (root / "f").write_text("A\nb\nc\nd\ne\n")],
        lambda root: [(root / "second").write_text("2"), (root / "f").write_text("A\nb\nC\nd\ne by hand\n")],
        between=between,
    )
    _, refused = undo(plan_undo(directory, 2))
    assert refused == []
    assert {name: content for name, (content, _) in what(root).items()} == {
        "f": b"a\nb\nc\nd\ne by hand\n", "mine": b"mine", "moved": b"1",
    }  # fmt: skip


def test_only_the_last_turn_goes_where_one_is_undone_and_undoing_goes_on(root: Path) -> None:
    directory = work(root, lambda root: (root / "a").write_text("1"), lambda root: (root / "a").write_text("2"))
    first, _ = undo(plan_undo(directory, 1))
    assert (root / "a").read_text() == "1"
    second, _ = undo(plan_undo(first.directory, 1))
    assert not (root / "a").exists()
    (root / "mine").write_text("m")
    redo(plan_redo(second.directory))
    assert (root / "a").read_text() == "1"
    assert redo(plan_redo(first.directory))[0] == directory
    assert (root / "a").read_text() == "2"
    assert (root / "mine").read_text() == "m"


def test_a_turn_that_was_cut_off_is_said_to_be_and_can_be_redone(root: Path) -> None:
    (root / "f").write_text("1")

    def deed(root: Path) -> None:
        (root / "f").write_text("2")
        shutil.copytree(root.parent / "c" / "c", root.parent / "killed" / "c")

    work(root, deed)
    directory = root.parent / "killed" / "c"
    (root / "mine").write_text("m")
    plan = plan_undo(directory, 1)
    assert plan.is_cut_off
    assert sorted(change.path for change in plan.changes) == ["f", "mine"]
    forked, _ = undo(plan)
    assert {name: content for name, (content, _) in what(root).items()} == {"f": b"1"}
    redo(plan_redo(forked.directory))
    assert {name: content for name, (content, _) in what(root).items()} == {"f": b"2", "mine": b"m"}


def test_a_conversation_that_has_not_begun_has_nothing_to_go_back_to(root: Path) -> None:
    conversation = Conversation(Agent(FakeModel()), CLIRuntime(root, quiet=True), root / "conversations" / "new")
    for go_back in (
        conversation.undo, conversation.redo, conversation.fork, lambda: conversation.fork(0), conversation.diff
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"has not begun, so there is nothing to go back to"):
            go_back()
    with conversation:  # opened, and nothing was said
        directory = root / "conversations" / "new" / conversation.id
        with pytest.raises(UsageError, match=r"has no events to go back to\. Run a task in it first"):
            conversation.fork(0)
        with pytest.raises(UsageError, match=r"has no turn to undo\. Run a task in it first"):
            conversation.undo()
    with pytest.raises(UsageError, match=r"has no events to go back to\. Run a task in it first"):
        fork_at(conversation.id, None, directory.parent, workspace=None)


def test_a_conversation_that_no_undo_made_has_nothing_to_redo(root: Path) -> None:
    directory = work(root, lambda root: (root / "a").write_text("1"), lambda root: (root / "a").write_text("2"))
    undone, _ = undo(plan_undo(directory, 1))
    copied = forks.fork_into(undone.directory, len(read_events(undone.directory)) - 1, workspace=root.parent / "new")
    for one in (directory, copied.directory):
        with pytest.raises(UsageError, match="was not made by `ohsandbox undo`, so there is nothing to redo"):
            plan_redo(one)


def test_nothing_is_redone_while_the_older_conversation_is_open_or_gone(root: Path) -> None:
    directory = work(root, lambda root: (root / "a").write_text("1"))
    undone, _ = undo(plan_undo(directory, 1))
    with DirectoryLock(directory, name="c"), pytest.raises(ConversationOpenError):
        redo(plan_redo(undone.directory))
    assert what(root) == {}
    shutil.rmtree(directory)
    with pytest.raises(UsageError, match="was deleted"):
        redo(plan_redo(undone.directory))
    assert what(root) == {}


# --- .git -----------------------------------------------------------------------------------------


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "gc.auto=0", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout


def _commit(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    _git(root, "add", name)
    _git(root, "commit", "-qm", text)


def _commit_and_pack(root: Path) -> None:
    _commit(root, "g", "agent")
    _git(root, "gc", "-q", "--prune=now")


@pytest.fixture
def repository(root: Path) -> Path:
    _git(root, "init", "-qb", "main")
    _commit(root, "f", "one")
    return root


def test_a_removed_repository_comes_back(repository: Path) -> None:
    directory = work(repository, lambda root: shutil.rmtree(root / ".git"))
    _, refused = undo(plan_undo(directory, 1))
    assert refused == []
    assert _git(repository, "fsck", "--strict") == ""
    assert _git(repository, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "deed",
    [
        lambda root: _commit(root, "f", "agent"),
        lambda root: _git(root, "checkout", "-qb", "other"),
        _commit_and_pack,
        lambda root: _git(root, "reset", "-q", "--hard", "HEAD~0"),
    ],
)
def test_what_git_did_is_undone_and_redone(repository: Path, deed: Callable[[Path], Any]) -> None:
    directory = work(repository, deed)
    log = _git(repository, "log", "--all", "--format=%s")
    undone, refused = undo(plan_undo(directory, 1))
    assert refused == []
    assert _git(repository, "log", "--all", "--format=%s") == "one\n"
    assert _git(repository, "status", "--porcelain=2", "--branch").splitlines()[1:] == ["# branch.head main"]
    redo(plan_redo(undone.directory))
    assert _git(repository, "log", "--all", "--format=%s") == log
    assert _git(repository, "fsck", "--strict", "--no-dangling") == ""


def test_commits_of_the_person_on_those_of_the_agent_stay_whole(repository: Path) -> None:
    directory = work(repository, lambda root: _commit(root, "f", "agent"))
    _commit(repository, "mine", "person")
    plan = plan_undo(directory, 1)
    assert [one.path for one in plan.kept_back] == [".git"]
    _, refused = undo(plan)
    assert "git was used here since" in refused[0].why
    assert _git(repository, "fsck", "--strict") == ""
    assert _git(repository, "log", "--format=%s") == "person\nagent\none\n"
    assert (repository / "f").read_text() == "one"
    assert (repository / "mine").read_text() == "person"


def test_that_both_looked_at_the_repository_is_no_conflict(repository: Path) -> None:
    def use_git(root: Path) -> None:
        (root / "f").write_text("by the agent")
        _git(root, "update-index", "--refresh", "-q", "--really-refresh", "--index-version", "4")

    directory = work(repository, use_git)
    _git(repository, "update-index", "--index-version", "2")
    plan = plan_undo(directory, 1)
    assert ([change.path for change in plan.changes], plan.kept_back) == (["f"], [])


def test_what_a_fork_or_a_diff_shows_of_git(repository: Path) -> None:
    directory = work(repository, lambda root: _commit(root, "f", "agent"))
    with diff_workspace(directory) as done:
        assert [change.path for change in done.changes] == ["f"]
    at = len(read_events(directory)) - 1
    forks.fork_into(directory, at, workspace=repository.parent / "new")
    assert _git(repository.parent / "new", "log", "--format=%s") == "agent\none\n"
    assert _git(repository.parent / "new", "status", "--porcelain") == ""


class CopyRuntime(KeepingRuntime):
    """Began with a copy."""

    @property
    def copied_workspace(self) -> Path | None:
        return self.copied

    copied: Path | None = None


def test_where_a_copy_came_from_is_known_to_who_resumes_without_naming_it(tmp_path: Path) -> None:
    for number, copied in enumerate((tmp_path / "from", None)):
        runtime = CopyRuntime()
        runtime.copied = copied
        agent = Agent(FakeModel(_bash(number), answer("ok")), ["execute_bash"])
        with Conversation(agent, runtime, tmp_path, conversation_id="c", checkpoints=True) as conversation:
            conversation.run("go")
    found = [event.data for event in read_events(tmp_path / "c") if event.type == "checkpoint"]
    assert [data["copied_from"] for data in found] == [str(tmp_path / "from")] * len(found)
    assert copied_workspace(tmp_path / "c") == tmp_path / "from"


def test_a_file_too_large_to_keep_is_named_by_undo_redo_and_a_fork(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_FILE_BYTES", 10)
    (root / "big").write_text("x" * 11)
    (root / "small").write_text("s")

    def replace(root: Path) -> None:
        (root / "small").write_text("changed")
        (root / "big").write_text("y" * 12)

    directory = work(root, replace)
    plan = plan_undo(directory, 1)
    assert plan.left_out == {"big": "12 bytes, over the limit of 10"}
    forked, _ = undo(plan)
    assert ((root / "small").read_text(), (root / "big").read_text()) == ("s", "y" * 12)
    assert [*plan_redo(forked.directory).left_out] == ["big"]
    fresh = forks.fork_into(directory, read_events(directory)[-1].seq, workspace=root.parent / "fresh")
    assert [path.name for path in (root.parent / "fresh").iterdir()] == ["small"]
    assert forks.not_kept(fresh) == {"big": "12 bytes, over the limit of 10"}
    (notice,) = [event.data for event in read_events(fresh.directory) if event.data.get("code") == forks.NOT_KEPT]
    assert "'big' (12 bytes, over the limit of 10)" in notice["message"]


def test_on_a_disk_below_its_floor_the_run_goes_on_and_says_once_that_nothing_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = work(root, lambda root: (root / "f").write_text("f"))
    before = len([*directory.parent.iterdir()])
    monkeypatch.setattr(disk_space, "measure", lambda _: disk_space.DiskSpace(2**30, 100 * 2**30, 0, 0))
    with pytest.raises(UsageError, match="must stay free"):
        plan_undo(directory, 1)
    assert len([*directory.parent.iterdir()]) == before, "no fork was begun"
    shutil.rmtree(root.parent / "c")
    directory = work(root, lambda root: (root / "g").write_text("g"))
    (notice,) = [event.data for event in read_events(directory) if event.type == "notice"]
    assert notice["code"] == "CheckpointFailed"
    assert "No snapshot is written: the disk of " in notice["message"]
    assert (root / "g").read_text() == "g"
    assert not (directory / "snapshots").exists()


def test_a_message_that_steers_the_agent_belongs_to_the_turn_that_is_undone(root: Path) -> None:
    def deed(root: Path) -> str:
        (root / "text").write_text("by the agent\n")
        conversation.send_message("and be quick")
        return "done"

    (root / "text").write_text("mine\n")
    before = what(root)
    agent = Agent(FakeModel(_bash(0), answer("ok"), answer("and?")), ["execute_bash"])
    runtime = BoundRuntime(root, [deed])
    conversation = Conversation(agent, runtime, root.parent / "c", conversation_id="c", checkpoints=True)
    with conversation:
        conversation.run("work")
        assert [(turn.number, turn.title) for turn in conversation.cost.turns] == [(1, "work")]
        conversation.run("and then?")
        assert [turn.title for turn in conversation.cost.turns] == ["work", "and then?"]
    _, refused = undo(plan_undo(conversation.directory, 2))
    assert (refused, what(root)) == ([], before)


def test_what_was_said_after_a_run_was_cut_off_begins_a_turn(root: Path) -> None:
    directory = work(root, lambda root: (root / "new").write_text("new"))
    running = events.status_update(events.ConversationStatus.RUNNING)
    with EventLog(directory, conversation_id="c") as log:
        log.append(events.user_message("more"))
        log.append(running)
        log.append(events.user_message("killed before this"))
        said = log.append(events.user_message("and this")).seq
        log.append(running)
        log.append(events.user_message("steers"))
    assert seq_before_turns(directory, 1) == said - 2
    assert [turn.title for turn in cost_of(directory).turns] == ["turn 0", "more", "killed before this"]


def test_where_no_files_were_changed_an_undo_says_so(tmp_path: Path) -> None:
    agent = Agent(FakeModel(answer("hi")), ["execute_bash"])
    with Conversation(agent, KeepingRuntime(), tmp_path, conversation_id="c", checkpoints=True) as conversation:
        conversation.run("hello")
    with pytest.raises(UsageError, match="'c' has no checkpoints, so this cannot be undone: no files were changed"):
        plan_undo(tmp_path / "c", 1)
