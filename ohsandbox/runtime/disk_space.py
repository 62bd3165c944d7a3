"""Free space of a file system, and the reserve that must stay free for other users of the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_GIB = 1024**3

FLOOR_BYTES = 2 * _GIB
_FLOOR_FILES = 100_000
_FLOOR_SHARE = 10
"""Divisor for a small disk: a tenth of it must stay free."""


class DiskSpace(NamedTuple):
    """The space of a file system."""

    free_bytes: int
    """Free bytes for ordinary users."""
    total_bytes: int
    free_files: int
    total_files: int
    """Number of inodes; 0 if it is not fixed (btrfs)."""


def measure(path: Path | str) -> DiskSpace:
    """Return the space of a file system of this machine.

    Raises:
        OSError: path cannot be reached.
    """
    stats = os.statvfs(path)
    unit = stats.f_frsize
    return DiskSpace(stats.f_bavail * unit, stats.f_blocks * unit, stats.f_favail, stats.f_files)


def floor_bytes(found: DiskSpace, asked: int | None) -> int:
    """Return the number of bytes of a file system that must stay free; asked overrides the default."""
    return min(FLOOR_BYTES, found.total_bytes // _FLOOR_SHARE) if asked is None else asked


def floor_files(found: DiskSpace) -> int:
    """Return the number of inodes that must stay free."""
    return min(_FLOOR_FILES, found.total_files // _FLOOR_SHARE)


def shortage(found: DiskSpace, asked: int | None) -> str | None:
    """Return a predicate that says what is short; None if enough is free."""
    if found.free_bytes < (least := floor_bytes(found, asked)):
        return f"has {found.free_bytes / _GIB:.2f} GiB free, less than the {least / _GIB:.2f} GiB that must stay free"
    if found.free_files < (fewest := floor_files(found)):
        return f"has inodes for {found.free_files} more files, less than the {fewest} that must stay free"
    return None
