"""`DockerInventory`: containers, checkpoint images and images of a Docker engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.docker import checkpoint_retention, checkpoints, engine, gc, lease
from ohsandbox.runtime.docker.container import remove
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.inventory import Inventory, Removal

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine
    from ohsandbox.runtime.inventory import GcResult, SandboxInfo


class DockerInventory(Inventory):
    """Uses one connection to an engine."""

    def __init__(self, connected: Engine | None = None) -> None:
        """Use connected; None connects to the engine that the environment names, and `close` closes that connection.

        Raises:
            EngineUnavailable: no engine answers.
        """
        self._engine = engine.connect() if connected is None else connected
        self._owns_engine = connected is None

    def list_sandboxes(self) -> list[SandboxInfo]:
        """See `Inventory.list_sandboxes`."""
        return gc.list_sandboxes(self._engine)

    def remove_sandbox(self, sandbox_id: str, *, conversation: str) -> Removal:
        """Remove a container whose lease is in our state directory and names this container and conversation."""
        done = Removal()
        with engine_errors("looking for the conversation's sandbox"):
            listed = list(self._engine.api.containers(all=True, filters={"id": sandbox_id, "label": lease.LEASE_LABEL}))
        for found in listed:
            record = gc.own_record(found)
            if str(found["Id"]) != sandbox_id or record is None or record.conversation != conversation:
                continue
            if record.keep:
                remedy = f"Remove it: docker rm -f {record.container}"
                done += Removal(left=(f"Container {record.container} was to be kept. {remedy}",))
                continue
            with lease.try_lock(record.id) as is_idle:
                if not is_idle:
                    done += Removal(left=(f"A process works in container {record.container}.",))
                    continue
                remove(self._engine, sandbox_id)
                lease.remove_file(record.id)
            done += Removal(removed=(record.container,))
        return done

    def collect_garbage(self, *, kept: bool = False) -> list[GcResult]:
        """See `gc.gc`."""
        return gc.gc(self._engine, kept=kept)

    def require_checkpoint(self, checkpoint_id: str) -> None:
        """See `Inventory.require_checkpoint`."""
        checkpoints.require(self._engine, checkpoint_id)

    def retain_checkpoint(self, checkpoint_id: str, *, owner: Path) -> None:
        """Add a tag to the image, with a record that names the owner."""
        checkpoint_retention.also_for(self._engine, checkpoint_id, owner=owner)

    def drop_checkpoint(self, checkpoint_id: str) -> None:
        """See `Inventory.drop_checkpoint`."""
        checkpoints.drop(self._engine, checkpoint_id)

    def release_checkpoints(self, owner: Path) -> Removal:
        """Remove the owner's tags; the last tag removes the image, unless a container uses it."""
        place = owner.resolve()
        done = Removal()
        for record in checkpoint_retention.records(self._engine):
            if record.owner is None or Path(record.owner).resolve() != place:
                continue
            try:
                is_released = checkpoint_retention.release(self._engine, record)
            except SandboxUnavailable as error:
                left = f"Checkpoint {record.name} was not removed: {error} `ohsandbox gc` removes it within three days."
                return done + Removal(left=(left,))
            if is_released:
                done += Removal(removed=(record.name,))
            else:
                left = f"A container stands on checkpoint {record.name}; `ohsandbox gc` removes it later."
                done += Removal(left=(left,))
        return done

    def orphaned_checkpoints(self) -> list[str]:
        """See `Inventory.orphaned_checkpoints`."""
        return [record.name for record in gc.orphaned_checkpoints(self._engine)]

    def list_images(self) -> list[str]:
        """See `Inventory.list_images`."""
        with engine_errors("listing the images"):
            found = self._engine.api.images()
        tags = [str(tag) for image in found for tag in image.get("RepoTags") or []]
        prefix = f"{checkpoint_retention.REPOSITORY}:"
        return [tag for tag in tags if tag != "<none>:<none>" and not tag.startswith(prefix)]

    def close(self) -> None:
        """Close the connection if we opened it."""
        if self._owns_engine:
            self._engine.close()
