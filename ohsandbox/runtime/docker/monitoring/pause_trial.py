"""Whether a sandbox fills a disk though no process is charged with it: it is paused, and runs, in turns.

The kernel charges blocks of directories, which grow by each name in them, to nobody.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError
from ohsandbox.paths import state_dir
from ohsandbox.private_files import open_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from ohsandbox.runtime.disk_space import DiskSpace
    from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites

_TURNS, _MAX_IDLE_TURNS = 6, 4
"""Number of turns that must show it, and of those in which nothing is written, as on a machine so busy that the sandbox
does not get the processor."""
_SHORTEST_TURN_S, _LONGEST_TURN_S = 0.1, 0.2
"""Order and length of turns are random: another program that writes in phases could keep time with equal ones. Beside
60 such programs (periods of 0.05 to 5 s, writing for 0.1 to 0.7 of each) 0.3 % of trials found the sandbox guilty, and
13 % where three equal turns were added up (simulated).
"""
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

        ask returns the free space. False if the sandbox cannot be paused, or a checkpoint has it paused; if another one
        is being tried; or if a trial has just found that others do it.

        Raises:
            OSError: the state directory cannot be written.
        """
        if time.monotonic() < self._next:
            return False
        if (lock := open_locked(state_dir(create=True) / "disk-trial.lock", create=True)) is None:
            return False
        try:
            fills = self._is_guilty(ask)
        except OhsandboxError:  # it has ended, or a checkpoint, which writes itself, has it paused
            return False
        finally:
            os.close(lock)
        if fills:
            self._rest_s = _SHORTEST_REST_S
            return True
        self._next = time.monotonic() + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        return False

    def _is_guilty(self, ask: Callable[[], DiskSpace | None]) -> bool:
        turns = idle = 0
        while turns < _TURNS:
            running, paused = self._losses(ask)
            if running > 2 * max(paused, 0):
                turns += 1
            elif running > 0 or paused > 0 or (idle := idle + 1) > _MAX_IDLE_TURNS:
                return False
        return True

    def _losses(self, ask: Callable[[], DiskSpace | None]) -> tuple[int, int]:
        """Return the bytes that the disk loses while the sandbox runs, and in the same time while it is paused."""
        turn_s = random.uniform(_SHORTEST_TURN_S, _LONGEST_TURN_S)  # noqa: S311 - no secret
        running = paused = 0
        for is_paused in random.sample((False, True), 2):
            if is_paused:
                with self._paused():
                    paused = _loss_bytes(ask, turn_s)
            else:
                running = _loss_bytes(ask, turn_s)
        return running, paused


def _loss_bytes(ask: Callable[[], DiskSpace | None], turn_s: float) -> int:
    before = ask()
    time.sleep(turn_s)
    after = ask()
    return before.free_bytes - after.free_bytes if before and after else 0


def busiest(
    before: Mapping[tuple[str, int], ProcessWrites], now: Mapping[tuple[str, int], ProcessWrites]
) -> list[tuple[str, int]]:
    """Return the processes that spent most time in the kernel since before; none if no time is seen."""
    spent = {
        writer: (process.ticks or 0) - ((before[writer].ticks if writer in before else 0) or 0)
        for writer, process in now.items()
    }
    least = max(*spent.values(), 2 * _LEAST_TICKS, 0) / 2
    return [writer for writer, ticks in spent.items() if ticks >= least]
