"""A container's limits, for flags, settings and `SandboxLimits`; `--help` imports this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from ohsandbox.text import MAX_BYTES

T = TypeVar("T", int, float)


class LimitRange(NamedTuple, Generic[T]):
    """A limit's field in `SandboxLimits`, its least and largest value, and its default; None is no limit."""

    field: str
    least: T
    most: T
    default: T | None = None


DEFAULT_MEMORY_BYTES = 2 * 1024**3
DEFAULT_CPUS = 2.0
"""Processors of a sandbox whose limits name none, if the engine's machine has as many."""
DEFAULT_PIDS = 512
MEMORY_BYTES = LimitRange("memory_bytes", 32 * 1024**2, MAX_BYTES, DEFAULT_MEMORY_BYTES)
CPUS = LimitRange("cpus", 0.01, 1e9, DEFAULT_CPUS)
"""Engines count processors in hundredths."""
PIDS = LimitRange("pids", 16, 4_194_304, DEFAULT_PIDS)
"""The largest is the kernel's PID_MAX_LIMIT on 64-bit machines."""
DISK_BYTES = LimitRange("disk_bytes", 64 * 1024**2, MAX_BYTES)


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """The limits by name, as `SandboxOptions` (flags) and `Settings` have them; None is the default."""

    memory: int | None = None
    """Limit of memory and swap together, in bytes."""
    cpus: float | None = None
    """Number of processors."""
    pids: int | None = None
    """Limit of processes and threads."""
    disk: int | None = None
    """Limit of the growth of the root file system, in bytes."""


RESOURCE_LIMITS: dict[str, LimitRange[Any]] = {
    "memory": MEMORY_BYTES,
    "cpus": CPUS,
    "pids": PIDS,
    "disk": DISK_BYTES,
}
