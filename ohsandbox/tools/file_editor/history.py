"""The editor's history in a conversation: the last seen state of each file, and the edits that can be undone.

Both are in memory and, if the conversation has a directory, on the host's disk for a resumed conversation. An edit is
stored as the change of bytes, not as a copy of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.private_files import make_private_dir, read_regular, write_atomically
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.runtime.files.text import Splice

MAX_EDITS = 500
MAX_BYTES = 64 * 1024 * 1024
"""Limit of all edits of a conversation together; the oldest are dropped first. One edit of the largest file fits."""
_MAX_SEEN = 2_000
"""Limit of files with a stored state; the one seen longest ago is dropped first, and counts as never seen."""

_SEEN_NAME = "seen.json"
_EDIT_NAME = "{:012d}.edit"


class Seen(NamedTuple):
    """The state of a file as the conversation last saw it."""

    digest: str
    encoding: str | None = None
    """The encoding that the model requested."""


class Edit(NamedTuple):
    """One change that can be undone; stored as a line of JSON and the removed bytes."""

    number: int
    path: str
    command: str
    offset: int
    removed: bytes
    added_bytes: int
    before: str | None
    """The digest of the file before; None if the edit created the file."""
    after: str

    def undone(self, data: bytes) -> bytes:
        """Return the bytes before the edit from the bytes after it."""
        return data[: self.offset] + self.removed + data[self.offset + self.added_bytes :]


class EditHistory:
    """The history of one conversation. Not thread-safe: its executor takes one call at a time."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._edits: list[Edit] = []
        self._seen: dict[str, Seen] = {}
        self._is_loaded = directory is None
        self.trouble: str | None = None
        """Why the disk copy is incomplete; None while it is complete."""

    def seen(self, path: str) -> Seen | None:
        """The state in which the file was last seen."""
        self._load()
        return self._seen.get(_key(path))

    def see(self, path: str, data: bytes | None, *, encoding: str | None = None) -> None:
        """Record the file's state; None is a file that no longer exists."""
        self._load()
        previous = self._seen.pop(_key(path), None)
        current = None if data is None else Seen(digest(data), encoding)
        if current is not None:
            self._seen[_key(path)] = current
        if current == previous:
            return
        while len(self._seen) > _MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        self._store(_SEEN_NAME, json.dumps(self._seen).encode())

    def add(self, path: str, command: str, splice: Splice, *, before: bytes | None, after: bytes) -> Edit:
        """Record an edit before it is made: the file's state shows whether it was made."""
        self._load()
        number = self._edits[-1].number + 1 if self._edits else 1
        digests = None if before is None else digest(before), digest(after)
        edit = Edit(number, _key(path), command, splice.offset, splice.removed, len(splice.added), *digests)
        self._edits.append(edit)
        head = {name: value for name, value in edit._asdict().items() if name != "removed"}
        self._store(_EDIT_NAME.format(number), json.dumps(head).encode() + b"\n" + edit.removed)
        size = sum(len(old.removed) for old in self._edits)
        while len(self._edits) > MAX_EDITS or (size > MAX_BYTES and len(self._edits) > 1):
            size -= len(self._edits[0].removed)
            self.drop(self._edits[0])
        return edit

    def drop(self, edit: Edit) -> None:
        """Remove an edit that is undone or was never made."""
        self._edits.remove(edit)
        if self._directory is not None:
            with contextlib.suppress(OSError):  # a leftover file is an edit whose states match no file
                (self._directory / _EDIT_NAME.format(edit.number)).unlink(missing_ok=True)

    def edits(self, path: str) -> list[Edit]:
        """The edits of the file that can be undone, the last one last."""
        self._load()
        return [edit for edit in self._edits if edit.path == _key(path)]

    def to_undo(self, path: str, data: bytes) -> Edit | None:
        """The last edit of the file, if data is what it made; edits recorded after it and never made do not count."""
        edits, state = self.edits(path), digest(data)
        while len(edits) > 1 and state == edits[-1].before != edits[-1].after:
            edits.pop()
        return edits[-1] if edits and edits[-1].after == state else None

    def _load(self) -> None:
        if self._is_loaded or self._directory is None:
            return
        self._is_loaded = True
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # counts as never seen
            stored = load_json(read_regular(self._directory / _SEEN_NAME))
            self._seen = {path: Seen(*fields) for path, fields in stored.items()}
        for file in sorted(self._directory.glob("*.edit")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                head, _, removed = read_regular(file, limit_bytes=2 * MAX_BYTES).partition(b"\n")
                self._edits.append(Edit(**load_json(head), removed=removed))

    def _store(self, name: str, data: bytes) -> None:
        """Replace a file of ours. Not synced: after a crash of the machine an undo may be missing, never wrong."""
        if self._directory is None:
            return
        try:
            make_private_dir(self._directory)
            write_atomically(self._directory / name, data, durable=False)
        except UsageError as error:
            self.trouble = str(error)
        except OSError as error:
            self.trouble = f"{error.strerror}: {str(self._directory)!r}"


def digest(data: bytes) -> str:
    """The key for comparing two states of a file: their content, not their time."""
    return hashlib.sha256(data).hexdigest()


def _key(path: str) -> str:
    """Return one name for `/a/b`, `/a/./b` and `//a/b`. Files that share a name through a symlink differ in digest."""
    return posixpath.normpath("/" + path.lstrip("/"))
