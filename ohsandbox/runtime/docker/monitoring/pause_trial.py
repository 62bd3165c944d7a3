"""Whether a sandbox fills a disk though no process is charged with it: it is paused, and runs, in turns.

The kernel charges blocks of directories, which grow by each name in them, to nobody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError
from ohsandbox.paths import state_dir
from ohsandbox.private_files import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from ohsandbox.runtime.disk_space import DiskSpace
    from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites

_TURNS, _TURN_S = 3, 0.15
_SHORTEST_REST_S, _LONGEST_REST_S = 1.0, 60.0
"""Seconds until the next trial, doubled by each that found that others fill the disk."""
_LEAST_TICKS = 2
"""Ticks of 10 ms that a process must have spent in the kernel to be named."""


class PauseTrial:
    """Trials of one sandbox. One sandbox of this user is tried at a time: two paused ones would seem to fill a disk."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        """Take the context in which the sandbox is paused."""
        self._paused = paused
        self._next, self._rest_s = 0.0, _SHORTEST_REST_S

    def fills(self, ask: Callable[[], DiskSpace | None]) -> bool:
        """Return whether at least half of what a disk's free space loses is lost because the sandbox runs.

        ask returns the free space. False if the sandbox cannot be paused, or a trial has just found that others do it.
        """
        if time.monotonic() < self._next:
            return False
        running = paused = 0
        try:
            with locked(state_dir(create=True) / "disk-trial.lock"):
                for _ in range(_TURNS):
                    running += _loss_bytes(ask)
                    with self._paused():
                        paused += _loss_bytes(ask)
        except OhsandboxError:  # it has ended
            return False
        if running > 0 and running > 2 * paused:
            self._rest_s = _SHORTEST_REST_S
            return True
        self._next = time.monotonic() + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        return False


def _loss_bytes(ask: Callable[[], DiskSpace | None]) -> int:
    before = ask()
    time.sleep(_TURN_S)
    after = ask()
    return before.free_bytes - after.free_bytes if before and after else 0


def busiest(
    before: Mapping[tuple[str, int], ProcessWrites], now: Mapping[tuple[str, int], ProcessWrites]
) -> list[tuple[str, int]]:
    """Return the processes that spent most time in the kernel since before; all of the sandbox itself if none did."""
    spent = {
        writer: (process.ticks or 0) - ((before[writer].ticks if writer in before else 0) or 0)
        for writer, process in now.items()
    }
    least = max(*spent.values(), 2 * _LEAST_TICKS, 0) / 2
    return [writer for writer, ticks in spent.items() if ticks >= least] or [writer for writer in now if not writer[0]]
