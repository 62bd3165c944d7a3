"""`diff_workspace`: the changes in a stored conversation's workspace between two events."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.persistence.layout import SNAPSHOTS_NAME
from ohsandbox.runtime.factory import runtime_from
from ohsandbox.runtime.files.transfer import TransferLimits
from ohsandbox.runtime.files.unpack import too_large
from ohsandbox.runtime.runtime_settings import DEFAULT_IMAGE, RuntimeSettings
from ohsandbox.runtime.workspace.copy_selection import tracked_or_new
from ohsandbox.runtime.workspace.git_layout import parents_of
from ohsandbox.text import counted
from ohsandbox.timetravel.checkpoints import COPIED_FROM, CheckpointIndex, find_checkpoint
from ohsandbox.timetravel.snapshots import manifest
from ohsandbox.timetravel.snapshots.manifest import (
    FileChange,
    Manifest,
    changes_between,
    is_git,
    outside_git,
    scan_directory,
    worst_first,
)
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.workspaces import Workspaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ohsandbox.runtime.base import Runtime

_COPY = "/workspace"
"""Path of the copied directory in a sandbox."""

_IGNORED, _CACHED = "ignored by git", "in Python's caches"
BEFORE = ", only at the first of the two events"
"""End of the reason if the newer side lacks the file, or has a smaller one."""


class WorkspaceDiff(NamedTuple):
    """Changes of a workspace between two events."""

    changes: list[FileChange]
    """Changes outside `.git`; with several workspaces, paths begin with the name of one."""
    store: SnapshotStore
    """Holds the content of every file until the context of `diff_workspace` ends."""
    left_out: dict[str, str]
    """Paths that could not be compared, with the reasons, worst first: the changes contain neither them nor paths below
    them. Also unwanted new files, counted by their top directories.
    """
    is_whole: bool
    """False if files may have changed after the last checkpoint."""
    image: str | None = None
    """The checkpoint that has the left-out files of the newer side; None for a directory of this machine."""
    place: str = ""
    """Path of the workspace in that checkpoint."""
    has_unwanted: bool = False
    """Whether new files were left out because git ignores them, or as Python's caches."""


@contextlib.contextmanager
def diff_workspace(
    directory: Path, a: int | None = None, b: int | None = None, *, ignored: bool | None = None
) -> Iterator[WorkspaceDiff]:
    """Yield the changes in the workspace between events a and b; None means the first checkpoint, or the present.

    The present is that of a bound workspace; for files in a container it is the last checkpoint. ignored says whether
    to include new files that git ignores, and Python's caches; None leaves out the former, and only for a copied
    directory. Files that existed before are always included.

    Raises:
        UsageError: there is no such event, its files were not kept, or the workspaces at the two events differ.
        SandboxUnavailable: the engine that has the files is unavailable.
    """
    files = CheckpointIndex.of(directory)
    if not files.kept:
        raise UsageError(
            f"Conversation {directory.name!r} has no checkpoints: nothing was changed, or they are off. "
            "Compare with git."
        )
    first = files.kept[0] if a is None else find_checkpoint(directory, a)
    last = None if b is None else find_checkpoint(directory, b)
    _require_same_layout(first.data, files.kept[-1].data if last is None else last.data)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-work-") as name:
        trees = _Trees(directory, Path(name))
        old = trees.of(first.data)
        new = trees.of(last.data) if last is not None else trees.now(files.kept[-1].data)
        left_out = {path: reason + BEFORE for path, reason in old.left_out.items() if not is_git(path)}
        left_out |= {path: reason for path, reason in new.left_out.items() if not is_git(path)}
        is_whole = b is not None or files.is_known or first.data.get("workspace") is not None
        changes = outside_git(changes_between(old, new))
        created = {change.path for change in changes if change.old is None and change.new and change.new.kind != "dir"}
        unwanted = dict.fromkeys(_caches_of(created), _CACHED) if ignored is False else {}
        copied = COPIED_FROM in files.kept[-1].data
        if ignored is False or (ignored is None and copied):
            by_git = trees.ignored if copied else _ignored_of(created, new, trees.store)
            unwanted |= dict.fromkeys(created & by_git, _IGNORED)
        changes = _without_unwanted(changes, unwanted.keys())
        left_out |= _by_directory(unwanted)
        data = files.kept[-1].data if last is None else last.data
        image = None if data.get("workspace") else str(data["id"])
        left_out = worst_first(left_out)
        yield WorkspaceDiff(changes, trees.store, left_out, is_whole, image, trees.place, bool(unwanted))


def bound_workspaces(directory: Path) -> list[Path]:
    """Return the directories of this machine at the last checkpoint; an empty list if the files are in a container."""
    checkpoints = CheckpointIndex.of(directory).kept
    bound = Workspaces.recorded(checkpoints[-1].data.get("workspace")) if checkpoints else None
    return [] if bound is None else [*bound.directories.values()]


def copied_workspace(directory: Path) -> Path | None:
    """Return the directory of this machine whose copy the conversation works on; None if there is none."""
    checkpoints = CheckpointIndex.of(directory).kept
    return Path(checkpoints[-1].data[COPIED_FROM]) if checkpoints and checkpoints[-1].data.get(COPIED_FROM) else None


def changed_between(directory: Path, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the paths in bound workspaces that differ between two checkpoints, without directories.

    old and new are the field `workspace` of the checkpoint events. With several workspaces the paths are those in the
    sandbox.

    Raises:
        UsageError: a snapshot is missing or damaged.
    """
    store, bound = SnapshotStore(directory / SNAPSHOTS_NAME), Workspaces.recorded(new)
    before, after = (store.load(str(data["snapshot"])) for data in (old, new))
    paths = [change.path for change in changes_between(before, after) if not change.is_of_directories]
    return paths if bound is None else [bound.in_sandbox(path) for path in paths]


def scan_changed(target: Path, changes: Sequence[FileChange], store: SnapshotStore) -> Manifest:
    """Return a manifest of the changed names in a directory.

    Raises:
        UsageError: the directory cannot be read.
    """
    return scan_directory(target, store, only=[change.path for change in changes])


class _Trees:
    """The manifests of a conversation's workspace, with the contents in one store."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self._kept = SnapshotStore(directory / SNAPSHOTS_NAME)
        self._temporary = temporary
        self.store = SnapshotStore(temporary / "store", beside=self._kept)
        self.ignored: set[str] = set()
        """Paths that git would not track in the copied directory that was read last."""
        self.place = ""
        """Path in the sandbox of the workspace that was read last."""

    def of(self, data: dict[str, Any]) -> Manifest:
        """Return the manifest of a checkpoint."""
        if data.get("workspace"):
            return self._kept.load(str(data["workspace"]["snapshot"]))
        return self._fetched(data)

    def now(self, data: dict[str, Any]) -> Manifest:
        """Return the manifest of the workspace now, or for files in a container, at the last checkpoint."""
        bound = Workspaces.recorded(data.get("workspace"))
        return self.of(data) if bound is None else bound.scan(self.store, before=self.of(data), git=False)

    def _fetched(self, data: dict[str, Any]) -> Manifest:
        """Return the manifest of the files in a sandbox made from the checkpoint, downloaded within limits."""
        image = str(data.get("image") or DEFAULT_IMAGE)
        with (
            tempfile.TemporaryDirectory(dir=self._temporary) as temporary,
            runtime_from(RuntimeSettings(image=image, checkpoint=str(data["id"]))) as sandbox,
        ):
            copied = COPIED_FROM in data
            self.place = _COPY if copied else sandbox.workdir
            left_out = _drop_large(sandbox, self.place)
            limits = TransferLimits(file_bytes=manifest.MAX_FILE_BYTES, depth=manifest.MAX_DEPTH, leaves_out=True)
            missed = sandbox.download(self.place, temporary, user="0", limits=limits)
            left_out |= {missed_file.path.removeprefix("./"): missed_file.reason for missed_file in missed}
            tree = scan_directory(Path(temporary), self.store, git=False)
            if copied:
                _remove_git(temporary)
                self.ignored = {*tree.entries} - tracked_or_new(Path(temporary))
                self.ignored -= {path for path, entry in tree.entries.items() if entry.kind == "dir"}
        tree.left_out.update(left_out)
        return tree


_MAX_RULES_BYTES = 1024**2
"""Maximum size of a `.gitignore`; a longer one is ignored."""
_FIND_LARGE = r'find . -type f -size +"$1"c -exec stat -c %s {} \; -print0 -exec rm -f {} \;'
"""GNU and busybox have `stat -c` and `-print0`. Elsewhere the files stay, and the download leaves them out."""
_MAX_NAMES_BYTES = 16 * 1024**2
_FIND_S = 300.0


def _drop_large(sandbox: Runtime, directory: str) -> dict[str, str]:
    """Remove files too large for a snapshot from a temporary sandbox; return their paths and the reasons.

    A sparse file may have any size, and tar would send all of it.

    Raises:
        UsageError: there are too many, or the search took too long.
    """
    most = manifest.MAX_FILE_BYTES
    argv = ["sh", "-c", _FIND_LARGE, "sh", str(most)]
    result = sandbox.run(argv, workdir=directory, user="0", timeout_s=_FIND_S, limit_bytes=_MAX_NAMES_BYTES)
    if result.truncated or result.timed_out:
        raise UsageError(f"{directory!r} holds too many files over {most} bytes. Remove some in a resumed run.")
    left_out = {}
    for record in result.stdout.split(b"\0"):
        size, _, path = record.partition(b"\n")
        if size.isdigit():
            left_out[os.fsdecode(path.removeprefix(b"./"))] = too_large(int(size), most)
    return left_out


def _remove_git(directory: str) -> None:
    """Remove each `.git` below a temporary directory: git lists no file of a repository within another."""
    for place, directories, _ in os.walk(directory):
        for name in [name for name in directories if is_git(name)]:
            shutil.rmtree(Path(place) / name, ignore_errors=True)
            directories.remove(name)


def _caches_of(created: Iterable[str]) -> set[str]:
    """Return the new files that are Python's caches."""
    return {path for path in created if "__pycache__" in path.split("/")}


def _ignored_of(created: AbstractSet[str], tree: Manifest, store: SnapshotStore) -> set[str]:
    """Return the new files that the tree's `.gitignore` files match."""
    rules = {path: entry for path, entry in tree.entries.items() if path.split("/")[-1] == ".gitignore"}
    if not rules:
        return set()
    with tempfile.TemporaryDirectory(prefix="ohsandbox-ignored-") as name:
        for path in created:
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).touch()
        for path, entry in rules.items():
            if entry.kind == "file" and entry.size <= _MAX_RULES_BYTES:
                (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(name) / path).write_bytes(store.content(entry.what))
        return {*created} - tracked_or_new(Path(name))


def _without_unwanted(changes: Sequence[FileChange], unwanted: AbstractSet[str]) -> list[FileChange]:
    """Return the changes without unwanted new files and new directories of only those."""
    filled = {parent for path in unwanted for parent in parents_of(path)}
    only_filled = {change.path for change in changes if change.old is None and change.path in filled}
    kept_changes = [change for change in changes if change.path not in unwanted and change.path not in only_filled]
    needed = {parent for change in kept_changes for parent in parents_of(change.path)}
    dropped = unwanted | (only_filled - needed)
    return [change for change in changes if change.path not in dropped]


def _by_directory(unwanted: Mapping[str, str]) -> dict[str, str]:
    """Return the unwanted new files at the top with their reasons; the others counted, by top directory."""
    told: dict[str, str] = {}
    below: dict[str, Counter[str]] = {}
    for path, reason in sorted(unwanted.items()):
        top, _, rest = path.partition("/")
        if rest:
            below.setdefault(f"{top}/", Counter())[reason] += 1
        else:
            told[path] = f"new, {reason}"
    for top, counts in below.items():
        told[top] = ", ".join(f"{counted(count, 'new file')} {reason}" for reason, count in counts.items())
    return told


def _require_same_layout(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check that two checkpoints have the same workspaces.

    Raises:
        UsageError: a workspace was added or removed between them.
    """
    before, after = (Workspaces.recorded(data.get("workspace")) for data in (old, new))
    if before is not None and after is not None and before.directories.keys() != after.directories.keys():
        raise UsageError(
            f"The workspaces were {before} and later {after}, which cannot be compared. Name two events between which "
            "they stayed, as in `ohsandbox diff ID A B`."
        )
