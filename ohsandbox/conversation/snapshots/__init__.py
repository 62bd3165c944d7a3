"""What a directory of this machine held at one moment: looking, keeping, putting back, comparing."""

from ohsandbox.conversation.snapshots.changes import Change, changes_between
from ohsandbox.conversation.snapshots.putting import Refused, put_back
from ohsandbox.conversation.snapshots.store import Snapshots
from ohsandbox.conversation.snapshots.tree import Entry, Tree

__all__ = ["Change", "Entry", "Refused", "Snapshots", "Tree", "changes_between", "put_back"]
