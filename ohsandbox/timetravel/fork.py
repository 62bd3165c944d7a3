"""`fork`: a new conversation with the first events of another one, and with its files at that event.

Undo forks, too: a log only grows, so the old conversation stays unchanged, and the fork has an id of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox import events
from ohsandbox.arguments import expect
from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY, new_id
from ohsandbox.persistence import LOG_NAME, EventLog, encode_record, read_events, stream_events
from ohsandbox.persistence.blobs import Blobs
from ohsandbox.persistence.layout import AGENTS_NAME, SNAPSHOTS_NAME
from ohsandbox.persistence.recency import Recency
from ohsandbox.private_files import NEW_FILE, make_private_dir, opened_dir, sync_dir, try_lock
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.owners import note_deletion
from ohsandbox.timetravel import FORKED
from ohsandbox.timetravel.checkpoints import COPIED_FROM, CheckpointRange, find_checkpoint
from ohsandbox.timetravel.snapshots.manifest import changes_between, worst_first
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.tool_state import ToolStateSnapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ohsandbox.events import SDKEvent
    from ohsandbox.timetravel.snapshots.restore import UnappliedChange

NOT_KEPT = "NotKept"
"""Code of the notice in a fork that names files missing from its snapshot."""
_UNFINISHED_PREFIX = ".unfinished-"
"""Begins the name of the directory in which a fork is made; the fork's id follows."""
MAX_NAMED = 5
"""Maximum number of files that this notice names."""

TOOLS_UNKNOWN = "The state of its tools at that event is unknown, so they start without it: earlier edits stay."


class Fork(NamedTuple):
    """A fork on disk; no process has it open."""

    id: str
    directory: Path
    at: int
    """The seq of the last event that both conversations share."""
    kept: CheckpointRange
    """The checkpoint with the fork's files."""
    workspace: Workspaces | None = None
    """The directories for the files of bound workspaces."""


def fork(directory: Path, at: int, *, workspace: Workspaces | None = None) -> Fork:
    """Create a conversation beside this one, with its events up to `at` and the files at that event.

    Args:
        directory: the conversation's directory; a process may have it open.
        at: the last event to copy; -1 for none.
        workspace: directories for the files of bound workspaces; `restore_workspace` writes the files.

    Raises:
        UsageError: the files at that event were not kept, or the fork cannot be written.
        SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
    """
    checkpoint = find_checkpoint(directory, max(at, 0))
    conversation_id = new_id()
    forked = Fork(conversation_id, directory.parent / conversation_id, at, checkpoint, workspace)
    with _complete_or_absent(forked.directory) as target:
        _copy_log(directory, target, at)
        shared = read_events(target)
        checkpoints = [*(event.data for event in shared if event.type == "checkpoint"), checkpoint.data]
        _copy_snapshots(directory, target, checkpoints)
        _copy_agents(directory, target, shared)
        tools = ToolStateSnapshots(directory)
        tools.share_with(target, checkpoints)
        knows_tools = tools.put_into(target, checkpoint.data, shared)
        _keep_images(forked.directory, checkpoints)
        revoked = _revoked_since(directory, shared)
        _add_own_events(forked._replace(directory=target), directory.name, knows_tools=knows_tools, revoked=revoked)
    return forked


def fork_into(directory: Path, at: int, *, workspace: Path | None) -> Fork:
    """Fork, and write the files of a bound workspace to an empty directory; those of several, to directories in it.

    Raises:
        UsageError: the files at that event were not kept, workspace is missing, superfluous or not empty, or files
            could not be written.
        SandboxUnavailable: the engine is unavailable, or has lost the checkpoint.
    """
    expect("at", at, int, "Give an event of the conversation, or its seq.", optional=False)
    bound = Workspaces.recorded(find_checkpoint(directory, max(at, 0)).data.get("workspace"))
    if (bound is None) != (workspace is None):
        raise UsageError(
            "The files lie in a directory of this machine: pass workspace=DIR, an empty one for the fork."
            if workspace is None
            else "The files lie in the container: leave workspace out."
        )
    target_workspace = None if bound is None or workspace is None else bound.moved(empty_directory(workspace))
    forked = fork(directory, at, workspace=target_workspace)
    if refused := restore_workspace(forked):
        raise UsageError(
            f"{len(refused)} files cannot be put into {str(workspace)!r}: {refused[0].why}. Name another directory."
        )
    return forked


def restore_workspace(forked: Fork) -> list[UnappliedChange]:
    """Write the files at the fork's event to its empty directories; return those that could not be written.

    Raises:
        UsageError: a directory is not empty, or cannot be created or read, or the snapshot is lost.
    """
    bound, workspace = forked.kept.data.get("workspace"), forked.workspace
    if bound is None or workspace is None:
        return []
    for directory in workspace.directories.values():
        empty_directory(directory)
    store = SnapshotStore(forked.directory / SNAPSHOTS_NAME)
    manifest = store.load(bound["snapshot"])
    if missing := [f"{path!r} ({reason})" for path, reason in worst_first(manifest.left_out).items()]:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        lost_text = f"The snapshot did not hold {', '.join(missing[:MAX_NAMED])}{more}"
        message = f"{lost_text}: copy that from the original directory if it is needed."
        append_notice(forked.directory, code=NOT_KEPT, message=message)
    return workspace.write(changes_between(workspace.scan(store), manifest), store, git=True)


def append_notice(directory: Path, *, code: str, message: str, **facts: Any) -> None:
    """Store a notice in the log of a conversation that is not open.

    Raises:
        ConversationOpenError: a process has it open.
    """
    with EventLog(directory, conversation_id=directory.name) as log:
        log.append(events.notice(code=code, message=message, **facts))


def not_kept(forked: Fork) -> dict[str, str]:
    """Return the paths that the snapshot of a bound workspace lacks, with the reasons; worst first.

    Raises:
        UsageError: the snapshot is lost.
    """
    bound = forked.kept.data.get("workspace")
    if bound is None:
        return {}
    return worst_first(SnapshotStore(forked.directory / SNAPSHOTS_NAME).load(bound["snapshot"]).left_out)


def empty_directory(directory: Path) -> Path:
    """Return the directory, created if missing.

    Raises:
        UsageError: it cannot be created, or is not empty.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        filled = next(directory.iterdir(), None) is not None
    except OSError as error:
        raise UsageError(f"Directory {str(directory)!r} cannot be used: {error.strerror}. Name another.") from error
    if filled:
        raise UsageError(f"Directory {str(directory)!r} is not empty. Name an empty one, or one that is not there yet.")
    return directory.resolve()


@contextlib.contextmanager
def _complete_or_absent(directory: Path) -> Iterator[Path]:
    """Yield a directory of the same name elsewhere, which is renamed to directory at the end.

    A process that is killed meanwhile leaves no conversation, only what `remove_unfinished` removes.

    Raises:
        UsageError: it cannot be made.
    """
    remove_unfinished(directory.parent)
    outer = directory.parent / f"{_UNFINISHED_PREFIX}{directory.name}"
    target = outer / directory.name
    descriptor = _make_locked(outer)
    try:
        make_private_dir(target)
        yield target
        try:
            target.rename(directory)
            sync_dir(directory.parent)
        except OSError as error:
            raise _unwritable(directory, error) from error
        shutil.rmtree(outer, ignore_errors=True)
    except BaseException:
        _remove(outer)
        raise
    finally:
        os.close(descriptor)
    Recency(directory).note()


def _make_locked(outer: Path) -> int:
    """Make and lock a directory; until it is locked, another fork may remove it as a leftover."""
    while True:
        make_private_dir(outer)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(outer, DIRECTORY)
            try:
                if try_lock(descriptor) and outer.exists():
                    return descriptor
            except OSError:  # the file system has no locks, so nobody takes it for a leftover
                return descriptor
            os.close(descriptor)


def remove_unfinished(conversations: Path, *, dry_run: bool = False) -> list[Path]:
    """Remove what forks that were killed have left among conversations; return their directories."""
    leftovers: list[Path] = []
    for outer in sorted(conversations.glob(f"{_UNFINISHED_PREFIX}*")):
        with contextlib.suppress(OSError), opened_dir(outer) as descriptor:
            if try_lock(descriptor):
                if not dry_run:
                    _remove(outer)
                if dry_run or not outer.exists():
                    leftovers.append(outer)
    return leftovers


def _remove(outer: Path) -> None:
    shutil.rmtree(outer, ignore_errors=True)
    with contextlib.suppress(OSError):  # without a note `gc` lists the checkpoints, and does not remove them
        note_deletion(outer.with_name(outer.name.removeprefix(_UNFINISHED_PREFIX)))


def _copy_log(directory: Path, target: Path, at: int) -> None:
    """Copy the events up to `at`, with checksums for the new conversation."""
    blobs = Blobs(target)
    with os.fdopen(os.open(target / LOG_NAME, NEW_FILE, 0o600), "wb") as file:

        def copy(event: SDKEvent) -> None:
            if event.seq <= at:
                file.write(encode_record(event.model_copy(update={"conversation_id": target.name}), blobs))

        try:
            stream_events(directory, copy)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(target, error) from error


def _copy_snapshots(directory: Path, target: Path, checkpoints: Sequence[dict[str, object]]) -> None:
    store = SnapshotStore(directory / SNAPSHOTS_NAME)
    bound = [data["workspace"] for data in checkpoints if data.get("workspace")]
    snapshots = {str(workspace["snapshot"]) for workspace in bound if isinstance(workspace, dict)}
    if snapshots:
        store.copy_to(target / SNAPSHOTS_NAME, sorted(snapshots & {*store.names()}))


def _copy_agents(directory: Path, target: Path, shared: Sequence[SDKEvent]) -> None:
    """Copy the files of sub-agents that were started in these events; none of them runs at an event with kept files."""
    began = [event.data for event in shared if event.type == "notice" and event.data["code"] == events.AGENT_STARTED]
    names = {PurePath(str(data.get("trail"))).parent.name for data in began}
    source = directory / AGENTS_NAME
    try:
        for agent_directory in source.iterdir() if names else ():
            if agent_directory.name in names and agent_directory.is_dir() and not agent_directory.is_symlink():
                make_private_dir(target / AGENTS_NAME)
                shutil.copytree(agent_directory, target / AGENTS_NAME / agent_directory.name, symlinks=True)
    except FileNotFoundError:
        return  # they were deleted
    except OSError as error:
        raise _unwritable(target, error) from error


def _keep_images(target: Path, checkpoints: Sequence[dict[str, object]]) -> None:
    """Keep the containers' checkpoints for the fork as well.

    Raises:
        ImageUnavailable: the checkpoint with which the fork begins is gone.
    """
    images = list(dict.fromkeys(str(data["id"]) for data in checkpoints if data.get("id")))
    if not images:
        return
    with open_inventory() as inventory:
        inventory.require_checkpoint(images[-1])
        for image in images:
            inventory.retain_checkpoint(image, owner=target)


def _revoked_since(directory: Path, shared: Sequence[SDKEvent]) -> list[int]:
    """Return approvals that were in force at the fork's event and were revoked later; a fork must not restore them."""
    then: set[int] = set()
    in_force_now: set[int] = set()
    for event in shared:
        _note_approval(then, event)
    stream_events(directory, lambda event: _note_approval(in_force_now, event))
    return sorted(then - in_force_now)


def _note_approval(in_force: set[int], event: SDKEvent) -> None:
    """Update the approvals in force with an event; a malformed revocation revokes all."""
    number = event.data.get("number")
    if event.type == "approval" and isinstance(number, int):
        in_force.add(number)
    elif event.type == "approval_revoked" and isinstance(number, int):
        in_force.discard(number)
    elif event.type == "approval_revoked":
        in_force.clear()


def _add_own_events(forked: Fork, name: str, *, knows_tools: bool, revoked: Sequence[int]) -> None:
    at, data = forked.at, forked.kept.data
    bound = data.get("workspace")
    if bound is not None and forked.workspace is not None:
        bound = {**bound, **forked.workspace.record()}
    with EventLog(forked.directory, conversation_id=forked.id) as log:
        for number in revoked:
            log.append(events.approval_revoked(number=number, by=f"fork of {name}"))
        position_text = f"after event {at}" if at >= 0 else "before the first event"
        message = f"This conversation goes on from {name!r} as it was {position_text}."
        if not knows_tools:
            message += f" {TOOLS_UNKNOWN}"
        log.append(events.notice(code=FORKED, message=message, conversation_id=name, at=at))
        log.append(
            events.checkpoint(
                id=data.get("id"),
                label=f"as in {name} {position_text}",
                workspace=bound,
                size_bytes=int(data.get("size_bytes") or 0),
                image=data.get("image"),
                **ToolStateSnapshots(forked.directory).keep(),
                **({COPIED_FROM: data[COPIED_FROM]} if COPIED_FROM in data else {}),
            )
        )


def _unwritable(target: Path, error: OSError) -> UsageError:
    reason = error.strerror or "some files could not be copied"
    return UsageError(f"The fork cannot be written to {str(target)!r}: {reason}. Free space.")
