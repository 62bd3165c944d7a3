"""How much a file system has free, and the floor under it: what must stay free for everybody else on the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_GIB = 1024**3

FLOOR_BYTES = 2 * _GIB
_FLOOR_FILES = 100_000
_FLOOR_SHARE = 10
"""The floor of a small disk is a tenth of it."""


class DiskSpace(NamedTuple):
    """A file system."""

    free_bytes: int
    """For ordinary users."""
    total_bytes: int
    free_files: int
    total_files: int
    """0 where it has no fixed number of inodes (btrfs)."""


def measure(path: Path | str) -> DiskSpace:
    """What a file system of this machine has.

    Raises:
        OSError: path cannot be reached.
    """
    found = os.statvfs(path)
    unit = found.f_frsize
    return DiskSpace(found.f_bavail * unit, found.f_blocks * unit, found.f_favail, found.f_files)


def floor_bytes(found: DiskSpace, asked: int | None) -> int:
    """What must stay free of a file system."""
    return min(FLOOR_BYTES, found.total_bytes // _FLOOR_SHARE) if asked is None else asked


def floor_files(found: DiskSpace) -> int:
    """How many inodes must stay free."""
    return min(_FLOOR_FILES, found.total_files // _FLOOR_SHARE)


def shortage(found: DiskSpace, asked: int | None) -> str | None:
    """A verb phrase, where less is free than must be."""
    if found.free_bytes < (least := floor_bytes(found, asked)):
        return f"has {found.free_bytes / _GIB:.2f} GiB free, less than the {least / _GIB:.2f} GiB that must stay free"
    if found.free_files < (fewest := floor_files(found)):
        return f"has inodes for {found.free_files} more files, less than the {fewest} that must stay free"
    return None
