"""Merging of changes into another directory, which may have changed too, and reverting of changes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.runtime.workspace import git
from ohsandbox.runtime.workspace.git_layout import parents_of
from ohsandbox.timetravel.snapshots.manifest import FileChange, changes_between, is_git
from ohsandbox.timetravel.snapshots.restore import UnappliedChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.timetravel.snapshots.manifest import FileEntry, Manifest
    from ohsandbox.timetravel.snapshots.store import SnapshotStore


class Merge(NamedTuple):
    """The result of a merge."""

    changes: list[FileChange]
    """Changes to write to the other directory; empty if it already has them all."""
    conflicts: list[UnappliedChange]
    """If there are any, nothing may be written."""


def merge_changes(
    changes: Sequence[FileChange], there: Manifest, store: SnapshotStore, *, owner: tuple[int, int] | None = None
) -> Merge:
    """Merge changes into another directory; a file that has changed in both is merged line by line if possible.

    Args:
        changes: the changes to apply.
        there: the other directory, with its contents in store as well.
        store: holds all contents.
        owner: uid and gid of new files in another directory; of modes only the executable bit is applied then, as in
            git. None means the same directory: modes, owners and times are applied too.

    Raises:
        UsageError: a content is missing.
    """
    result = Merge([], [])
    touched = {change.path for change in changes}
    stays: set[str] = set()
    for change in changes:
        if blocked := _in_the_way(change.path, there, touched):
            if blocked not in stays:
                result.conflicts.append(UnappliedChange(change.path, f"{blocked} is not a directory there"))
            continue
        _merge_one(change, there, store, result, owner)
        if result.conflicts and result.conflicts[-1].path == change.path:
            stays.add(change.path)  # paths below it cannot be applied either, but are not reported
            touched.discard(change.path)
    return result


def revert_changes(
    steps: Sequence[tuple[Manifest, Manifest]], there: Manifest, store: SnapshotStore
) -> tuple[Manifest, list[UnappliedChange]]:
    """Compute a directory's manifest without the changes of some steps; all other changes stay.

    Args:
        steps: manifests of this directory before and after each step, oldest first.
        there: the directory now, with its contents in store as well.
        store: holds all contents.

    Returns:
        The wanted manifest, and the changes that are not reverted since their paths have changed again.

    Raises:
        UsageError: a content is missing.
    """
    entries, refused = dict(there.entries), dict[str, UnappliedChange]()
    for before, after in reversed(steps):
        back = [change for change in changes_between(after, before) if not _is_object(change.path) or change.new]
        merged = merge_changes(back, there._replace(entries=entries), store)
        moved = {_repository(change.path) for change in back if _is_state_of_git(change.path)}
        forced = {
            conflict.path
            for conflict in merged.conflicts
            if _is_derived(conflict.path) and _repository(conflict.path) in moved
        }
        for conflict in merged.conflicts:
            if not _is_derived(conflict.path) and not _is_object(conflict.path):
                refused[_repository(conflict.path)] = _since(conflict)
        for change in (*merged.changes, *(change for change in back if change.path in forced)):
            if _repository(change.path) in refused and not _is_object(change.path):
                continue
            if change.new is None:
                entries.pop(change.path, None)
            else:
                entries[change.path] = change.new
    filled = {parent for path in entries for parent in parents_of(path)}
    entries |= {path: entry for path, entry in there.entries.items() if path in filled and path not in entries}
    return there._replace(entries=entries), [*refused.values()]


_DERIVED = {"index", "logs", "ORIG_HEAD", "COMMIT_EDITMSG", "FETCH_HEAD", "gc.log"}
"""Names in `.git` that any git command may rewrite, even `git status`. They are reverted together with the refs; if
only they have changed again, they stay."""


def _repository(path: str) -> str:
    """Return the `.git` that contains a path, or the path itself: a `.git` is only reverted as a whole."""
    if not is_git(path):
        return path
    parts = path.split("/")
    return "/".join(parts[: 1 + next(number for number, part in enumerate(parts) if is_git(part))])


def _is_object(path: str) -> bool:
    """Whether a path is in git's `objects`, which are restored but never removed: later commits may need them."""
    return "objects" in _within_git(path)


def _is_derived(path: str) -> bool:
    within = _within_git(path)
    return bool(within) and within[0] in _DERIVED


def _is_state_of_git(path: str) -> bool:
    return bool(_within_git(path)) and not (_is_object(path) or _is_derived(path))


def _within_git(path: str) -> list[str]:
    """Return the components of a path below its `.git`."""
    return path.removeprefix(_repository(path)).split("/")[1:]


def _since(conflict: UnappliedChange) -> UnappliedChange:
    if is_git(conflict.path):
        return UnappliedChange(_repository(conflict.path), "git was used here since; only lost objects come back")
    return UnappliedChange(conflict.path, "it was changed since as well")


def _in_the_way(path: str, target: Manifest, touched: set[str]) -> str | None:
    """Return a parent of the path that is a file or symlink there and is not changed, or None."""
    for parent in parents_of(path):
        entry = target.entries.get(parent)
        if entry is not None and entry.kind != "dir" and parent not in touched:
            return parent
    return None


def _merge_one(
    change: FileChange, target: Manifest, store: SnapshotStore, result: Merge, owner: tuple[int, int] | None
) -> None:
    existing = target.entries.get(change.path)
    if change.path in target.left_out:
        result.conflicts.append(
            UnappliedChange(change.path, f"what is there cannot be compared: {target.left_out[change.path]}")
        )
    elif _equivalent(existing, change.new, exactly=owner is None):
        return
    elif _equivalent(existing, change.old, exactly=owner is None):
        result.changes.append(FileChange(change.path, existing, _as_ours(change.new, existing, owner)))
    elif change.is_of_directories:
        if change.new is not None and existing is not None and existing.kind != "dir":
            result.conflicts.append(UnappliedChange(change.path, f"a {existing.kind} is there in place of a directory"))
    elif (merged := _merged(change, existing, store)) is None:
        result.conflicts.append(UnappliedChange(change.path, _why(change, existing)))
    elif not _equivalent(existing, merged, exactly=owner is None):  # else the change was applied before
        result.changes.append(FileChange(change.path, existing, _as_ours(merged, existing, owner)))


def _equivalent(first: FileEntry | None, second: FileEntry | None, *, exactly: bool) -> bool:
    """Whether two entries are equal; if not exactly, as in git: of modes only the executable bit counts."""
    if first is None or second is None:
        return first is second
    if exactly:
        return first.is_like(second)
    same = first.kind == second.kind and first.what == second.what
    return same and (first.kind != "file" or bool(first.mode & 0o100) == bool(second.mode & 0o100))


def _as_ours(entry: FileEntry | None, existing: FileEntry | None, owner: tuple[int, int] | None) -> FileEntry | None:
    """Return wanted with the owner and mode of the entry it replaces; of its mode only the executable bit counts."""
    if entry is None or owner is None:
        return entry
    uid, gid = owner if existing is None else (existing.uid, existing.gid)
    mode = 0o755 if entry.kind == "dir" or entry.mode & 0o100 else 0o644
    if existing is not None and existing.kind == entry.kind and existing.mode & 0o100 == entry.mode & 0o100:
        mode = existing.mode
    return entry._replace(mode=mode, uid=uid, gid=gid, mtime_ns=0)  # the file gets the time of its writing


def _merged(change: FileChange, existing: FileEntry | None, store: SnapshotStore) -> FileEntry | None:
    """Return the three-way merge of a text file; None if it is impossible."""
    versions = (existing, change.old, change.new)
    if is_git(change.path) or any(entry is None or entry.kind != "file" for entry in versions) or not git.is_here():
        return None
    texts = [store.content(entry.what) for entry in versions if entry is not None]
    if any(b"\0" in text for text in texts):
        return None
    with tempfile.TemporaryDirectory(prefix="ohsandbox-merge-") as name:
        directory = Path(name)
        for number, text in enumerate(texts):
            (directory / str(number)).write_bytes(text)
        code, output = git.call(("merge-file", "-p", "-q", "0", "1", "2"), directory=directory)
    if code or change.new is None:
        return None
    return change.new._replace(what=store.keep(output), size=len(output), mtime_ns=0)


def _why(change: FileChange, existing: FileEntry | None) -> str:
    if existing is None:
        return "it was changed by the agent, and is not there"
    if change.old is None:
        return f"the agent made it, and another {existing.kind} is there"
    if change.new is None:
        return "the agent removed it, and it was changed there"
    return "it was changed there as well, and the changes do not merge"
