"""What a sandbox has used of memory and processors, from its control group."""

from __future__ import annotations

from ohsandbox.runtime.results import ResourceUsage

_FILES = (
    "memory.peak", "memory.events", "cpu.stat",
    "memory/memory.max_usage_in_bytes", "memory/memory.oom_control", "cpuacct/cpuacct.usage", "cpu/cpu.stat",
)  # fmt: skip
"""Of control groups of version 2, then of version 1."""
READ = (
    f"for ohs_f in {' '.join(_FILES)};do [ ! -r /sys/fs/cgroup/$ohs_f ]||"
    'while read -r ohs_k ohs_v;do echo "${ohs_f##*/}" "$ohs_k" "$ohs_v";done </sys/fs/cgroup/$ohs_f;done'
).encode()
"""Worker shell, builtins alone: 1 ms."""


def parse(said: bytes) -> ResourceUsage:
    """Parse what `READ` prints."""
    found = {}
    for line in said.decode(errors="replace").splitlines():
        file, _, fact = line.partition(" ")
        name, _, value = fact.partition(" ")
        number = value or name
        if number.isdigit() and len(number) <= 20:  # noqa: PLR2004 - 64 bits
            found[f"{file} {name}" if value else file] = int(number)

    def first(**units: float) -> float | None:
        return next((found[key] * unit for name, unit in units.items() if (key := _KEYS[name]) in found), None)

    peak, kills = first(peak=1, peak1=1), first(kills=1, kills1=1)
    return ResourceUsage(
        None if peak is None else int(peak), first(cpu=1e-6, cpu1=1e-9), None if kills is None else int(kills),
        first(throttled=1e-6, throttled1=1e-9),
    )  # fmt: skip


_KEYS = {
    "peak": "memory.peak", "peak1": "memory.max_usage_in_bytes",
    "cpu": "cpu.stat usage_usec", "cpu1": "cpuacct.usage",
    "kills": "memory.events oom_kill", "kills1": "memory.oom_control oom_kill",
    "throttled": "cpu.stat throttled_usec", "throttled1": "cpu.stat throttled_time",
}  # fmt: skip
