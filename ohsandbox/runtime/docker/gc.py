"""Listing the sandboxes of an engine, and removing those whose owner died."""

from __future__ import annotations

import contextlib
import hashlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker import guard, lease
from ohsandbox.runtime.docker.checkpoint_retention import records, release
from ohsandbox.runtime.docker.container import remove
from ohsandbox.runtime.docker.engine import connect
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.inventory import GcResult, SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.docker.checkpoint_retention import CheckpointRecord
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.docker.lease import LeaseRecord

WORKSPACE_LABEL = "ohsandbox.workspace"


def list_sandboxes(engine: Engine | None = None) -> list[SandboxInfo]:
    """Return every container with a lease label, oldest first; also those of others, which `gc` never removes.

    Raises:
        EngineUnavailable: no engine answers.
    """
    with _connected(engine) as there:
        return sorted((_info(found) for found in _labelled(there)), key=lambda info: info.created_at)


def gc(engine: Engine | None = None, *, kept: bool = False) -> list[GcResult]:
    """Remove the containers whose owner is dead, lease files without a container, checkpoints without a conversation.

    A container is removed if all of this holds: its label names a lease file of this state directory, that file names
    this container, nobody holds its lock, and it is neither kept nor resumable (or kept is set). A label alone is never
    enough: committed images inherit labels, and anybody may write them. A container without its lease file stays, and
    `ps` shows it. The lock files that the guard of a dead owner's workspace held are removed too.

    Raises:
        EngineUnavailable: no engine answers.
        UsageError: the state directory cannot be read.
    """
    with _connected(engine) as there:
        before = lease.all_ids()  # a lease taken later may have no container yet
        workspaces = _workspaces_of_the_dead(there, before)
        containers = _labelled(there)
        reaped = [done for found in containers if (done := _reap(there, found, kept=kept))]
        present = {_lease_id(found) for found in containers}
        forgotten = [done for one in before if one not in present and (done := _forget(there, one))]
        dropped = [done for record in orphaned_checkpoints(there) if (done := _drop(there, record))]
        for workspace in workspaces:
            _unlock(there, workspace)
        return reaped + forgotten + dropped


def digest(workspace: str) -> str:
    """Return the label value for a bound workspace."""
    return hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]


def of_workspace(engine: Engine, workspace: str, *, stopped: bool = False) -> list[dict[str, Any]]:
    """Return anybody's running containers that bind a directory; with stopped, the others too.

    Raises:
        SandboxUnavailable: the engine does not report them.
    """
    with engine_errors("looking for other sandboxes of the workspace"):
        filters = {"label": [f"{WORKSPACE_LABEL}={digest(workspace)}"]} | ({} if stopped else {"status": ["running"]})
        return list(engine.api.containers(all=stopped, filters=filters))


def _workspaces_of_the_dead(engine: Engine, lease_ids: list[str]) -> set[str]:
    """Return the workspaces of sandboxes whose owners are dead."""
    found = (lease.read(one) for one in lease_ids if not lease.owner_alive(one))
    return {one.workspace for one in found if one is not None and one.workspace and one.engine == engine.address.url}


def _unlock(engine: Engine, workspace: str) -> None:
    """Release the guard so that the host's git can change the configuration, unless a sandbox works there or will."""
    with contextlib.suppress(SandboxUnavailable):
        containers = of_workspace(engine, workspace, stopped=True)
        if any(found.get("State") == "running" for found in containers):
            return
        records = ((one, lease.read(one)) for one in lease.all_ids())
        if not any(found and found.workspace == workspace and lease.owner_alive(one) for one, found in records):
            guard.release(workspace, gone=not containers)


def orphans_here(engine: Engine) -> bool:
    """Whether a lease of this engine has a dead owner; reads only the state directory, 5 us per lease."""
    for one in lease.all_ids():
        record = lease.read(one)
        if record is None or record.keep or lease.is_resumable(record) or record.engine != engine.address.url:
            continue
        if not lease.owner_alive(one):
            return True
    return False


def orphaned_checkpoints(engine: Engine | None = None) -> list[CheckpointRecord]:
    """Return the records of checkpoints whose conversation has been deleted.

    Raises:
        EngineUnavailable: no engine answers.
    """
    with _connected(engine) as there:
        return [record for record in records(there) if record.is_orphan]


def _drop(engine: Engine, record: CheckpointRecord) -> GcResult | None:
    try:
        if not release(engine, record):
            return None
    except SandboxUnavailable as error:
        return GcResult(record.name, record.id, "failed", str(error))
    return GcResult(record.name, record.id, "removed", "its conversation is gone")


def _reap(engine: Engine, found: dict[str, Any], *, kept: bool) -> GcResult | None:
    record = own_record(found)
    if record is None or ((record.keep or lease.is_resumable(record)) and not kept):
        return None
    with lease.try_lock(record.id) as owner_is_dead:
        if not owner_is_dead:
            return None
        try:
            remove(engine, str(found["Id"]))
        except SandboxUnavailable as error:
            return GcResult(record.container, str(found["Id"]), "failed", str(error))
        lease.remove_file(record.id)
    return GcResult(record.container, str(found["Id"]), "removed", f"its owner, process {record.pid}, is gone")


def _forget(engine: Engine, lease_id: str) -> GcResult | None:
    """Remove a lease of this engine whose owner is dead and whose container is gone."""
    record = lease.read(lease_id)
    if record is None or record.engine != engine.address.url:
        return None
    with lease.try_lock(lease_id) as owner_is_dead:
        if not owner_is_dead:
            return None
        lease.remove_file(lease_id)
    return GcResult(record.container, "", "forgotten", "its container is gone")


def _labelled(engine: Engine) -> list[dict[str, Any]]:
    with engine_errors("listing the sandboxes"):
        return list(engine.api.containers(all=True, filters={"label": lease.LEASE_LABEL}))


def _lease_id(found: dict[str, Any]) -> str:
    return str((found.get("Labels") or {}).get(lease.LEASE_LABEL, ""))


def _name(found: dict[str, Any]) -> str:
    names = found.get("Names") or [""]
    return str(names[0]).lstrip("/")


def own_record(found: dict[str, Any]) -> LeaseRecord | None:
    """Return the lease record that names this container; None if the label does not belong to it."""
    record = lease.read(_lease_id(found))
    return record if record is not None and record.container == _name(found) else None


def _info(found: dict[str, Any]) -> SandboxInfo:
    record = own_record(found)
    labels = found.get("Labels") or {}
    return SandboxInfo(
        id=str(found["Id"]),
        name=_name(found),
        image=str(labels.get("ohsandbox.image") or found.get("Image", "")),
        state=str(found.get("State", "")),
        created_at=datetime.fromtimestamp(int(found.get("Created", 0)), UTC),
        ours=record is not None,
        owner_pid=record.pid if record else None,
        owner_alive=record is not None and lease.owner_alive(record.id),
        conversation=labels.get("ohsandbox.conversation"),
        keep=record is not None and record.keep,
        resumable=record is not None and lease.is_resumable(record),
    )


@contextlib.contextmanager
def _connected(engine: Engine | None) -> Iterator[Engine]:
    """Yield the given engine, or a connection of our own for the block."""
    if engine is not None:
        yield engine
        return
    own = connect()
    try:
        yield own
    finally:
        own.close()
