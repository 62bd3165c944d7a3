"""`SnapshotStore`: manifests of a directory, and the files' contents, each stored once.

<directory>/objects/ab/cdef...    a content, named by its SHA-256
<directory>/000001.json           a manifest
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, BinaryIO

from ohsandbox.errors import UsageError
from ohsandbox.private_files import (
    MAX_CONTENT_BYTES,
    NEW_FILE,
    PRIVATE_DIR_MODE,
    SHA256_NAME,
    new_file,
    open_regular,
    opened_dir,
    read_regular,
)
from ohsandbox.runtime import disk_space
from ohsandbox.strict_json import load_json
from ohsandbox.timetravel.snapshots.manifest import MAX_GIT_BYTES, FileEntry, Manifest
from ohsandbox.timetravel.snapshots.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_SNAPSHOTS = 50
"""Maximum number of snapshots; beyond it the oldest are removed, except the first."""

_PIECE_BYTES = 1024**2

_NAME = re.compile(r"\d{6}")


class SnapshotStore:
    """Snapshots of a directory of this machine; they do not use git."""

    def __init__(self, directory: Path, *, beside: SnapshotStore | None = None) -> None:
        """Store snapshots in directory, created at first use. Contents that `beside` has are not stored again."""
        self.directory = directory
        self._beside = beside
        self._objects = directory / "objects"
        self._last: tuple[str, Manifest] | None = None

    def take(self, root: Path | Workspaces) -> str:
        """Store a snapshot of root; return its name, which is the last one's if nothing has changed.

        Raises:
            UsageError: root is too large, the disk has too little free space, or the snapshot cannot be written.
        """
        self.require_space()
        name, previous = self._newest()
        roots = root if isinstance(root, Workspaces) else Workspaces({"": root})
        tree = roots.scan(self, taken_ns=time.time_ns(), before=previous)
        if previous is None or not same(tree, previous):
            name = f"{int(name or 0) + 1:06}"
        self._write(name, tree)
        self._prune()
        return name

    def require_space(self) -> None:
        """Check the free disk space: up to 50 snapshots of 1 GiB each may be stored.

        Raises:
            UsageError: less space is free than must stay free; see `disk_space.floor_bytes`.
        """
        existing = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        if (short := disk_space.shortage(disk_space.measure(existing), None)) is not None:
            raise UsageError(f"No snapshot is written: the disk of {str(existing)!r} {short}. Free space on it.")

    def load(self, name: str) -> Manifest:
        """Load a snapshot.

        Raises:
            UsageError: it is missing or damaged.
        """
        try:
            if not _NAME.fullmatch(name):
                raise ValueError(name)  # noqa: TRY301 - one place reports both
            path, anchor = self._path(name), self.directory.parent
            return _decode(read_regular(path, limit_bytes=MAX_CONTENT_BYTES, inside=anchor))
        except (OSError, ValueError, LookupError, TypeError, UsageError) as error:
            raise UsageError(
                f"Snapshot {name[:20]!r} in {str(self.directory)!r} is lost: {error}. Go back to another event."
            ) from error

    def add(self, tree: Manifest) -> str:
        """Store a manifest whose contents are stored already; return the snapshot's name.

        Raises:
            UsageError: it cannot be written.
        """
        name = f"{int(max(self.names(), default='0')) + 1:06}"
        self._write(name, tree)
        return name

    def names(self) -> list[str]:
        """Return the names of all snapshots, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(path.stem for path in self.directory.glob("*.json") if _NAME.fullmatch(path.stem))

    def keep(self, data: bytes) -> str:
        """Store a content; return its SHA-256.

        Raises:
            UsageError: it cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        if not self._is_kept(digest, len(data)):
            self._store(io.BytesIO(data), limit_bytes=len(data))
        return digest

    def keep_file(self, file: BinaryIO, *, limit_bytes: int) -> str | None:
        """Store the rest of an open file, in pieces; return its SHA-256, or None if it is over limit_bytes.

        Raises:
            UsageError: it cannot be written.
        """
        return self._store(file, limit_bytes=limit_bytes)

    def content(self, digest: str) -> bytes:
        """Return a stored content.

        Raises:
            UsageError: it is missing or was changed.
        """
        data = io.BytesIO()
        self.copy_content(digest, data)
        return data.getvalue()

    def copy_content(self, digest: str, target: BinaryIO) -> None:
        """Write a stored content to target, in pieces.

        Raises:
            UsageError: it is missing or was changed; target then holds the part that was read.
        """
        if self._beside is not None and not self._object(digest).exists():
            self._beside.copy_content(digest, target)
            return
        hasher = hashlib.sha256()
        if SHA256_NAME.fullmatch(digest):
            path, anchor = self._object(digest), self.directory.parent
            with os.fdopen(open_regular(path, os.O_RDONLY, name="Kept file", inside=anchor), "rb") as file:
                while data := file.read(_PIECE_BYTES):
                    hasher.update(data)
                    target.write(data)
        if hasher.hexdigest() != digest:
            raise UsageError(
                f"A kept file in {str(self._objects)!r} was changed or cut ({digest[:12]!r}). Go back to another event."
            )

    def copy_to(self, directory: Path, names: Iterable[str]) -> None:
        """Copy these snapshots to the store in directory; contents never change, so they are hard-linked if possible.

        Raises:
            UsageError: a snapshot is lost, or directory cannot be written.
        """
        target = SnapshotStore(directory)
        try:
            for name in names:
                tree = self.load(name)
                for digest in {entry.what for entry in tree.entries.values() if entry.kind == "file"}:
                    target._adopt(self._object(digest), digest)
                target._write(name, tree)
        except OSError as error:
            raise _full(directory, error) from error

    def adopt(self, other: SnapshotStore, digest: str) -> None:
        """Store a content from another store.

        Raises:
            UsageError: it cannot be written.
        """
        source = other._object(digest)
        if not source.exists() and other._beside is not None:
            source = other._beside._object(digest)  # noqa: SLF001 - as above
        try:
            self._adopt(source, digest)
        except OSError as error:
            raise _full(self.directory, error) from error

    def holds(self, digest: str, size: int) -> bool:
        """Whether this content is stored, with a size of size bytes."""
        try:
            return self._object(digest).lstat().st_size == size
        except FileNotFoundError:
            return False

    def _is_kept(self, digest: str, size: int) -> bool:
        return self.holds(digest, size) or (self._beside is not None and self._beside.holds(digest, size))

    def _store(self, file: BinaryIO, *, limit_bytes: int) -> str | None:
        """Copy to a temporary file while computing the hash, then rename it."""
        hasher, size = hashlib.sha256(), 0
        temporary = f".{secrets.token_hex(8)}"
        try:
            with self._opened("objects") as objects:
                descriptor = os.open(temporary, NEW_FILE, 0o600, dir_fd=objects)
                try:
                    with os.fdopen(descriptor, "wb") as copy:
                        while data := file.read(_PIECE_BYTES):
                            size += len(data)
                            if size > limit_bytes:
                                return None
                            hasher.update(data)
                            copy.write(data)
                    digest = hasher.hexdigest()
                    if not self._is_kept(digest, size):
                        with self._opened("objects", digest[:2]) as directory:
                            os.rename(temporary, digest[2:], src_dir_fd=objects, dst_dir_fd=directory)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=objects)
        except OSError as error:
            raise _full(self.directory, error) from error
        return digest

    def _adopt(self, source: Path, digest: str) -> None:
        with self._opened("objects", digest[:2]) as directory:
            try:
                os.link(source, digest[2:], dst_dir_fd=directory, follow_symlinks=False)
            except FileExistsError:
                return
            except OSError:  # another file system, or too many links
                self._copy(source)

    def _copy(self, source: Path) -> None:
        with os.fdopen(open_regular(source, os.O_RDONLY, name="Kept file"), "rb") as file:
            self._store(file, limit_bytes=MAX_GIT_BYTES)

    def _opened(self, *names: str) -> contextlib.AbstractContextManager[int]:
        """Open a directory of the store, created if missing, without following symlinks."""
        return opened_dir(self.directory.parent, self.directory.name, *names, make=PRIVATE_DIR_MODE)

    def _write(self, name: str, tree: Manifest) -> None:
        try:
            with self._opened() as directory, new_file(directory, f"{name}.json") as file:
                file.write(_encode(tree))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _full(self.directory, error) from error
        self._last = (name, tree)

    def _newest(self) -> tuple[str, Manifest | None]:
        if self._last is None and (names := self.names()):
            try:
                self._last = (names[-1], self.load(names[-1]))
            except UsageError:
                return names[-1], None
        return self._last or ("", None)

    def _prune(self) -> None:
        """Remove the oldest snapshots except the first, and contents that only they used."""
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


def same(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests have the same names, kinds, contents and permissions."""
    if one.entries.keys() != other.entries.keys():
        return False
    return all(entry.is_like(other.entries[path]) for path, entry in one.entries.items())


def _encode(tree: Manifest) -> bytes:
    return json.dumps(tree._asdict(), separators=(",", ":")).encode("ascii")


def _decode(data: bytes) -> Manifest:
    fields = load_json(data)
    entries = {path: FileEntry(*values) for path, values in fields["entries"].items()}
    return Manifest(int(fields["taken_ns"]), entries, dict(fields["left_out"]), int(fields.get("special", 0)))


def _full(directory: Path, error: OSError) -> UsageError:
    return UsageError(f"Snapshots cannot be written to {str(directory)!r}: {error.strerror}. Free space.")
