"""`Deleting`: conversations removed with all that they left, on this machine and with the engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ohsandbox.conversation.container_note import noted_container
from ohsandbox.conversation.stored import delete_stored
from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.paths import subdirectory

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine


class Deleted(NamedTuple):
    """What became of one conversation."""

    freed_bytes: int
    """Of files on this machine; images and containers are not counted."""
    removed: tuple[str, ...]
    """Names of its container and its checkpoints."""
    left: tuple[str, ...]
    """A sentence for each thing that stays with the engine, with the reason."""


class Deleting:
    """A block in which conversations are deleted; the engine is asked for once, and only where it may have something.

    Another conversation's is never touched: a container goes where the conversation's own directory notes it, its lease
    is in our state directory, names this very container and this conversation, it was not to be kept, and nobody works
    in it; a checkpoint by its record's owner. What a fork keeps as well stays for the fork.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        """None connects to the engine of this machine."""
        self._engine = engine
        self._is_ours = engine is None
        self._fault: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours and self._engine is not None:
            self._engine.close()
            self._engine = None

    def delete(self, directory: Path) -> Deleted:
        """Remove the conversation first, so that a crash leaves nothing that could still be resumed by halves.

        Raises:
            ConversationOpenError: a process has it open; nothing was removed.
            UsageError: it cannot be removed.
        """
        container = noted_container(directory)
        freed = delete_stored(directory)
        return Deleted(freed, *self.clear(directory, container))

    def clear(self, directory: Path, container: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Remove what a deleted conversation left with the engine; returns what was removed and what is left, and why.

        Twice is fine, and so is that all of it is gone. What an engine that fails leaves, `gc` removes.
        """
        removed: list[str] = []
        left: list[str] = []
        try:
            if (engine := self._the_engine(container)) is None:
                return (), ()
            if container is not None:
                _remove_container(engine, container, directory.name, removed, left)
            _release_checkpoints(engine, directory, removed, left)
        except OhsandboxError as error:
            left.append(f"What its sandbox left was not removed: {error} `ohsandbox gc` does it within three days.")
        return tuple(removed), tuple(left)

    def _the_engine(self, container: str | None) -> Engine | None:
        """None where it has nothing of a conversation's.

        Raises:
            SandboxUnavailable: there is none, now or when it was last asked for.
        """
        from ohsandbox.runtime.docker.engine import connect  # noqa: PLC0415 - docker is for those who use it

        if self._engine is None:
            if container is None and next(subdirectory("checkpoints").iterdir(), None) is None:
                return None
            if self._fault is not None:
                raise SandboxUnavailable(self._fault)
            try:
                self._engine = connect()
            except SandboxUnavailable as error:
                self._fault = str(error)
                raise
        return self._engine


def _remove_container(engine: Engine, container: str, conversation: str, removed: list[str], left: list[str]) -> None:
    from ohsandbox.runtime.docker import gc, lease  # noqa: PLC0415 - docker is for those who use it
    from ohsandbox.runtime.docker.container import remove  # noqa: PLC0415 - as above
    from ohsandbox.runtime.docker.error_mapping import engine_errors  # noqa: PLC0415 - as above

    wanted = {"id": container, "label": lease.LEASE_LABEL}
    with engine_errors("looking for the conversation's sandbox"):
        listed: list[dict[str, Any]] = engine.api.containers(all=True, filters=wanted)
    for found in listed:
        record = gc.own_record(found)
        if str(found["Id"]) != container or record is None or record.conversation != conversation:
            continue
        if record.keep:
            left.append(f"Container {record.container} was to be kept. Remove it: docker rm -f {record.container}")
            continue
        with lease.try_lock(record.id) as is_idle:
            if not is_idle:
                left.append(f"A process works in container {record.container}.")
                continue
            remove(engine, container)
            lease.remove_file(record.id)
        removed.append(record.container)


def _release_checkpoints(engine: Engine, directory: Path, removed: list[str], left: list[str]) -> None:
    from ohsandbox.runtime.docker import checkpoint_retention  # noqa: PLC0415 - docker is for those who use it

    place = directory.resolve()
    for record in checkpoint_retention.records(engine):
        if record.owner is None or Path(record.owner).resolve() != place:
            continue
        if checkpoint_retention.release(engine, record):
            removed.append(record.name)
        else:
            left.append(f"A container stands on checkpoint {record.name}; `ohsandbox gc` removes it later.")
