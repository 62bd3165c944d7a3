"""Writing of changes to a directory that others may write to: by descriptor, without following symlinks, atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY, open_directory
from ohsandbox.private_files import NEW_FILE, opened_dir
from ohsandbox.timetravel.snapshots.manifest import is_git

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ohsandbox.timetravel.snapshots.manifest import FileChange, FileEntry
    from ohsandbox.timetravel.snapshots.store import SnapshotStore


class UnappliedChange(NamedTuple):
    """A change that could not be made."""

    path: str
    why: str


def write_changes(
    root: Path, changes: Sequence[FileChange], store: SnapshotStore, *, git: bool
) -> list[UnappliedChange]:
    """Apply the changes in root, each as far as possible; return those that failed.

    A path that no longer matches `old` was written since the scan, and stays as it is.

    Args:
        root: the directory; its path must not contain a symlink.
        changes: changes of paths below it; `new` is the wanted state.
        store: holds the contents.
        git: whether `.git`, at any depth, may be written. Set it only to restore the previous state of this directory:
            git runs programs that are named in there.

    Raises:
        UsageError: root cannot be opened, or its path contains a symlink.
    """
    try:
        descriptor = open_directory(root)
    except OSError as error:
        raise UsageError(f"Directory {str(root)!r} cannot be written: {error.strerror}. Make it first.") from error
    try:
        putting = _Writer(descriptor, store, git=git)
        removals = [change for change in changes if _must_go(change)]
        for change in sorted(removals, key=lambda change: change.path, reverse=True):  # contents before their directory
            putting.do(change, putting.remove)
        for change in changes:
            if change.new is not None:
                putting.do(change, putting.write)
        for change in reversed(changes):  # a read-only directory gets its mode after its contents
            if change.new is not None and change.new.kind == "dir":
                putting.do(change, putting.apply_metadata)
    finally:
        os.close(descriptor)
    return putting.refused


def _must_go(change: FileChange) -> bool:
    """Whether the old entry is removed first: if the name vanishes, or a directory replaces a file or the reverse."""
    if change.old is None:
        return False
    return change.new is None or ("dir" in {change.old.kind, change.new.kind} and change.old.kind != change.new.kind)


class _Writer:
    def __init__(self, root: int, store: SnapshotStore, *, git: bool) -> None:
        self.refused: list[UnappliedChange] = []
        self._root = root
        self._store = store
        self._git = git

    def do(self, change: FileChange, act: Callable[[int, str, FileChange], None]) -> None:
        """Call act in the directory that contains the path; record why it failed."""
        *parents, name = change.path.split("/")
        if {"", ".", ".."} & {*parents, name} or (not self._git and is_git(change.path)):
            self.refused.append(UnappliedChange(change.path, "this name is never written"))
            return
        try:
            with opened_dir(self._root, *parents, make=None if change.new is None else 0o777) as directory:
                act(directory, name, change)
        except FileNotFoundError:
            if change.new is not None:
                self.refused.append(UnappliedChange(change.path, "its directory does not exist"))
        except UsageError as error:
            self.refused.append(UnappliedChange(change.path, str(error)))
        except OSError as error:
            reason = "a symlink or a file stands in its way" if error.errno in _IN_THE_WAY else str(error.strerror)
            self.refused.append(UnappliedChange(change.path, reason))

    def remove(self, directory: int, name: str, change: FileChange) -> None:
        """Remove a name; a directory that is not empty (`.git`, a file too large for a snapshot) stays."""
        assert change.old is not None  # noqa: S101 - see _must_go
        if change.old.kind != "dir":
            if change.old.is_still(name, directory):
                os.unlink(name, dir_fd=directory)
            else:
                self.refused.append(UnappliedChange(change.path, _CHANGED))
            return
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or change.new is not None:
                raise

    def write(self, directory: int, name: str, change: FileChange) -> None:
        """Create or replace the name with the wanted state."""
        new_entry = change.new
        assert new_entry is not None  # noqa: S101 - only called for changes that have one
        if new_entry.kind == "dir":
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=directory)
            os.close(os.open(name, DIRECTORY, dir_fd=directory))
            return
        temporary = f".ohsandbox-{secrets.token_hex(8)}"
        try:
            self._make(directory, temporary, new_entry)
            if not _may_write(directory, name, change):
                self.refused.append(UnappliedChange(change.path, _CHANGED))
                os.unlink(temporary, dir_fd=directory)
                return
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def apply_metadata(self, directory: int, name: str, change: FileChange) -> None:
        """Give a directory its mode and owner."""
        assert change.new is not None  # noqa: S101 - only called for changes that have one
        descriptor = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            _apply_metadata(descriptor, change.new)
        finally:
            os.close(descriptor)

    def _make(self, directory: int, name: str, entry: FileEntry) -> None:
        if entry.kind == "link":
            os.symlink(entry.what, name, dir_fd=directory)
            if os.geteuid() == 0:
                os.chown(name, entry.uid, entry.gid, dir_fd=directory, follow_symlinks=False)
            return
        with os.fdopen(os.open(name, NEW_FILE, 0o600, dir_fd=directory), "wb") as file:
            self._store.copy_content(entry.what, file)
            file.flush()
            _apply_metadata(file.fileno(), entry)


_CHANGED = "it was changed in the meantime, and stays as it is"


def _may_write(directory: int, name: str, change: FileChange) -> bool:
    """Whether the name still matches `old`; if there is no old entry, whether no file, link or directory is there."""
    if change.old is None or _must_go(change):
        try:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return True
        return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))  # a FIFO is in no manifest
    return change.old.is_still(name, directory)


_IN_THE_WAY = {errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY}


def _apply_metadata(descriptor: int, entry: FileEntry) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, entry.uid, entry.gid)
    os.fchmod(descriptor, stat.S_IMODE(entry.mode) & 0o777)
    if entry.kind == "file" and entry.mtime_ns:
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
