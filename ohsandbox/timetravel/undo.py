"""Undo in a directory of this machine: it reverts the agent's changes of some turns and keeps all others.

The agent's changes are those between the checkpoint before a turn's first write and the one after its last. What a
person changed during the same turn counts as the agent's change. Before anything is written, the fork stores the
directory's old and new state, so that `redo` finds both even if the undo is interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.persistence import stream_events
from ohsandbox.persistence.layout import SNAPSHOTS_NAME
from ohsandbox.timetravel import FORKED, REDONE
from ohsandbox.timetravel.checkpoints import CheckpointIndex
from ohsandbox.timetravel.fork import MAX_NAMED, append_notice, fork
from ohsandbox.timetravel.snapshots.manifest import changes_between, worst_first
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.three_way_merge import revert_changes
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.turns import seq_before_turns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.timetravel.fork import Fork
    from ohsandbox.timetravel.snapshots.manifest import FileChange, Manifest
    from ohsandbox.timetravel.snapshots.restore import UnappliedChange

_UNDONE = "Undone"
"""Code of the notice in a fork that says which conversation was undone."""
_LEFT_ALONE = "LeftAlone"
"""Code of the notice in a fork that names the changes that were not reverted, and why."""


class UndoPlan(NamedTuple):
    """The changes that an undo or a redo makes to a workspace."""

    directory: Path
    """Directory of the conversation to undo, or of the fork to redo."""
    workspace: Workspaces | None
    """None if the files are in a container: the fork gets a container of its own."""
    changes: list[FileChange]
    kept_back: list[UnappliedChange]
    """Changes that are not reverted, since the same files have been changed again."""
    left_out: dict[str, str]
    """Paths that the checkpoints lack, with the reasons; worst first."""
    at: int = -1
    """The last event that the fork keeps."""
    is_cut_off: bool = False
    """Whether the last turn was killed before its last checkpoint: its changes cannot be told from later ones."""


class _Steps(NamedTuple):
    workspace: Workspaces | None
    trees: list[tuple[Manifest, Manifest | None]]
    """The manifests before and after each step; None is the present state."""


def plan_undo(directory: Path, turns: int) -> UndoPlan:
    """Plan the undo of the last turns, without changing anything.

    Raises:
        UsageError: there are fewer turns, their files were not kept, or too little disk space is free for a snapshot.
    """
    seq = seq_before_turns(directory, turns)
    store = SnapshotStore(directory / SNAPSHOTS_NAME)
    return _plan(directory, _steps_after(directory, seq, store), store)._replace(at=seq)


def _plan(directory: Path, steps: _Steps, store: SnapshotStore) -> UndoPlan:
    """Plan to revert the steps; without a workspace there is nothing to change."""
    if steps.workspace is None:
        return UndoPlan(directory, None, [], [], {})
    store.require_space()
    changes, kept_back, left_out, _ = _planned(steps, steps.workspace.scan(store), store)
    is_cut_off = any(after is None for _, after in steps.trees)
    return UndoPlan(directory, steps.workspace, changes, kept_back, left_out, is_cut_off=is_cut_off)


def undo(plan: UndoPlan) -> tuple[Fork, list[UnappliedChange]]:
    """Fork the conversation, and revert the agent's changes in the workspace.

    Returns the fork, and the changes that were not reverted. The directory is scanned again, so changes made since the
    plan are not lost.

    Raises:
        UsageError: the fork cannot be written, or the disk has too little free space.
        SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
    """
    forked = fork(plan.directory, plan.at, workspace=plan.workspace)
    store_of_fork = SnapshotStore(forked.directory / SNAPSHOTS_NAME)
    if plan.workspace is None:
        _note_undone(forked.directory, plan.directory.name)
        return forked, []
    name_before = store_of_fork.take(plan.workspace)
    current = store_of_fork.load(name_before)
    older = SnapshotStore(plan.directory / SNAPSHOTS_NAME)
    store = SnapshotStore(store_of_fork.directory, beside=older)
    steps = _steps_after(plan.directory, plan.at, older)
    changes, refused, _, target = _planned(steps, current, store)
    for change in changes:
        if change.new is not None and change.new.kind == "file":
            store_of_fork.adopt(store, change.new.what)
    after = store_of_fork.add(target)
    fields = plan.workspace.record() | {"before": name_before, "after": after}
    fields["workspace"] = fields.pop("path")
    _note_undone(forked.directory, plan.directory.name, **fields)
    refused = [*refused, *plan.workspace.write(changes, store_of_fork, git=True)]
    _note_left_alone(forked.directory, refused)
    return forked, refused


def plan_redo(directory: Path) -> UndoPlan:
    """Plan the redo of an undo, without changing anything.

    Raises:
        UsageError: the conversation was not created by an undo, its snapshots are lost, or the disk has too little free
            space for another.
    """
    undone = _undone(directory)
    store = SnapshotStore(directory / SNAPSHOTS_NAME)
    return _plan(directory, _steps_of_redo(undone, store), store)


def redo(plan: UndoPlan) -> tuple[Path, list[UnappliedChange]]:
    """Restore the undone changes; return the undone conversation's directory, and the changes that were not restored.

    Raises:
        ConversationOpenError: a process has that conversation open.
        UsageError: that conversation was deleted, or a snapshot is lost.
    """
    undone = _undone(plan.directory)
    older = plan.directory.parent / str(undone["conversation_id"])
    if not older.is_dir():
        raise UsageError(
            f"Conversation {older.name!r} was deleted, so this cannot be redone. Undo again, or go on here."
        )
    message = f"The changes that {plan.directory.name!r} had undone are restored."
    # this comes first: nothing may be written if another process has the conversation open
    append_notice(older, code=REDONE, message=message, conversation_id=plan.directory.name)
    if plan.workspace is None:
        return older, []
    store = SnapshotStore(plan.directory / SNAPSHOTS_NAME)
    current = store.load(store.take(plan.workspace))  # stored, so that an undo of `older` can restore it
    changes, refused, _, _ = _planned(_steps_of_redo(undone, store), current, store)
    refused = [*refused, *plan.workspace.write(changes, store, git=True)]
    _note_left_alone(older, refused)
    return older, refused


def _planned(
    steps: _Steps, current: Manifest, store: SnapshotStore
) -> tuple[list[FileChange], list[UnappliedChange], dict[str, str], Manifest]:
    trees = [(before, current if after is None else after) for before, after in steps.trees]
    target, refused = revert_changes(trees, current, store)
    left_out = {path: reason for first, second in trees for path, reason in (first.left_out | second.left_out).items()}
    return changes_between(current, target), refused, worst_first(left_out), target


def _steps_after(directory: Path, seq: int, store: SnapshotStore) -> _Steps:
    """Return the checkpoints before and after each time that the agent wrote after event `seq`.

    Raises:
        UsageError: the files at that event were not kept, or are lost.
    """
    files = CheckpointIndex.of(directory)
    if not files.kept:
        reason = f"{directory.name!r} has no checkpoints, so this cannot be undone"
        raise UsageError(f"Conversation {reason}: no files were changed, or they are off. Reverse changes by hand.")
    if files.at(max(seq, 0)) is None:
        raise UsageError(f"The files after event {seq} of {directory.name!r} were not kept. Go back to another event.")
    bound = Workspaces.recorded(files.kept[-1].data.get("workspace"))
    if bound is None:
        return _Steps(None, [])
    steps: list[tuple[Manifest, Manifest | None]] = []
    for index, checkpoint in enumerate(files.kept):
        if checkpoint.last is None or checkpoint.last < seq:
            continue
        following = files.kept[index + 1] if index + 1 < len(files.kept) else None
        if following is not None and checkpoint.last >= following.seq:
            continue  # nothing was written between the two
        places = [checkpoint.data.get("workspace") for checkpoint in (checkpoint, following) if checkpoint is not None]
        if any(Workspaces.recorded(recorded) != bound for recorded in places):
            raise UsageError(
                f"In these turns the agent's workspaces were not always {bound}, so this is not undone. "
                "Reverse them by hand."
            )
        before, *after = [store.load(str(recorded["snapshot"])) for recorded in places if recorded is not None]
        steps.append((before, after[0] if after else None))
    return _Steps(bound, steps)


def _steps_of_redo(undone: dict[str, Any], store: SnapshotStore) -> _Steps:
    """Return the undo itself as the step to revert."""
    if undone.get("workspace") is None:
        return _Steps(None, [])
    before, after = store.load(undone["before"]), store.load(undone["after"])
    return _Steps(Workspaces.recorded(undone | {"path": undone["workspace"]}), [(before, after)])


def _note_undone(directory: Path, older: str, **data: Any) -> None:
    message = f"The agent's later changes in {older!r} were undone. `ohsandbox redo` restores them."
    append_notice(directory, code=_UNDONE, message=message, conversation_id=older, **data)


def _note_left_alone(directory: Path, refused: Sequence[UnappliedChange]) -> None:
    if not refused:
        return
    listed = ", ".join(f"{path!r} ({reason})" for path, reason in refused[:MAX_NAMED])
    more = f" and {len(refused) - MAX_NAMED} more" if len(refused) > MAX_NAMED else ""
    append_notice(directory, code=_LEFT_ALONE, message=f"Left as it is in the workspace: {listed}{more}.")


def _undone(directory: Path) -> dict[str, Any]:
    """Return the data of the notice of the undo that made this conversation; copied notices do not count.

    Raises:
        UsageError: it has no such notice.
    """
    data: dict[str, Any] = {}

    def on_event(event: SDKEvent) -> None:
        if event.type == "notice" and event.data["code"] in {FORKED, _UNDONE}:
            data.clear()
            data.update(event.data if event.data["code"] == _UNDONE else {})

    stream_events(directory, on_event)
    if not data:
        raise UsageError(
            f"Conversation {directory.name!r} was not made by `ohsandbox undo`, so there is nothing to redo. "
            "Undo first, or name a conversation that was."
        )
    return data
