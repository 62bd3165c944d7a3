"""`DockerInventory`: lists the containers, checkpoints and images of an engine, and removes what dead owners left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime import owners
from ohsandbox.runtime.docker.checkpoints import checkpoint_images, setups
from ohsandbox.runtime.docker.container import force_remove
from ohsandbox.runtime.docker.engine import connection as engines
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import build
from ohsandbox.runtime.docker.inventory import shipped_images
from ohsandbox.runtime.docker.labels import (
    CONVERSATION_LABEL,
    IMAGE_LABEL,
    LABELS_LABEL,
    LEASE_LABEL,
    OWNER_LABEL,
)
from ohsandbox.runtime.docker.monitoring.usage import MAX_STATS_REQUESTS, STATS_TIMEOUT_S, read_stats
from ohsandbox.runtime.docker.mounts import caches
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.ownership.project import remove_shared
from ohsandbox.runtime.docker.services import service_inventory
from ohsandbox.runtime.inventory import CacheInfo, GcResult, Inventory, Removal, SandboxInfo, ServiceInfo, removal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.ownership.lease import LeaseRecord
    from ohsandbox.runtime.inventory import SandboxUsage, StoredImage
    from ohsandbox.runtime.results import PullProgress


class DockerInventory(Inventory):
    """Inventory of one engine, over one connection."""

    def __init__(self, engine: Engine | None = None) -> None:
        """Use engine; None connects to the one that the environment names, and `close` closes that connection."""
        self._engine = engines.connect() if engine is None else engine
        self._owns_engine = engine is None

    def close(self) -> None:
        """Close the connection if we opened it."""
        if self._owns_engine:
            self._engine.close()

    # --- sandboxes ---

    def list_sandboxes(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Return every container with a lease label, even those of others, which `collect_garbage` never removes."""
        found = (_info(self._engine, one) for one in self._labelled() if not (one.get("Labels") or {}).get(OWNER_LABEL))
        wanted = [info for info in found if (labels or {}).items() <= dict(info.labels).items()]
        return sorted(wanted, key=lambda info: info.created_at)

    def list_services(self) -> list[ServiceInfo]:
        """See `Inventory.list_services`."""
        records = (lease.read(one) for one in lease.all_ids())
        here = self._engine.address.url
        return sorted(
            info for one in records if one and one.engine == here for info in service_inventory.infos(self._engine, one)
        )

    def service_log(self, service_id: str, *, lines: int | None = None) -> str:
        """See `Inventory.service_log`."""
        return service_inventory.read_log(self._engine, service_id, lines=lines)

    def usage(self, sandbox_ids: Sequence[str], *, timeout_s: float) -> dict[str, SandboxUsage]:
        """See `Inventory.usage`. Takes at most timeout_s plus the time of one request, for any number of sandboxes."""
        until = time.monotonic() + timeout_s
        left = deque(sandbox_ids)
        found: dict[str, SandboxUsage] = {}

        def read() -> None:
            with contextlib.suppress(IndexError):  # nothing is left to do
                while True:
                    name = left.popleft()
                    if (usage := read_stats(self._engine, name, until=until)) is not None:
                        found[name] = usage

        # daemon threads: `ohsandbox top` need not wait for the engine when it exits
        readers = [threading.Thread(target=read, daemon=True) for _ in sandbox_ids[:MAX_STATS_REQUESTS]]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, until + STATS_TIMEOUT_S - time.monotonic()))
        return dict(found)

    def remove_sandbox(self, sandbox_id: str, *, conversation: str | None) -> Removal:
        """Remove a container whose lease is in our state directory and names this container and conversation."""
        done = Removal()
        for found in self._labelled({"id": sandbox_id}):
            record = own_record(found)
            if str(found["Id"]) != sandbox_id or record is None or conversation not in {None, record.conversation}:
                continue
            if record.keep and conversation is not None:
                remedy = f"Remove it: docker rm -f {record.container}"
                done += Removal(left=(f"Container {record.container} was to be kept. {remedy}",))
            elif _remove_idle(self._engine, record, sandbox_id):
                done += Removal(removed=(record.container,))
                _unlock(self._engine, record.workspaces)
            else:
                done += Removal(left=(f"A process works in container {record.container}.",))
        return done

    def collect_garbage(self, *, kept: bool = False, keep_networks: bool = False) -> list[GcResult]:
        """Remove containers whose owner is dead, leases without a container, and checkpoints without a conversation.

        Networks and volumes of dead owners, and built images and caches that were unused for long, are removed too.
        A container is removed if all of this holds: its label names a lease file of this state directory, that file
        names this container, nobody holds its lock, and it is neither kept nor resumable (or kept is set). A label
        alone is never enough: committed images inherit labels, and anybody may write them. A container without its
        lease file stays, and `ps` shows it. Lock files that the guard left in a dead owner's workspace are removed too.
        """
        engine = self._engine
        before = lease.all_ids()  # read first: a lease taken later may have no container yet
        dead = [held for one in before if not lease.owner_alive(one) and (held := lease.read(one))]
        containers = self._labelled()
        present = {_lease_id(found) for found in containers}
        done = [one for found in containers for one in _reap(engine, found, kept=kept)]
        done += [one for lease_id in before if lease_id not in present for one in _forget(engine, lease_id)]
        done += remove_shared(engine, {one.id for one in dead if one.engine == engine.address.url})
        setups.expire()
        why = "its conversation, or its setup, was deleted"
        for record in checkpoint_images.records(engine):
            if record.is_orphan:
                done += removal(record.name, record.id, why, partial(checkpoint_images.release, engine, record))
        owners.keep_notes_of(record.owner for record in checkpoint_images.all_records() if record.owner)
        done += build.collect(engine)
        done += caches.collect(engine)
        if not keep_networks:
            open_network.collect(engine)
        _unlock(engine, (path for one in dead if one.engine == engine.address.url for path in one.workspaces))
        return done

    def _labelled(self, more: dict[str, str] | None = None) -> list[dict[str, Any]]:
        with engine_errors("listing the sandboxes"):
            listed = self._engine.api.containers(all=True, filters={"label": LEASE_LABEL} | (more or {}))
        return [one for one in listed if _lease_id(one)]

    # --- checkpoints and images ---

    def require_checkpoint(self, checkpoint_id: str) -> None:
        """See `Inventory.require_checkpoint`."""
        checkpoint_images.require(self._engine, checkpoint_id)

    def retain_checkpoint(self, checkpoint_id: str, *, owner: Path) -> None:
        """Add a tag to the image, with a record that names the owner."""
        checkpoint_images.also_for(self._engine, checkpoint_id, owner=owner)

    def drop_checkpoint(self, checkpoint_id: str) -> None:
        """See `Inventory.drop_checkpoint`."""
        checkpoint_images.drop(self._engine, checkpoint_id)

    def release_checkpoints(self, owner: Path) -> Removal:
        """Remove the owner's tags; the last tag removes the image, unless a container uses it."""
        done = Removal()
        for record in checkpoint_images.records(self._engine):
            if not record.belongs_to(owner):
                continue
            try:
                is_released = checkpoint_images.release(self._engine, record)
            except SandboxUnavailable as error:
                left = f"Checkpoint {record.name} was not removed: {error} `ohsandbox gc` removes it within three days."
                return done + Removal(left=(left,))
            left = f"A container stands on checkpoint {record.name}; `ohsandbox gc` removes it later."
            done += Removal(removed=(record.name,)) if is_released else Removal(left=(left,))
        return done

    def orphaned_checkpoints(self) -> list[str]:
        """See `Inventory.orphaned_checkpoints`."""
        return [record.name for record in checkpoint_images.records(self._engine) if record.is_orphan]

    def lost_checkpoints(self) -> list[StoredImage]:
        """See `Inventory.lost_checkpoints`."""
        lost = [record for record in checkpoint_images.records(self._engine) if record.is_lost]
        return [shipped_images.of_record(record) for record in lost]

    def unused_images(self) -> list[str]:
        """See `Inventory.unused_images`."""
        return build.unused(self._engine)

    # --- caches of package tools ---

    def list_caches(self) -> list[CacheInfo]:
        """See `Inventory.list_caches`."""
        return caches.infos(self._engine)

    def orphaned_caches(self) -> list[CacheInfo]:
        """See `Inventory.orphaned_caches`."""
        return caches.orphan_infos(self._engine)

    def unused_caches(self) -> list[str]:
        """See `Inventory.unused_caches`."""
        return [volume for volume, _ in caches.unused(self._engine)]

    def remove_cache(self, name: str) -> bool:
        """See `Inventory.remove_cache`."""
        return caches.remove(self._engine, name)

    def build_shipped_image(
        self, name: str, *, base: str | None = None, progress: Callable[[PullProgress], None] | None = None
    ) -> str:
        """See `Inventory.build_shipped_image`; the image has neither this machine's certificates nor pip's settings."""
        return shipped_images.build_shipped(self._engine, name, base=base, progress=progress)

    def list_made_images(self) -> list[StoredImage]:
        """See `Inventory.list_made_images`."""
        return shipped_images.list_made(self._engine)

    def remove_image(self, name: str) -> bool:
        """See `Inventory.remove_image`."""
        return shipped_images.remove(self._engine, name)

    def list_images(self) -> list[str]:
        """See `Inventory.list_images`."""
        with engine_errors("listing the images"):
            found = self._engine.api.images()
        tags = [str(tag) for image in found for tag in image.get("RepoTags") or []]
        internal = (
            "<none>:",
            f"{checkpoint_images.REPOSITORY}:",
            f"{build.REPOSITORY}:",
            f"{open_network.REPOSITORY}:",
        )
        return [tag for tag in tags if not tag.startswith(internal)]


def own_record(found: dict[str, Any]) -> LeaseRecord | None:
    """Return the lease record that names this container; None if the label does not belong to it."""
    record = lease.read(_lease_id(found))
    return record if record is not None and record.container == _name(found) else None


def _lease_id(found: dict[str, Any]) -> str:
    return str((found.get("Labels") or {}).get(LEASE_LABEL, ""))


def _name(found: dict[str, Any]) -> str:
    return str((found.get("Names") or [""])[0]).lstrip("/")


def _info(engine: Engine, found: dict[str, Any]) -> SandboxInfo:
    record = own_record(found)
    labels = found.get("Labels") or {}
    if record is None and _has_lease_label_of_image(engine, found):
        labels = {}
    return SandboxInfo(
        id=str(found["Id"]),
        name=_name(found),
        image=str(labels.get(IMAGE_LABEL) or found.get("Image", "")),
        state=str(found.get("State", "")),
        created_at=datetime.fromtimestamp(int(found.get("Created", 0)), UTC),
        ours=record is not None,
        owner_pid=record.pid if record else None,
        owner_alive=record is not None and lease.owner_alive(record.id),
        conversation=record.conversation if record else labels.get(CONVERSATION_LABEL) or None,
        keep=record is not None and record.keep,
        resumable=record is not None and lease.is_resumable(record),
        labels={name: str(labels[name]) for name in str(labels.get(LABELS_LABEL) or "").split() if name in labels},
    )


def _has_lease_label_of_image(engine: Engine, found: dict[str, Any]) -> bool:
    """Return whether a container's lease label may be its image's: anybody starts such a container without us."""
    with contextlib.suppress(SandboxUnavailable), engine_errors("looking at the image of a container"):
        config = engine.api.inspect_image(str(found.get("ImageID") or "")).get("Config") or {}
        return (config.get("Labels") or {}).get(LEASE_LABEL) == _lease_id(found)
    return True  # the image is gone


def _reap(engine: Engine, found: dict[str, Any], *, kept: bool) -> list[GcResult]:
    record = own_record(found)
    if record is None or ((record.keep or lease.is_resumable(record)) and not kept):
        return []
    why, container = f"its owner, process {record.pid}, is gone", str(found["Id"])
    return removal(record.container, container, why, partial(_remove_idle, engine, record, container))


def _forget(engine: Engine, lease_id: str) -> list[GcResult]:
    record = lease.read(lease_id)
    if record is None or record.engine != engine.address.url or not _remove_idle(engine, record, None):
        return []
    return [GcResult(record.container, "", "forgotten", "its container is gone")]


def _remove_idle(engine: Engine, record: LeaseRecord, container: str | None) -> bool:
    """Remove a container, if there is one, and its lease; False if the owner is alive."""
    with lease.try_lock(record.id) as owner_is_dead:
        if not owner_is_dead:
            return False
        if container is not None:
            force_remove(engine, container)
        service_inventory.remove(engine, record)
        if record.network_owner is not None:
            open_network.remove_owner(engine, record.network_owner, record.id)
        lease.remove_file(record.id)
    return True


def _unlock(engine: Engine, workspaces: Iterable[str]) -> None:
    """Release the guard so that the host's git can change the configuration, where no sandbox uses the workspace."""
    if not (released := set(workspaces)):
        return
    from ohsandbox.runtime.docker.mounts import guard  # noqa: PLC0415 - only a bound directory is guarded
    from ohsandbox.runtime.docker.ownership import tree_uses  # noqa: PLC0415 - only a bound directory has uses

    with contextlib.suppress(SandboxUnavailable):
        uses = tree_uses.find(engine)
        for workspace in released:
            guard.release(workspace, uses=uses)
