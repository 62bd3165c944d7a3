"""Which container a conversation works in, noted in its directory, so that it can be removed with the conversation.

The container's own label holds the conversation's id alone, and a conversation of the same id may lie elsewhere: a
copy, or one in another directory. The note holds for the directory that it names and for no copy of it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ohsandbox.errors import UsageError
from ohsandbox.persistence.layout import CONTAINER_NOTE_NAME
from ohsandbox.private_files import open_regular, write_atomically

_MAX_BYTES = 16 * 1024
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


def note_container(directory: Path, sandbox_id: str) -> None:
    """Note it, where it is a container; a note that cannot be written leaves the container to `gc`."""
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
