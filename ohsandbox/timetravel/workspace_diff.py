"""`diff_workspace`: the changes in a stored conversation's workspace between two events."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.persistence import stream_events
from ohsandbox.persistence.layout import SNAPSHOTS_NAME
from ohsandbox.runtime.factory import DEFAULT_IMAGE, RuntimeSettings, runtime_from
from ohsandbox.runtime.workspace.copy_selection import tracked_or_new
from ohsandbox.timetravel.checkpoints import COPIED_FROM, CheckpointIndex
from ohsandbox.timetravel.fork import find_checkpoint
from ohsandbox.timetravel.snapshots import (
    FileChange,
    Manifest,
    SnapshotStore,
    changes_between,
    outside_git,
    parents_of,
    scan,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_COPY = "/workspace"
"""Where the copy of a directory lies in a sandbox."""

_LEFT_OUT = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"): (.*)""", re.DOTALL)


class WorkspaceDiff(NamedTuple):
    """Changes of a workspace between two events."""

    changes: list[FileChange]
    """Outside `.git`."""
    store: SnapshotStore
    """Holds the content of every file, while the block lasts."""
    left_out: dict[str, str]
    """What could not be compared, and why."""
    is_whole: bool
    """False: files may have changed after the last checkpoint."""


@contextlib.contextmanager
def diff_workspace(directory: Path, a: int | None = None, b: int | None = None) -> Iterator[WorkspaceDiff]:
    """What changed in the workspace from event a to event b; None is the beginning, and now.

    A bound workspace is looked at as it is now; of a container, now is the last checkpoint.

    Raises:
        UsageError: the files of then were not kept.
        SandboxUnavailable: the engine that has them does not serve.
    """
    files = CheckpointIndex()
    stream_events(directory, files.add)
    if not files.kept:
        raise UsageError(f"Conversation {directory.name!r} has no checkpoints: nothing was changed, or they are off.")
    first = files.kept[0] if a is None else find_checkpoint(directory, a)
    last = None if b is None else find_checkpoint(directory, b)
    with tempfile.TemporaryDirectory(prefix="ohsandbox-work-") as name:
        trees = _Trees(directory, Path(name))
        old = trees.of(first.data)
        new = trees.of(last.data) if last is not None else trees.now(files.kept[-1].data)
        left_out = old.left_out | new.left_out
        is_whole = b is not None or files.is_known or _path(first.data) is not None
        changes = outside_git(changes_between(old, new))
        if COPIED_FROM in files.kept[-1].data:
            changes, ignored = _without_ignored(changes, trees.ignored)
            left_out |= _by_directory(ignored)
        yield WorkspaceDiff(changes, trees.store, left_out, is_whole)


def bound_workspace(directory: Path) -> Path | None:
    """The directory of this machine that the conversation last worked in; None where its files are its sandbox's."""
    files = CheckpointIndex()
    stream_events(directory, files.add)
    return _path(files.kept[-1].data) if files.kept else None


def copied_workspace(directory: Path) -> Path | None:
    """The directory of this machine whose copy the conversation works on; None where it works on none."""
    files = CheckpointIndex()
    stream_events(directory, files.add)
    found = files.kept[-1].data.get(COPIED_FROM) if files.kept else None
    return None if found is None else Path(found)


def scan_changed(target: Path, changes: Sequence[FileChange], store: SnapshotStore) -> Manifest:
    """What a directory has of the names that were changed.

    Raises:
        UsageError: it cannot be read.
    """
    return scan(target, store, only=[change.path for change in changes])


class _Trees:
    """The manifests of a conversation's workspace, with their contents in one store."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self._kept = SnapshotStore(directory / SNAPSHOTS_NAME)
        self._temporary = temporary
        self.store = SnapshotStore(temporary / "store", beside=self._kept)
        self.ignored: set[str] = set()
        """Of the copy of a directory that was looked at last: what git would not track."""

    def of(self, data: dict[str, Any]) -> Manifest:
        """Of a checkpoint."""
        if data.get("workspace"):
            return self._kept.load(str(data["workspace"]["snapshot"]))
        return self._fetched(data)

    def now(self, data: dict[str, Any]) -> Manifest:
        """The workspace of the last checkpoint as it is now, as far as that can be known."""
        path = _path(data)
        return self.of(data) if path is None else scan(path, self.store, before=self.of(data), git=False)

    def _fetched(self, data: dict[str, Any]) -> Manifest:
        """Out of a sandbox made from the checkpoint, through the filter of every download."""
        image = str(data.get("image") or DEFAULT_IMAGE)
        with (
            tempfile.TemporaryDirectory(dir=self._temporary) as place,
            runtime_from(RuntimeSettings(image=image, checkpoint=str(data["id"]))) as sandbox,
        ):
            copied = COPIED_FROM in data
            left_out = sandbox.download(_COPY if copied else sandbox.workdir, place, user="0")
            tree = scan(Path(place), self.store, git=False)
            if copied:
                shutil.rmtree(Path(place) / ".git", ignore_errors=True)
                self.ignored = {*tree.entries} - tracked_or_new(Path(place))
                self.ignored -= {path for path, entry in tree.entries.items() if entry.kind == "dir"}
        tree.left_out.update(map(_named, left_out))
        return tree


def _without_ignored(changes: Sequence[FileChange], ignored: set[str]) -> tuple[list[FileChange], list[str]]:
    """Without what is new and ignored by git, and without new directories that hold nothing else; and what that was."""
    made = {change.path for change in changes if change.old is None and change.path in ignored}
    filled = {parent for path in made for parent in parents_of(path)}
    only_filled = {change.path for change in changes if change.old is None and change.path in filled}
    kept = [change for change in changes if change.path not in made and change.path not in only_filled]
    needed = {parent for change in kept for parent in parents_of(change.path)}
    dropped = made | (only_filled - needed)
    return [change for change in changes if change.path not in dropped], sorted(made)


def _by_directory(paths: Sequence[str]) -> dict[str, str]:
    """What the agent made and git ignores, by the directories at the top."""
    counts = Counter(path.split("/")[0] + ("/" if "/" in path else "") for path in paths)
    return {name: f"ignored by git ({count} new)" for name, count in counts.items()}


def _named(line: str) -> tuple[str, str]:
    """Path and reason of a line of `Runtime.download`: a Python literal, a colon, and why."""
    found = _LEFT_OUT.fullmatch(line)
    if found is None:
        return line, "not taken out of the sandbox"
    return str(ast.literal_eval(found[1])).removeprefix("./"), found[2]


def _path(data: dict[str, Any]) -> Path | None:
    return Path(data["workspace"]["path"]) if data.get("workspace") else None
