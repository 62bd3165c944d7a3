"""What a directory of this machine held at one moment: looking, keeping, comparing, putting back."""

from ohsandbox.conversation.snapshots.changes import Change, changes_between
from ohsandbox.conversation.snapshots.merging import Merge, merge
from ohsandbox.conversation.snapshots.patch import Part, patch_of
from ohsandbox.conversation.snapshots.putting import Refused, put_back
from ohsandbox.conversation.snapshots.store import Snapshots
from ohsandbox.conversation.snapshots.tree import Entry, Tree, look

__all__ = [
    "Change",
    "Entry",
    "Merge",
    "Part",
    "Refused",
    "Snapshots",
    "Tree",
    "changes_between",
    "look",
    "merge",
    "patch_of",
    "put_back",
]
