"""What a directory of this machine held at one moment: looking, keeping, comparing, putting back."""

from ohsandbox.conversation.snapshots.changes import Change, changes_between, outside_git
from ohsandbox.conversation.snapshots.merging import Merge, merge, take_back
from ohsandbox.conversation.snapshots.patch import Part, patch_of
from ohsandbox.conversation.snapshots.putting import Refused, put_back
from ohsandbox.conversation.snapshots.store import Snapshots
from ohsandbox.conversation.snapshots.tree import Entry, Tree, is_git, look, parents_of

__all__ = [
    "Change",
    "Entry",
    "Merge",
    "Part",
    "Refused",
    "Snapshots",
    "Tree",
    "changes_between",
    "is_git",
    "look",
    "merge",
    "outside_git",
    "parents_of",
    "patch_of",
    "put_back",
    "take_back",
]
