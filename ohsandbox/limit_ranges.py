"""The ranges of a container's limits, for flags, settings and `SandboxLimits`; `--help` imports this module."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from ohsandbox.text import MAX_BYTES

T = TypeVar("T", int, float)


class LimitRange(NamedTuple, Generic[T]):
    """The least and the largest value of a limit."""

    least: T
    most: T


MEMORY_BYTES = LimitRange(32 * 1024**2, MAX_BYTES)
"""Memory and swap together."""
CPUS = LimitRange(0.01, 1e9)
"""Processors; engines count them in hundredths."""
PIDS = LimitRange(16, 4_194_304)
"""Processes and threads; the largest is the kernel's PID_MAX_LIMIT on 64-bit machines."""
DISK_BYTES = LimitRange(64 * 1024**2, MAX_BYTES)
"""Growth of the root file system."""
