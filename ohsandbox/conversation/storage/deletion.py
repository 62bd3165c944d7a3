"""`ConversationDeleter`: removes conversations with their files, containers and checkpoints."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.conversation.storage.catalog import delete_stored
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.persistence.layout import CONTAINER_NOTE_NAME
from ohsandbox.private_files import open_regular, write_atomically
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.inventory import Removal

if TYPE_CHECKING:
    from ohsandbox.runtime.inventory import Inventory


_MAX_BYTES = 16 * 1024
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


class Deletion(NamedTuple):
    """What was removed of one conversation, and what was not."""

    freed_bytes: int
    """Of files on this machine; images and containers are not counted."""
    removed: tuple[str, ...]
    """Names of its container and its checkpoints."""
    left: tuple[str, ...]
    """A sentence for each thing that stays with the engine, with the reason."""


class ConversationDeleter:
    """A `with` block that deletes conversations; connects to the engine once, and only where that may hold something.

    Another conversation's is never touched: a container goes where the conversation's own directory notes it, its lease
    is in our state directory, names this very container and this conversation, it was not to be kept, and nobody works
    in it; a checkpoint by its record's owner. What a fork keeps as well stays for the fork.
    """

    def __init__(self, inventory: Inventory | None = None) -> None:
        """None opens the default one of this machine, where it is needed."""
        self._inventory = inventory
        self._is_ours = inventory is None
        self._fault: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours and self._inventory is not None:
            self._inventory.close()
            self._inventory = None

    def delete(self, directory: Path) -> Deletion:
        """Delete a conversation: its directory first, so that a crash leaves nothing that could be resumed in part.

        Raises:
            ConversationOpenError: a process has it open; nothing was removed.
            UsageError: it cannot be removed.
        """
        container = noted_container(directory)
        freed = delete_stored(directory)
        return Deletion(freed, *self.clear(directory, container))

    def clear(self, directory: Path, container: str | None) -> Removal:
        """Remove what a deleted conversation left with the engine; returns what was removed and what is left, and why.

        Twice is fine, and so is that all of it is gone. What an engine that fails leaves, `gc` removes.
        """
        done = Removal()
        try:
            if (inventory := self._open(container)) is None:
                return done
            if container is not None:
                done += inventory.remove_sandbox(container, conversation=directory.name)
            done += inventory.release_checkpoints(directory)
        except OhsandboxError as error:
            left = f"What its sandbox left was not removed: {error} `ohsandbox gc` does it within three days."
            done += Removal(left=(left,))
        return done

    def _open(self, container: str | None) -> Inventory | None:
        """None where it holds nothing of a conversation.

        Raises:
            SandboxUnavailable: no engine answers, now or when it was last asked.
        """
        if self._inventory is None:
            if container is None and next(subdirectory("checkpoints").iterdir(), None) is None:
                return None
            if self._fault is not None:
                raise SandboxUnavailable(self._fault)
            try:
                self._inventory = open_inventory()
            except SandboxUnavailable as error:
                self._fault = str(error)
                raise
        return self._inventory


def note_container(directory: Path, sandbox_id: str) -> None:
    """Note the conversation's container in its directory, so that it can be removed with the conversation.

    The container's own label holds the conversation's id alone, and a conversation of the same id may lie elsewhere: a
    copy, or one in another directory. The note holds for the directory that it names and for no copy of it. Where it
    cannot be written, the container is left to `gc`.
    """
    if not _CONTAINER_ID.fullmatch(sandbox_id) or noted_container(directory) == sandbox_id:
        return
    note = {"container": sandbox_id, "directory": str(directory.absolute())}
    try:
        write_atomically(directory / CONTAINER_NOTE_NAME, json.dumps(note).encode() + b"\n")
    except OSError:
        return


def noted_container(directory: Path) -> str | None:
    """The id of the container; None where none is noted for a conversation in this directory."""
    try:
        with os.fdopen(open_regular(directory / CONTAINER_NOTE_NAME, os.O_RDONLY, name="Note"), "rb") as file:
            note = json.loads(file.read(_MAX_BYTES))
        found, owner = str(note["container"]), Path(str(note["directory"]))
        is_ours = owner.resolve() == directory.resolve()
    except (OSError, ValueError, LookupError, TypeError, UsageError):
        return None
    return found if _CONTAINER_ID.fullmatch(found) and is_ours else None
