"""Assigns processors of this machine to trials, and measures how much of their time other work took."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_STAT, _PRESSURE = Path("/proc/stat"), Path("/proc/pressure/cpu")
_DEFAULT_CPUS = 2.0
"""Processors of a task that does not say, as `SandboxLimits.cpus`."""
LEAST_OWN, LEAST_OWN_S = 0.01, 0.1
"""A trial that used a smaller part of the time, or fewer seconds, was asleep: one that was not got 4 % beside 25 busy
processes, and to start the shell of a test takes 0.05 s."""
_SHORT_OF_TIME = 0.9
"""A time limit counts as cut short where other work left the trial less than this part of it."""


class ProcessorLease(NamedTuple):
    """The processors of one trial."""

    cpus: float
    """Enforced: never more than there are."""
    numbers: tuple[int, ...]
    """The processors that its processes are pinned to; empty where they cannot be pinned: the engine is elsewhere."""
    time_factor: float = 1.0
    """How many trials may compete for each processor: time limits are multiplied by it."""

    @property
    def cpuset(self) -> str | None:
        """The processors in the form of `SandboxLimits.cpuset`."""
        return ",".join(map(str, self.numbers)) or None


class Processors:
    """Lends processors to the trials of a run."""

    def __init__(self, numbers: tuple[int, ...], *, concurrent: int) -> None:
        """Create the pool. Numbers are the processors of the engine's machine; empty where they are not known."""
        self.numbers = numbers
        self._in_use = dict.fromkeys(numbers, 0)
        self._concurrent = concurrent
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self, asked: float | None) -> Iterator[ProcessorLease]:
        """Lend the processors that are lent to the fewest trials."""
        if not self._in_use:
            yield ProcessorLease(asked or _DEFAULT_CPUS, ())
            return
        cpus = min(asked or _DEFAULT_CPUS, len(self._in_use))
        count = math.ceil(cpus)
        with self._lock:
            chosen = tuple(sorted(sorted(self._in_use, key=self._in_use.__getitem__)[:count]))
            for number in chosen:
                self._in_use[number] += 1
        try:
            yield ProcessorLease(cpus, chosen, max(1.0, self._concurrent * count / len(self._in_use)))
        finally:
            with self._lock:
                for number in chosen:
                    self._in_use[number] -= 1


def of_this_machine() -> tuple[int, ...]:
    """Return the numbers of the processors that this process may use; empty where they are not known."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


class LoadMeter:
    """Measures the use of processors from its creation on, by the kernel's counters."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers, self._began = numbers, time.monotonic()
        self._busy, self._pressure = _busy_s(numbers), _waiting_s()

    def read(self, own_s: float | None) -> CpuShare:
        """Return the shares until now; own_s is the processor time that the trial itself has used meanwhile."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        waiting, busy = _waiting_s(), _busy_s(self._numbers)
        pressure = None if waiting is None or self._pressure is None else (waiting - self._pressure) / seconds
        if busy is None or self._busy is None or own_s is None:
            return CpuShare(seconds, None, None, pressure)
        capacity_s = seconds * len(self._numbers)
        own_share = min(own_s / capacity_s, 1.0)
        return CpuShare(
            seconds, own_share, min(max((busy - self._busy) / capacity_s - own_share, 0.0), 1.0 - own_share), pressure
        )


class CpuShare(NamedTuple):
    """How the time of some processors was divided; parts of 1, or None where it was not measured."""

    seconds: float
    own: float | None
    others: float | None
    """The part used by other trials, other programs, and other virtual machines."""
    pressure: float | None
    """The part of the time in which some process of the whole machine waited for a processor."""

    def cut_short(self, limit_s: float) -> bool:
        """Whether others took so much that a limit of limit_s seconds was not what was promised.

        That is so where the trial wanted processors (it used more of them than it left idle), and the time that others
        left is less than the limit.
        """
        if self.own is None or self.others is None:
            return False
        idle = 1.0 - self.own - self.others
        is_busy_enough = self.own >= max(LEAST_OWN, idle, LEAST_OWN_S / self.seconds)
        return is_busy_enough and self.seconds * (1.0 - self.others) < _SHORT_OF_TIME * limit_s


def _busy_s(numbers: tuple[int, ...]) -> float | None:
    """Return the seconds that these processors have worked since the machine was started; proc(5)."""
    remaining, busy = {f"cpu{number}" for number in numbers}, 0
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *ticks = line.split()
        if name in remaining:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq + steal
            remaining.discard(name)
    return None if remaining or not numbers else busy / os.sysconf("SC_CLK_TCK")


def _waiting_s() -> float | None:
    """Return the seconds in which some process of this machine waited for a processor; None without CONFIG_PSI."""
    try:
        return int(_PRESSURE.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None
