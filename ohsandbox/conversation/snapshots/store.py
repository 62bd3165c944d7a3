"""`Snapshots`: trees of one directory with their contents, each content once.

<directory>/objects/ab/cdef...    a file's content, under its SHA-256
<directory>/000001.json           a tree
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.conversation.snapshots.tree import Entry, Tree, look
from ohsandbox.errors import UsageError
from ohsandbox.persistence import make_private_dir, open_regular, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SNAPSHOTS = 50
"""Of these the oldest but the first go."""

_NAME = re.compile(r"\d{6}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Snapshots:
    """Snapshots of a directory of this machine; git is neither needed nor touched."""

    def __init__(self, directory: Path, *, beside: Snapshots | None = None) -> None:
        """Directory is where they lie; nothing is made yet. What `beside` holds is not kept again."""
        self.directory = directory
        self._beside = beside
        self._objects = directory / "objects"
        self._last: tuple[str, Tree] | None = None

    def take(self, root: Path) -> str:
        """Keep what root holds now; the name of the snapshot, the last one's where nothing has changed.

        Raises:
            UsageError: root is too large, or the snapshot cannot be written.
        """
        make_private_dir(self._objects)
        name, before = self._newest()
        tree = look(root, self.keep, taken_ns=time.time_ns(), before=before)
        if before is None or not same(tree, before):
            name = f"{int(name or 0) + 1:06}"
        try:
            write_atomically(self._path(name), _encode(tree))
        except OSError as error:
            raise _full(self.directory, error) from error
        self._last = (name, tree)
        self._prune()
        return name

    def load(self, name: str) -> Tree:
        """A snapshot.

        Raises:
            UsageError: it is not there, or damaged.
        """
        try:
            if not _NAME.fullmatch(name):
                raise ValueError(name)  # noqa: TRY301 - one place tells of both
            with os.fdopen(open_regular(self._path(name), os.O_RDONLY, name="Snapshot"), "rb") as file:
                return _decode(file.read())
        except (OSError, ValueError, LookupError, TypeError, UsageError) as error:
            raise UsageError(f"Snapshot {name[:20]!r} in {str(self.directory)!r} is lost: {error}.") from error

    def names(self) -> list[str]:
        """All, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(path.stem for path in self.directory.glob("*.json") if _NAME.fullmatch(path.stem))

    def keep(self, data: bytes) -> str:
        """Keep a content; returns its SHA-256.

        Raises:
            UsageError: it cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        if self.holds(digest, len(data)) or (self._beside is not None and self._beside.holds(digest, len(data))):
            return digest
        path = self._object(digest)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise _full(self.directory, error) from error
        return digest

    def content(self, digest: str) -> bytes:
        """A content that was kept.

        Raises:
            UsageError: it is lost or was changed.
        """
        if self._beside is not None and not self._object(digest).exists():
            return self._beside.content(digest)
        data = b""
        if _DIGEST.fullmatch(digest):
            with os.fdopen(open_regular(self._object(digest), os.O_RDONLY, name="Kept file"), "rb") as file:
                data = file.read()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UsageError(f"A kept file in {str(self._objects)!r} was changed or cut ({digest[:12]!r}).")
        return data

    def copy_to(self, directory: Path, names: Iterable[str]) -> None:
        """Give another store these snapshots; contents are hard links where that can be: they never change.

        Raises:
            UsageError: one is lost, or directory cannot be written.
        """
        other = Snapshots(directory)
        make_private_dir(other._objects)
        try:
            for name in names:
                tree = self.load(name)
                for digest in {entry.what for entry in tree.entries.values() if entry.kind == "file"}:
                    other._adopt(self._object(digest), digest)
                write_atomically(other._path(name), _encode(tree))
        except OSError as error:
            raise _full(directory, error) from error

    def holds(self, digest: str, size: int) -> bool:
        """Whether a content of that many bytes is kept."""
        try:
            return self._object(digest).lstat().st_size == size
        except FileNotFoundError:
            return False

    def _adopt(self, source: Path, digest: str) -> None:
        target = self._object(digest)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            target.hardlink_to(source)
        except FileExistsError:
            return
        except OSError:
            self.keep(source.read_bytes())

    def _newest(self) -> tuple[str, Tree | None]:
        if self._last is None and (names := self.names()):
            try:
                self._last = (names[-1], self.load(names[-1]))
            except UsageError:
                return names[-1], None
        return self._last or ("", None)

    def _prune(self) -> None:
        """Remove the oldest snapshots but the first, with what only they held."""
        names = self.names()
        if len(names) <= MAX_SNAPSHOTS:
            return
        doomed = names[1 : len(names) - MAX_SNAPSHOTS + 1]
        needed = {entry.what for name in names if name not in doomed for entry in self.load(name).entries.values()}
        for name in doomed:
            self._path(name).unlink(missing_ok=True)
        for path in self._objects.glob("??/*"):
            if path.parent.name + path.name not in needed:
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _object(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest[2:]


def same(one: Tree, other: Tree) -> bool:
    """Whether two trees are alike to who reads them."""
    if one.entries.keys() != other.entries.keys():
        return False
    return all(entry.is_like(other.entries[path]) for path, entry in one.entries.items())


def _encode(tree: Tree) -> bytes:
    return json.dumps(tree._asdict(), separators=(",", ":")).encode("ascii")


def _decode(data: bytes) -> Tree:
    fields = json.loads(data)
    entries = {path: Entry(*values) for path, values in fields["entries"].items()}
    return Tree(int(fields["taken_ns"]), entries, dict(fields["left_out"]))


def _full(directory: Path, error: OSError) -> UsageError:
    return UsageError(f"Snapshots cannot be written to {str(directory)!r}: {error.strerror}. Free space.")
