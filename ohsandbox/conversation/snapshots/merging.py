"""Changes of one directory brought to another, which may have changed meanwhile."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.conversation.snapshots import git
from ohsandbox.conversation.snapshots.changes import Change
from ohsandbox.conversation.snapshots.putting import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.conversation.snapshots.store import Snapshots
    from ohsandbox.conversation.snapshots.tree import Entry, Tree


class Merge(NamedTuple):
    """What it takes to bring the changes there."""

    changes: list[Change]
    """From what is there to what shall be; empty where it is all there already."""
    conflicts: list[Refused]
    """Nothing is to be written while there are some."""


def merge(changes: Sequence[Change], there: Tree, store: Snapshots, *, owner: tuple[int, int]) -> Merge:
    """Compare with what is there. A file that both have changed is merged line by line where that works out.

    Args:
        changes: what is to be brought.
        there: the other directory, its contents in store as well.
        store: holds every content.
        owner: uid and gid of what is new there.

    Raises:
        UsageError: a content is lost.
    """
    done = Merge([], [])
    touched = {change.path for change in changes}
    for change in changes:
        if blocked := _in_the_way(change.path, there, touched):
            done.conflicts.append(Refused(change.path, f"{blocked} is no directory there"))
        else:
            _merge_one(change, there, store, done, owner)
    return done


def _in_the_way(path: str, there: Tree, touched: set[str]) -> str | None:
    """A file or a symlink that stands where the path has a directory, unless the changes replace it."""
    parent = path.rpartition("/")[0]
    while parent:
        found = there.entries.get(parent)
        if found is not None and found.kind != "dir" and parent not in touched:
            return parent
        parent = parent.rpartition("/")[0]
    return None


def _merge_one(change: Change, there: Tree, store: Snapshots, done: Merge, owner: tuple[int, int]) -> None:
    found = there.entries.get(change.path)
    if change.path in there.left_out:
        done.conflicts.append(Refused(change.path, f"what is there cannot be compared: {there.left_out[change.path]}"))
    elif _alike(found, change.new):
        return
    elif _alike(found, change.old):
        done.changes.append(Change(change.path, found, _as_ours(change.new, found, owner)))
    elif change.is_of_directories:
        if change.new is not None and found is not None and found.kind != "dir":
            done.conflicts.append(Refused(change.path, f"a {found.kind} is there, and a directory shall be"))
    elif (merged := _merged(change, found, store)) is None:
        done.conflicts.append(Refused(change.path, _why(change, found)))
    else:
        done.changes.append(Change(change.path, found, _as_ours(merged, found, owner)))


def _alike(one: Entry | None, other: Entry | None) -> bool:
    """As git sees it: the executable bit alone of a mode; a directory is a directory."""
    if one is None or other is None:
        return one is other
    same = one.kind == other.kind and one.what == other.what
    return same and (one.kind != "file" or bool(one.mode & 0o100) == bool(other.mode & 0o100))


def _as_ours(wanted: Entry | None, found: Entry | None, owner: tuple[int, int]) -> Entry | None:
    """With the owner and mode of what it takes the place of; of a mode, the executable bit alone is brought along."""
    if wanted is None:
        return None
    uid, gid = owner if found is None else (found.uid, found.gid)
    mode = 0o755 if wanted.kind == "dir" or wanted.mode & 0o100 else 0o644
    if found is not None and found.kind == wanted.kind and found.mode & 0o100 == wanted.mode & 0o100:
        mode = found.mode
    return wanted._replace(mode=mode, uid=uid, gid=gid, mtime_ns=0)  # no time of its own: it is written now


def _merged(change: Change, found: Entry | None, store: Snapshots) -> Entry | None:
    """The three-way merge of a text; None where there is none."""
    versions = (found, change.old, change.new)
    if any(entry is None or entry.kind != "file" for entry in versions) or not git.is_here():
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
    return change.new._replace(what=store.keep(output), size=len(output))


def _why(change: Change, found: Entry | None) -> str:
    if found is None:
        return "it was changed by the agent, and is not there"
    if change.old is None:
        return f"the agent made it, and another {found.kind} is there"
    if change.new is None:
        return "the agent removed it, and it was changed there"
    return "it was changed there as well, and the two do not merge"
