"""What the conversation has seen and done: the state in which each file was last seen, and edits that can be undone.

Both stand in memory and, where the conversation has a directory, on the host's disk, so that a resumed conversation
goes on with them. An edit is kept as the change of bytes, not as a copy of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.private_files import make_private_dir, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.tools.file_editor.text import Splice

MAX_EDITS = 500
MAX_BYTES = 64 * 1024 * 1024
"""Of all edits of a conversation together; the oldest go first. One edit of the largest file still fits."""

MAX_SEEN = 2_000
"""Files whose state is remembered; the one seen longest ago goes first, and counts as never seen."""

_SEEN_NAME = "seen.json"
_EDIT_SUFFIX = ".edit"


class Seen(NamedTuple):
    """A file as the conversation knows it."""

    digest: str
    encoding: str | None = None
    """The one that the model asked for."""


class Edit(NamedTuple):
    """One change that can be taken back."""

    number: int
    path: str
    command: str
    offset: int
    removed: bytes
    added_bytes: int
    before: str | None
    """The digest of the file before; None where the edit made the file."""
    after: str

    def undone(self, data: bytes) -> bytes:
        """The bytes before the edit, of the bytes after it."""
        return data[: self.offset] + self.removed + data[self.offset + self.added_bytes :]


class History:
    """The memory of one conversation. Not thread-safe: its executor takes one call at a time."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._edits: list[Edit] = []
        self._seen: dict[str, Seen] = {}
        self._is_loaded = directory is None
        self.trouble: str | None = None
        """Why the disk does not hold everything; None as long as it does."""

    def seen(self, path: str) -> Seen | None:
        """The state in which the file was last seen."""
        self._load()
        return self._seen.get(_key(path))

    def see(self, path: str, data: bytes, *, encoding: str | None = None) -> None:
        """Remember the file's state."""
        self._load()
        known, now = self._seen.pop(_key(path), None), Seen(digest(data), encoding)
        self._seen[_key(path)] = now
        if now == known:
            return
        while len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        self._store(_SEEN_NAME, json.dumps(self._seen).encode())

    def forget(self, path: str) -> None:
        """The file is gone, and with it what was known."""
        if self._seen.pop(_key(path), None):
            self._store(_SEEN_NAME, json.dumps(self._seen).encode())

    def add(self, path: str, command: str, splice: Splice, *, before: bytes | None, after: bytes) -> Edit:
        """Remember an edit, before it is made: one that was not made after all is known by the file's state."""
        self._load()
        number = self._edits[-1].number + 1 if self._edits else 1
        edit = Edit(
            number, _key(path), command, splice.offset, splice.removed, len(splice.added),
            None if before is None else digest(before), digest(after),
        )  # fmt: skip
        self._edits.append(edit)
        head = edit._replace(removed=b"")._asdict()
        del head["removed"]
        self._store(_name(edit), json.dumps(head).encode() + b"\n" + edit.removed)
        size = sum(len(old.removed) for old in self._edits)
        while len(self._edits) > MAX_EDITS or (size > MAX_BYTES and len(self._edits) > 1):
            size -= len(self._edits[0].removed)
            self.drop(self._edits[0])
        return edit

    def drop(self, edit: Edit) -> None:
        """The edit is undone, or was never made."""
        self._edits.remove(edit)
        if self._directory is not None:
            with contextlib.suppress(OSError):  # a file that stays is an edit whose states fit no file any more
                (self._directory / _name(edit)).unlink(missing_ok=True)

    def edits(self, path: str) -> list[Edit]:
        """The edits of the file that can be undone, the last one last."""
        self._load()
        return [edit for edit in self._edits if edit.path == _key(path)]

    def _load(self) -> None:
        if self._is_loaded or self._directory is None:
            return
        self._is_loaded = True
        with contextlib.suppress(OSError, ValueError, TypeError):  # absent, or not written by us: nothing was seen
            stored = json.loads((self._directory / _SEEN_NAME).read_bytes())
            self._seen = {path: Seen(*fields) for path, fields in stored.items()}
        for file in sorted(self._directory.glob(f"*{_EDIT_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                head, _, removed = file.read_bytes().partition(b"\n")
                self._edits.append(Edit(**json.loads(head), removed=removed))

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
    """What two states of a file are compared by: their content, not their time."""
    return hashlib.sha256(data).hexdigest()


def _key(path: str) -> str:
    """One name for `/a/b`, `/a/./b` and `//a/b`. Two files that share one through a symlink differ in their digests."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _name(edit: Edit) -> str:
    return f"{edit.number:012d}{_EDIT_SUFFIX}"
