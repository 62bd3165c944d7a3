"""Directories that own what is in an engine: a checkpoint belongs to a conversation, or to a setup.

That a directory is not there says nothing: its disk may not be mounted, a link may dangle, or the state directory was
moved. So an owner is named relative to the state directory, which holds the record of what it owns, and only a deletion
that was noted here lets that be removed without a question.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from ohsandbox.paths import state_dir, subdirectory
from ohsandbox.private_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOTES = "deleted"
"""Directory below the state directory with an empty file for each deleted owner, named by the hash of the owner's."""


def owner_name(directory: Path) -> str:
    """Return the name of an owner: its path, relative to the state directory if it lies there."""
    path = directory.absolute()
    for base in (state_dir().absolute(), state_dir().resolve()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


def owner_directory(name: str) -> Path:
    """Return the directory of an owner with this name."""
    return state_dir().absolute() / name


def note_deletion(directory: Path) -> None:
    """Note that an owner was deleted on purpose, so that what it owns may be removed; call it after that.

    Raises:
        OSError: the note cannot be written.
    """
    write_atomically(_note(owner_name(directory)), b"", durable=False)


def is_there(name: str) -> bool:
    """Whether an owner's directory can be found now."""
    return owner_directory(name).is_dir()


def is_deleted(name: str) -> bool:
    """Whether an owner was deleted on purpose and has not been brought back since.

    One in /proc is a process, and deleted once it has ended.
    """
    return (name.startswith("/proc/") or os.path.lexists(_note(name))) and not is_there(name)


def keep_notes_of(names: Iterable[str]) -> None:
    """Remove the notes of all owners but these, which still own something, and of those that were brought back."""
    kept = {_note(name) for name in names if not is_there(name)}
    for note in subdirectory(_NOTES).iterdir():
        if note not in kept:
            with contextlib.suppress(OSError):
                note.unlink()


def _note(name: str) -> Path:
    return subdirectory(_NOTES) / hashlib.sha256(os.fsencode(name)).hexdigest()
