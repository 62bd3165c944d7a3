"""The processors of this machine: each trial has its own while they last, and what others took of them is known."""

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
"""Of a task that does not say: as `SandboxLimits.cpus`."""
LEAST_OWN, LEAST_OWN_S = 0.01, 0.1
"""A trial that used less of the time, or fewer seconds, slept: one that did not got 4 % beside 25 busy processes, and
to start the shell of a test takes 0.05 s."""
_SHORT_OF_TIME = 0.9
"""A limit was cut short where less than this part of it was left to the trial by others."""


class ProcessorLease(NamedTuple):
    """The processors of one trial."""

    cpus: float
    """Enforced: never more than there are."""
    numbers: tuple[int, ...]
    """Of the processors that its processes run on; empty where they cannot be pinned: the engine is elsewhere."""
    time_factor: float = 1.0
    """How many trials may compete for each of them: limits of time are multiplied by it."""

    @property
    def cpuset(self) -> str | None:
        """As `SandboxLimits.cpuset` has it."""
        return ",".join(map(str, self.numbers)) or None


class Processors:
    """Lends processors to the trials of a run."""

    def __init__(self, numbers: tuple[int, ...], *, concurrent: int) -> None:
        """Numbers are those of the engine's machine; empty where they are not known. So many trials run at once."""
        self.numbers = numbers
        self._in_use = dict.fromkeys(numbers, 0)
        self._concurrent = concurrent
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self, asked: float | None) -> Iterator[ProcessorLease]:
        """Lend the processors that the fewest others have."""
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
    """The processors that this process may use; none where that is not known."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


class LoadMeter:
    """What processors did for whom from now on, by the kernel's counters."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers, self._began = numbers, time.monotonic()
        self._busy, self._pressure = _busy_s(numbers), _waiting_s()

    def read(self, own_s: float | None) -> CpuShare:
        """Say what has been until now; own_s is the processor time that the trial itself has used meanwhile."""
        seconds = max(time.monotonic() - self._began, 1e-6)
        waiting, busy = _waiting_s(), _busy_s(self._numbers)
        pressure = None if waiting is None or self._pressure is None else (waiting - self._pressure) / seconds
        if busy is None or self._busy is None or own_s is None:
            return CpuShare(seconds, None, None, pressure)
        whole = seconds * len(self._numbers)
        own = min(own_s / whole, 1.0)
        return CpuShare(seconds, own, min(max((busy - self._busy) / whole - own, 0.0), 1.0 - own), pressure)


class CpuShare(NamedTuple):
    """How the time of some processors was divided; parts are of 1, None where it was not measured."""

    seconds: float
    own: float | None
    others: float | None
    """Of other trials and programs, and of other virtual machines."""
    pressure: float | None
    """The part of the time in which some process of the whole machine waited for a processor."""

    def cut_short(self, limit_s: float) -> bool:
        """Whether others took so much that a limit of limit_s seconds was not what was promised.

        So where the trial wanted processors (it used more of them than it left idle), and what others left of the time
        is less than the limit.
        """
        if self.own is None or self.others is None:
            return False
        idle = 1.0 - self.own - self.others
        wanted = self.own >= max(LEAST_OWN, idle, LEAST_OWN_S / self.seconds)
        return wanted and self.seconds * (1.0 - self.others) < _SHORT_OF_TIME * limit_s


def _busy_s(numbers: tuple[int, ...]) -> float | None:
    """Seconds that these processors have worked, for whomever, since the machine was started; proc(5)."""
    wanted, busy = {f"cpu{number}" for number in numbers}, 0
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *ticks = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq + steal
            wanted.discard(name)
    return None if wanted or not numbers else busy / os.sysconf("SC_CLK_TCK")


def _waiting_s() -> float | None:
    """Seconds in which some process of this machine waited for a processor; None without CONFIG_PSI."""
    try:
        return int(_PRESSURE.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None
