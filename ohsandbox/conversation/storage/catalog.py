"""Stored conversations: find, list, read and delete them without opening them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from ohsandbox.arguments import expect
from ohsandbox.conversation.storage.metadata import (
    ConversationMetadata,
    FileConversationStore,
    MetadataProjection,
    write_metadata,
)
from ohsandbox.errors import LogCorruptError, OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.paths import conversations_dir, subdirectory
from ohsandbox.persistence import LOG_NAME, DirectoryLock, holder_of, stream_events
from ohsandbox.persistence.layout import AGENTS_NAME, CONTAINER_NOTE_NAME, METADATA_NAME, is_id
from ohsandbox.persistence.recency import written_order
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime.factory import open_inventory
from ohsandbox.runtime.inventory import Removal
from ohsandbox.runtime.owners import note_deletion
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime.inventory import Inventory

LAST = "last"
"""Word for the newest conversation of this directory, else of all, unless a conversation has this id."""

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of an event with a valid checksum and invalid fields: another program wrote the log."""

_DELETED_PREFIX = ".deleted-"
_SHOWN_IDS = 5
_MAX_NOTE_BYTES = 16 * 1024
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


class StoredConversation(NamedTuple):
    """A conversation on disk."""

    directory: Path
    metadata: ConversationMetadata
    holder: str | None
    """The process that has it open; None if there is none."""
    fault: str | None
    """Why its log cannot be read; the metadata is then what was known last."""

    @property
    def id(self) -> str:
        """The conversation's id, which is the directory's name."""
        return self.directory.name

    @property
    def sub_agents(self) -> list[str]:
        """Names of its sub-agents; `find_stored` takes `id/name`."""
        return sorted(path.name for path in _conversations_in(self.directory / AGENTS_NAME))


def list_stored(root: Path) -> list[StoredConversation]:
    """Return all conversations in root, also those without a readable log, the one that was written last first.

    Those that nothing was written to since earlier versions come last, by the times of their last events. If
    `metadata.json` is missing or older than the log, the log is read, and the metadata saved.

    Raises:
        UsageError: root cannot be read.
    """
    stored, order = [read_stored(directory) for directory in _conversations_in(root)], written_order(root)
    return sorted(stored, key=lambda one: (order.get(one.id, -1), one.metadata.updated_at, one.id), reverse=True)


def stored_before(root: Path, moment: datetime) -> list[StoredConversation]:
    """Return the conversations in root that were written before a moment, by their times and by their order.

    A clock that was wrong makes none of them old: what was written after another one is not older than that, and one
    whose last event has a time that is still to come is never among them.

    Raises:
        UsageError: root cannot be read.
    """
    now, latest, old, order = datetime.now(UTC), datetime.min.replace(tzinfo=UTC), [], written_order(root)
    for conversation in reversed(list_stored(root)):
        if (updated_at := conversation.metadata.updated_at) > now:
            continue
        if conversation.id in order:
            latest = max(latest, updated_at)
        if max(latest, updated_at) < moment:
            old.append(conversation)
    return old


def find_stored(root: Path, wanted: str) -> Path:
    """Return the directory of a conversation by its id, its beginning, or "last"; `ID/NAME` is a sub-agent.

    "last" is the newest that was run in the working directory, or works on it, else the newest of all; one in which
    nothing was said does not count.

    Raises:
        UsageError: there is none, or several begin so; the message names them.
    """
    name, _, sub_agent = wanted.partition("/")
    directory = _find(root, name)
    return find_stored(directory / AGENTS_NAME, sub_agent) if sub_agent else directory


def find_conversation(root: Path, wanted: str | None) -> str:
    """Return the id of a conversation by its id or its beginning; None is "last", as for `find_stored`.

    Raises:
        UsageError: there is none, or several begin so.
    """
    expect("conversation_id", wanted, str)
    if wanted is not None:
        if "/" in wanted:
            raise UsageError(
                f"Invalid conversation id {wanted[:200]!r}: a sub-agent cannot be resumed by itself. Resume its parent."
            )
        return find_stored(root, wanted).name
    newest = _newest(root)
    if newest is None:
        raise UsageError(f"No conversation to resume in {str(root)!r}. Start one: ohsandbox run TASK.")
    return newest.name


def read_stored(directory: Path, *, saves: bool = True) -> StoredConversation:
    """Return the conversation in a directory; saves keeps metadata that had to be read from the log."""
    holder, fault = holder_of(directory), None
    metadata = FileConversationStore(directory.parent).load(directory.name)
    try:
        size = (directory / LOG_NAME).lstat().st_size
    except OSError:
        size = -1
    if metadata is None or metadata.log_bytes != size:
        cached = metadata
        metadata, fault = _read_metadata(directory)
        if fault is None and saves:
            with contextlib.suppress(OSError, ValueError):  # a read-only disk, or it was deleted meanwhile
                write_metadata(directory, metadata)
        elif fault is not None and cached is not None:
            metadata = cached
    return StoredConversation(directory, metadata, holder, fault)


def delete_stored(directory: Path) -> int:
    """Remove a conversation's directory; return the number of bytes of its files.

    It disappears by one rename; if a crash leaves files after that, the next deletion removes them.

    Raises:
        ConversationOpenError: a process has it open.
        UsageError: it cannot be removed.
    """
    root = directory.parent
    size = size_of(directory)
    try:
        with DirectoryLock(directory, name=directory.name):
            directory.rename(root / f"{_DELETED_PREFIX}{directory.name}-{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):  # without a note `gc` lists what it owned, and does not remove it
            note_deletion(directory)
        for leftover in root.glob(f"{_DELETED_PREFIX}*"):
            shutil.rmtree(leftover)
    except OSError as error:
        raise UsageError(
            f"Conversation {str(directory)!r} cannot be removed: {error.strerror}. Remove it as its owner."
        ) from error
    return size


def size_of(directory: Path) -> int:
    """Return the number of bytes of all files in a directory, without following links."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _find(root: Path, wanted_id: str) -> Path:
    directories = _conversations_in(root)
    named = [path for path in directories if path.name == wanted_id]
    if not named and wanted_id == LAST and (newest := _newest(root)):
        named = [newest]
    named = named or [path for path in directories if wanted_id and path.name.startswith(wanted_id)]
    if len(named) == 1:
        return named[0]
    if named:
        some = ", ".join(path.name for path in sorted(named)[:_SHOWN_IDS])
        more = f" and {len(named) - _SHOWN_IDS} more" if len(named) > _SHOWN_IDS else ""
        raise UsageError(f"{len(named)} conversations begin with {wanted_id!r}: {some}{more}. Give more of the id.")
    if wanted_id == LAST:
        raise UsageError(f"No conversation with an event in {str(root)!r}. Start one: ohsandbox run TASK.")
    raise UsageError(f"No conversation {wanted_id[:200]!r} in {str(root)!r}. See `ohsandbox conversations`.")


def _newest(root: Path) -> Path | None:
    """Return the newest conversation in which something was said, preferring the working directory; None if none."""
    by_nearness = nearest_first(
        [conversation for conversation in list_stored(root) if not conversation.metadata.is_empty]
    )
    return by_nearness[0].directory if by_nearness else None


def nearest_first(found: Sequence[StoredConversation]) -> list[StoredConversation]:
    """Sort those first that were run in the working directory, or work on it; otherwise keep the order."""
    try:
        here = str(Path.cwd())
    except OSError:  # the working directory was removed
        return [*found]
    return sorted(found, key=lambda conversation: not conversation.metadata.is_of(here))


def _conversations_in(root: Path) -> list[Path]:
    """Return the directories in root that have a log or metadata; [] if root does not exist.

    Raises:
        UsageError: root cannot be read.
    """
    try:
        with os.scandir(root) as scan:
            entries = [Path(entry) for entry in scan if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"Directory {str(root)!r} cannot be read: {error.strerror}."
        raise UsageError(f"{message} Name another with --dir.") from error
    return [
        path
        for path in entries
        if is_id(path.name) and any(os.path.lexists(path / name) for name in (LOG_NAME, METADATA_NAME))
    ]


def _read_metadata(directory: Path) -> tuple[ConversationMetadata, str | None]:
    """Return the metadata from the log, as far as it can be read, and the reason if it cannot."""
    tally, end_offset, fault = MetadataProjection(), 0, None
    try:
        try:
            end_offset = stream_events(directory, tally.add).end_offset
        except (UsageError, LogCorruptError) as error:
            fault = str(error)
        return tally.metadata(directory.name, log_bytes=end_offset), fault
    except MALFORMED as error:
        fault = f"Log {str(directory / LOG_NAME)!r} holds an event that this ohsandbox cannot read: {error!r}."
        return MetadataProjection().metadata(directory.name, log_bytes=0), fault


# --- with their containers and checkpoints ------------------------------------------------------------


class _Deletion(NamedTuple):
    """The result of deleting one conversation."""

    freed_bytes: int
    """Bytes of files on this machine, without images and containers."""
    removed: tuple[str, ...]
    """Names of its container and its checkpoints that were removed."""
    left: tuple[str, ...]
    """A sentence about each thing that the engine still has, with the reason."""


class ConversationDeleter:
    """A `with` block that deletes conversations; it connects to the engine once, and only if that may have something.

    It never touches what belongs to another conversation. A container is removed if the conversation's directory notes
    it, and its lease in our state directory names this container and this conversation, does not keep it, and nobody
    works in it; a checkpoint, if its record names the conversation as owner. What a fork also owns stays.
    """

    def __init__(self, inventory: Inventory | None = None) -> None:
        """Use an inventory; None opens this machine's when it is needed."""
        self._inventory = inventory
        self._is_ours = inventory is None
        self._fault: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours and self._inventory is not None:
            self._inventory.close()
            self._inventory = None

    def delete(self, directory: Path) -> _Deletion:
        """Delete a conversation, its directory first, so that a crash leaves nothing that could be resumed in part.

        Raises:
            ConversationOpenError: a process has it open; nothing was removed.
            UsageError: it cannot be removed.
        """
        container = noted_container(directory)
        freed = delete_stored(directory)
        _remove_network_log(directory)
        return _Deletion(freed, *self.clear(directory, container))

    def clear(self, directory: Path, container: str | None) -> Removal:
        """Remove the container and checkpoints of a deleted conversation; return what was removed, and what was not.

        Idempotent. If the engine fails, `gc` removes them later.
        """
        done = Removal()
        try:
            if (inventory := self._open(container)) is None:
                return done
            if container is not None:
                done += inventory.remove_sandbox(container, conversation=directory.name)
            done += inventory.release_checkpoints(directory)
        except OhsandboxError as error:
            leftover_note = f"What its sandbox left was not removed: {error} `ohsandbox gc` does it within three days."
            done += Removal(left=(leftover_note,))
        return done

    def _open(self, container: str | None) -> Inventory | None:
        """Return the inventory; None if the engine has nothing of a conversation.

        Raises:
            SandboxUnavailable: the engine does not answer, now or at an earlier call.
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


def _remove_network_log(directory: Path) -> None:
    """Remove the log of its network decisions, unless it belongs to a conversation of the same id in another place."""
    if directory.parent.resolve() != conversations_dir().resolve():
        return
    from ohsandbox.network.audit import remove_audit_log  # noqa: PLC0415 - what it needs is slow to import

    with contextlib.suppress(UsageError):
        remove_audit_log(directory.name)


def note_container(directory: Path, sandbox_id: str) -> None:
    """Note the conversation's container in its directory, so that it can be removed with the conversation.

    The container's label has only the conversation's id, and a copy in another directory has the same id. So the note
    names the directory, and does not hold in a copy. If it cannot be written, the container is left to `gc`.
    """
    if not _CONTAINER_ID.fullmatch(sandbox_id) or noted_container(directory) == sandbox_id:
        return
    note = {"container": sandbox_id, "directory": str(directory.absolute())}
    try:
        write_atomically(directory / CONTAINER_NOTE_NAME, json.dumps(note).encode() + b"\n")
    except OSError:
        return


def noted_container(directory: Path) -> str | None:
    """Return the id of the container that is noted for a conversation in this directory; None if there is none."""
    try:
        note = load_json(read_regular(directory / CONTAINER_NOTE_NAME, limit_bytes=_MAX_NOTE_BYTES))
        container, owner = str(note["container"]), Path(str(note["directory"]))
        is_ours = owner.resolve() == directory.resolve()
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return container if _CONTAINER_ID.fullmatch(container) and is_ours else None
