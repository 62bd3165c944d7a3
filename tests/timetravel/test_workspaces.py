from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.errors import UsageError
from ohsandbox.persistence import read_events
from ohsandbox.runtime.mount_text import moved_places
from ohsandbox.timetravel import fork as forks
from ohsandbox.timetravel.snapshots.manifest import changes_between
from ohsandbox.timetravel.snapshots.patch import patch_of
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.undo import plan_redo, plan_undo, redo, undo
from ohsandbox.timetravel.workspace_diff import diff_workspace
from tests.fakes import FakeModel, answer, call
from tests.timetravel.test_undo import BoundRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SeveralRuntime(BoundRuntime):
    """Bound to two directories."""

    def __init__(self, places: dict[str, Path], deeds: list[Callable[[Path], Any]]) -> None:
        super().__init__(next(iter(places.values())), deeds)
        self._places = places

    @property
    def host_workspaces(self) -> dict[str, Path]:
        return self._places


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setattr(forks, "_keep_images", lambda target, found: None)  # noqa: ARG005 - no engine
    found = {"/workspace": tmp_path / "shop", "/workspaces/api": tmp_path / "api"}
    for path in found.values():
        (path / ".git").mkdir(parents=True)
        (path / "a").write_text("old\n")
    return found


def _deed(first: Path) -> str:
    for path in (first, first.parent / "api"):
        (path / "a").write_text(f"agent in {path.name}\n")
        (path / "made").mkdir()
        (path / "made" / "b").write_text("b\n")
        (path / ".git" / "HEAD").write_text("moved\n")
    return "ok"


def _work(places: dict[str, Path], *, turns: int = 1) -> Path:
    replies = [
        turn for _ in range(turns) for turn in (answer("", call("execute_bash", {"command": "0"})), answer("ok"))
    ]
    root = next(iter(places.values())).parent / "c"
    agent = Agent(FakeModel(*replies), ["execute_bash"])
    with Conversation(agent, SeveralRuntime(places, [_deed]), root, conversation_id="c", checkpoints=True) as talk:
        for _ in range(turns):
            assert talk.run("go").changed_files is not None
    return root / "c"


def _texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_undo_and_redo_cover_all_and_leave_what_a_person_did(places: dict[str, Path]) -> None:
    directory = _work(places)
    done = {name: _texts(path) for name, path in places.items()}
    (places["/workspaces/api"] / "person").write_text("mine\n")
    (places["/workspaces/api"] / "made" / "b").write_text("mine too\n")
    forked, refused = undo(plan_undo(directory, 1))
    assert [one.path for one in refused] == ["api/made/b"]
    assert _texts(places["/workspace"]) == {"a": "old\n"}
    assert _texts(places["/workspaces/api"]) == {"a": "old\n", "made/b": "mine too\n", "person": "mine\n"}
    older, refused = redo(plan_redo(forked.directory))
    assert (older, refused) == (directory, [])
    assert _texts(places["/workspace"]) == done["/workspace"]
    assert _texts(places["/workspaces/api"]) == done["/workspaces/api"] | {"person": "mine\n", "made/b": "mine too\n"}


def test_a_diff_names_the_workspace_first(places: dict[str, Path]) -> None:
    directory = _work(places)
    with diff_workspace(directory) as work:
        assert [one.path for one in work.changes if not one.is_of_directories] == [
            "api/a", "api/made/b", "workspace/a", "workspace/made/b",
        ]  # fmt: skip
        patch = b"".join(part.text for part in patch_of(work.changes, work.store.content))
    assert b"+++ b/api/a\n@@ -1 +1 @@\n-old\n+agent in api\n" in patch


def test_a_fork_has_a_directory_for_each_and_goes_on_there(places: dict[str, Path], tmp_path: Path) -> None:
    directory = _work(places)
    at = read_events(directory)[-1].seq
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError, match="is not empty"):
        forks.fork_into(directory, at, workspace=tmp_path / "full")
    assert [one.name for one in directory.parent.glob("[!.]*")] == ["c"]
    forked = forks.fork_into(directory, at, workspace=tmp_path / "new")
    assert _texts(tmp_path / "new" / "workspace") == _texts(places["/workspace"])
    assert _texts(tmp_path / "new" / "api") == _texts(places["/workspaces/api"])
    assert forked.workspace is not None
    assert forked.workspace.for_runtime() == {
        "/workspace": tmp_path / "new" / "workspace",
        "/workspaces/api": tmp_path / "new" / "api",
    }
    with diff_workspace(forked.directory, at) as work:
        assert work.changes == []


def test_where_a_workspace_was_added_in_between_it_is_refused(places: dict[str, Path]) -> None:
    directory = _work({"/workspace": places["/workspace"]})
    agent = Agent(FakeModel(answer("", call("execute_bash", {"command": "0"})), answer("ok")), ["execute_bash"])
    write = [lambda first: (first / "later").touch()]
    runtime = SeveralRuntime(places, write)
    with Conversation(agent, runtime, directory.parent, conversation_id="c", checkpoints=True) as talk:
        talk.run("again")
        with pytest.raises(UsageError, match=r"The workspaces were .*shop then, and are .*shop, .*api now"):
            talk.fork(2, workspace=directory.parent / "new")
    assert not (directory.parent / "new").exists()
    with pytest.raises(UsageError, match="cannot be compared"), diff_workspace(directory):
        pass
    with pytest.raises(UsageError, match="were not always"):
        plan_undo(directory, 2)
    assert [one.path for one in plan_undo(directory, 1).changes] == ["workspace/later"]


def test_names_are_unique_and_a_record_says_all(tmp_path: Path) -> None:
    places = {"/workspace": tmp_path / "a", "/workspaces/workspace": tmp_path / "b", "/srv/workspace-2": tmp_path / "c"}
    assert [path.name for path in moved_places([*places], tmp_path).values()] == [
        "workspace", "workspace-2", "workspace-2-2",
    ]  # fmt: skip
    bound = Workspaces.bound(places)
    assert bound is not None
    assert Workspaces.recorded(bound.record()) == bound
    assert bound.in_sandbox("workspace-2/x") == "/workspaces/workspace/x"
    for path in places.values():
        path.mkdir()
    store = SnapshotStore(tmp_path / "store")
    before = store.load(store.take(bound))
    (tmp_path / "b" / "x").touch()
    assert [one.path for one in changes_between(before, store.load(store.take(bound)))] == ["workspace-2/x"]
