"""Stored conversations: find, list, read and delete them without opening them."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from ohsandbox.conversation.projections.metadata import MetadataProjection
from ohsandbox.conversation.storage.metadata import ConversationMetadata, FileConversationStore, write_metadata
from ohsandbox.errors import LogCorruptError, UsageError
from ohsandbox.persistence import LOG_NAME, DirectoryLock, holder_of, stream_events
from ohsandbox.persistence.layout import AGENTS_NAME, METADATA_NAME, check_id

LAST = "last"
"""Stands for the conversation with the newest event, where none has this id."""

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of an event whose checksum is right and whose fields are not ours: another program's log."""

_DELETED_PREFIX = ".deleted-"
_SHOWN_IDS = 5


class StoredConversation(NamedTuple):
    """A conversation on disk."""

    directory: Path
    metadata: ConversationMetadata
    holder: str | None
    """The process that has it open; None where none has."""
    fault: str | None
    """Why its log cannot be read; the metadata is then what was last known."""

    @property
    def id(self) -> str:
        """The directory's name."""
        return self.directory.name

    @property
    def sub_agents(self) -> list[str]:
        """Names of its sub-agents; `find_stored` takes `id/name`."""
        return sorted(path.name for path in _conversations_in(self.directory / AGENTS_NAME))


def list_stored(root: Path) -> list[StoredConversation]:
    """Every conversation in root, the one with the newest event first; those without a readable log, too.

    What `metadata.json` does not say, or says of a shorter log, is read from the log, and saved.

    Raises:
        UsageError: root cannot be read.
    """
    found = [read_stored(directory) for directory in _conversations_in(root)]
    return sorted(found, key=lambda one: (one.metadata.updated_at, one.id), reverse=True)


def find_stored(root: Path, wanted: str) -> Path:
    """The directory of a conversation by its id, the only one that begins so, or "last"; `ID/NAME` is its sub-agent.

    Raises:
        UsageError: there is none, or several begin so; the message names them.
    """
    name, _, sub_agent = wanted.partition("/")
    directory = _find(root, name)
    return find_stored(directory / AGENTS_NAME, sub_agent) if sub_agent else directory


def find_conversation(root: Path, wanted: str | None) -> str:
    """The id of a conversation: this one, the only one that begins so, or, for None, the one with the newest event.

    Raises:
        UsageError: there is none, or several begin so.
    """
    if wanted is not None:
        if "/" in wanted:
            raise UsageError(f"{wanted[:200]!r} is no conversation's id. A sub-agent's cannot be resumed by itself.")
        return find_stored(root, wanted).name
    found = list_stored(root)
    if not found:
        raise UsageError(f"There is no conversation in {str(root)!r} to resume. Start one: ohsandbox run TASK.")
    return found[0].id


def read_stored(directory: Path) -> StoredConversation:
    """What a directory holds."""
    holder, fault = holder_of(directory), None
    metadata = FileConversationStore(directory.parent).load(directory.name)
    size = _log_bytes(directory)
    if metadata is None or metadata.log_bytes != size:
        known = metadata
        metadata, fault = _read_metadata(directory)
        if fault is None:
            with contextlib.suppress(OSError, ValueError):  # a read-only disk, or just deleted: the next look reads it
                write_metadata(directory, metadata)
        elif known is not None:
            metadata = known
    return StoredConversation(directory, metadata, holder, fault)


def delete_stored(directory: Path) -> int:
    """Remove a conversation's directory; returns the bytes of its files.

    It vanishes at once, by one rename; what a crash leaves of it after that, the next deletion removes.

    Raises:
        ConversationOpenError: a process has it open.
        UsageError: it cannot be removed.
    """
    root = directory.parent
    size = size_of(directory)
    try:
        with DirectoryLock(directory, name=directory.name):
            directory.rename(root / f"{_DELETED_PREFIX}{directory.name}-{os.urandom(4).hex()}")
        for left in root.glob(f"{_DELETED_PREFIX}*"):
            shutil.rmtree(left)
    except OSError as error:
        raise UsageError(f"Conversation {str(directory)!r} cannot be removed: {error.strerror}.") from error
    return size


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory; links are not followed."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _find(root: Path, wanted: str) -> Path:
    found = _conversations_in(root)
    named = [path for path in found if path.name == wanted]
    if not named and wanted == LAST and found:
        named = [list_stored(root)[0].directory]
    named = named or [path for path in found if wanted and path.name.startswith(wanted)]
    if len(named) == 1:
        return named[0]
    if named:
        some = ", ".join(path.name for path in sorted(named)[:_SHOWN_IDS])
        more = f" and {len(named) - _SHOWN_IDS} more" if len(named) > _SHOWN_IDS else ""
        raise UsageError(f"{len(named)} conversations begin with {wanted!r}: {some}{more}. Give more of the id.")
    raise UsageError(f"There is no conversation {wanted[:200]!r} in {str(root)!r}. See `ohsandbox conversations`.")


def _conversations_in(root: Path) -> list[Path]:
    """Directories that hold a log, or did.

    Raises:
        UsageError: root is there and cannot be read.
    """
    try:
        with os.scandir(root) as found:
            entries = [Path(entry) for entry in found if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        told = f"Directory {str(root)!r} cannot be read: {error.strerror}."
        raise UsageError(f"{told} Name another with --dir.") from error
    return [path for path in entries if _is_id(path.name) and _holds_conversation(path)]


def _holds_conversation(directory: Path) -> bool:
    return any(os.path.lexists(directory / name) for name in (LOG_NAME, METADATA_NAME))


def _is_id(name: str) -> bool:
    try:
        return bool(check_id(name))
    except UsageError:
        return False


def _log_bytes(directory: Path) -> int:
    try:
        return (directory / LOG_NAME).lstat().st_size
    except OSError:
        return -1


def _read_metadata(directory: Path) -> tuple[ConversationMetadata, str | None]:
    """The metadata by the log as far as it can be read, and the reason where it cannot."""
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
