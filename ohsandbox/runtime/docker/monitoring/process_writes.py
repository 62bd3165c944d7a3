"""What the processes of a container have written, as the shell function `ohs_written` prints it."""

from __future__ import annotations

import re
from typing import NamedTuple

from ohsandbox.text import natural_number

_USER = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")


class ProcessWrites(NamedTuple):
    """Written bytes and system time of a process."""

    own_bytes: int | None
    """Bytes written to disks by its first thread. None: not readable."""
    disk_bytes: int | None
    """Bytes written to disks by all its threads and by the children it has waited for. tmpfs and FUSE (a directory of
    Docker Desktop's host) are not counted."""
    call_bytes: int | None
    """Bytes passed to write(2) for any file; threads and children as in disk_bytes."""
    ticks: int | None
    """System time in ticks of 10 ms; threads and children as in disk_bytes."""
    user: str
    """The process's uid:gid."""
    name: str


def parse_writes(output: bytes) -> dict[int, ProcessWrites]:
    """Return the processes by their pid, from what `ohs_written` prints."""
    processes = {}
    for line in output.decode("utf-8", "replace").split("\n"):  # a name may hold any other separator
        pid, *numbers, user, name = (*line.split(" ", 6), *[""] * 7)[:7]
        if (number := natural_number(pid)) is not None and _USER.fullmatch(user):
            own, disk, calls, ticks = map(natural_number, numbers)
            processes[number] = ProcessWrites(own, disk, calls, ticks, user, name)
    return processes
