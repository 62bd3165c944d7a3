"""What is different between two trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.timetravel.snapshots.manifest import is_git

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.timetravel.snapshots.manifest import Entry, Manifest


class FileChange(NamedTuple):
    """One name that is different."""

    path: str
    old: Entry | None
    """None: it was not there."""
    new: Entry | None
    """None: it is not there any more."""

    @property
    def word(self) -> Literal["new", "changed", "gone"]:
        """For people."""
        if self.old is None:
            return "new"
        return "gone" if self.new is None else "changed"

    @property
    def is_of_directories(self) -> bool:
        """Only directories: a patch has no word for them."""
        return all(entry is None or entry.kind == "dir" for entry in (self.old, self.new))


def outside_git(changes: Iterable[FileChange]) -> list[FileChange]:
    """Those of the work itself: what is in `.git` goes into no patch, and to no other directory."""
    return [change for change in changes if not is_git(change.path)]


def changes_between(old: Manifest, new: Manifest) -> list[FileChange]:
    """Every name that is different, by path. What either tree left out, and what lies below it, is no change."""
    paths = old.entries.keys() | new.entries.keys()
    unknown = old.left_out.keys() | new.left_out.keys()
    if unknown:
        below = tuple(f"{path}/" for path in unknown)
        paths = {path for path in paths if path not in unknown and not path.startswith(below)}
    found = (FileChange(path, old.entries.get(path), new.entries.get(path)) for path in sorted(paths))
    return [change for change in found if change.old is None or not change.old.is_like(change.new)]
