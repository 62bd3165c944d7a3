"""Snapshots of a directory of this machine: scan, store, compare, merge and restore."""

from ohsandbox.timetravel.snapshots.manifest import (
    FileChange,
    Manifest,
    changes_between,
    is_git,
    is_over_limit,
    is_too_large,
    outside_git,
    parents_of,
    scan,
    worst_first,
)
from ohsandbox.timetravel.snapshots.patch import patch_of
from ohsandbox.timetravel.snapshots.restore import UnappliedChange, write_changes
from ohsandbox.timetravel.snapshots.store import SnapshotStore
from ohsandbox.timetravel.snapshots.three_way_merge import Merge, merge, revert_changes
from ohsandbox.timetravel.snapshots.workspaces import Workspaces

__all__ = [
    "FileChange",
    "Manifest",
    "Merge",
    "SnapshotStore",
    "UnappliedChange",
    "Workspaces",
    "changes_between",
    "is_git",
    "is_over_limit",
    "is_too_large",
    "merge",
    "outside_git",
    "parents_of",
    "patch_of",
    "revert_changes",
    "scan",
    "worst_first",
    "write_changes",
]
