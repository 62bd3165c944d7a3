"""Resource usage of a sandbox, read from its control group, or from the engine for many sandboxes at once."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.docker.engine.error_mapping import foreign_errors
from ohsandbox.runtime.inventory import SandboxUsage
from ohsandbox.runtime.results import ResourceUsage
from ohsandbox.text import natural_number

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine

MAX_STATS_REQUESTS = 32
"""Number of concurrent requests. The engine samples each second and answers with its next sample: 30 requests one by
one take half a minute."""
STATS_TIMEOUT_S = 2.5
"""Time limit for one request."""

_FILES = (
    "memory.peak", "memory.events", "cpu.stat",
    "memory/memory.max_usage_in_bytes", "memory/memory.oom_control", "cpuacct/cpuacct.usage", "cpu/cpu.stat",
)  # fmt: skip
"""Files of control groups of version 2, then of version 1."""
READ = (
    f"for ohs_f in {' '.join(_FILES)};do [ ! -r /sys/fs/cgroup/$ohs_f ]||"
    'while read -r ohs_k ohs_v;do echo "${ohs_f##*/}" "$ohs_k" "$ohs_v";done </sys/fs/cgroup/$ohs_f;done;'
    "for ohs_f in /proc/net/snmp /proc/net/snmp6;do [ ! -r $ohs_f ]||"
    'while read -r ohs_k ohs_v;do case $ohs_k in Ip:|Ip6OutNoRoutes)echo "$ohs_k" "$ohs_v";;esac;done <$ohs_f;done'
).encode()
"""Shell code for a worker, with builtins alone: takes 1 ms."""


def parse_usage(said: bytes) -> ResourceUsage:
    """Parse what `READ` prints."""
    numbers = {}
    for line in said.decode(errors="replace").splitlines():
        file, _, fact = line.partition(" ")
        name, _, value = fact.partition(" ")
        if (number := natural_number(value or name)) is not None:
            numbers[f"{file} {name}" if value else file] = number

    def first(**units: float) -> float | None:
        return next((numbers[key] * unit for name, unit in units.items() if (key := _KEYS[name]) in numbers), None)

    peak, kills = first(peak=1, peak1=1), first(kills=1, kills1=1)
    return ResourceUsage(
        None if peak is None else int(peak), first(cpu=1e-6, cpu1=1e-9), None if kills is None else int(kills),
        first(throttled=1e-6, throttled1=1e-9), _no_route(said.decode(errors="replace")),
    )  # fmt: skip


def _no_route(output: str) -> int | None:
    """Return the packets without a route, IPv4 and IPv6, as counted per network namespace (OutNoRoutes, RFC 4293)."""
    names, values, of_6 = (match[1].split() if (match := pattern.search(output)) else [] for pattern in _SNMP)
    texts = [value for name, value in zip(names, values, strict=False) if name == "OutNoRoutes"] + of_6
    counts = [count for count in map(natural_number, texts) if count is not None]
    return sum(counts) if counts and len(counts) == len(texts) else None


_SNMP = tuple(
    re.compile(line, re.MULTILINE) for line in (r"^Ip: ([A-Za-z].*)$", r"^Ip: ([0-9].*)$", r"^Ip6OutNoRoutes (.*)$")
)
"""Matches the lines of names and of values in /proc/net/snmp, and one line of /proc/net/snmp6."""
_KEYS = {
    "peak": "memory.peak", "peak1": "memory.max_usage_in_bytes",
    "cpu": "cpu.stat usage_usec", "cpu1": "cpuacct.usage",
    "kills": "memory.events oom_kill", "kills1": "memory.oom_control oom_kill",
    "throttled": "cpu.stat throttled_usec", "throttled1": "cpu.stat throttled_time",
}  # fmt: skip


# --- from the engine --------------------------------------------------------------------------------


def read_stats(engine: Engine, container: str, *, until: float) -> SandboxUsage | None:
    """Return one sample of the engine (`GET /containers/{id}/stats`, one-shot); None without an answer.

    until is a time of `time.monotonic` after which the engine is not asked any more.
    """
    if time.monotonic() >= until:
        return None
    api = engine.api
    try:
        url = f"{api.base_url}/v{api.api_version}/containers/{container}/stats"
        answer = api.get(url, params={"stream": "false", "one-shot": "true"}, timeout=STATS_TIMEOUT_S)
        return parse_stats(answer.json()) if answer.ok else None
    except foreign_errors():  # also for an answer that is not JSON, which raises requests' error
        return None


def parse_stats(said: Any) -> SandboxUsage | None:
    """Parse a sample; return None for a container that does not run, whose sample has no times."""
    try:
        memory, detail = said["memory_stats"], said["memory_stats"].get("stats") or {}
        cache = detail.get("inactive_file", 0) if "total_inactive_file" not in detail else detail["total_inactive_file"]
        networks = (said.get("networks") or {}).values()
        return SandboxUsage(
            measured_at=datetime.fromisoformat(said["read"]),
            cpu_s=int(said["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9,
            memory_bytes=max(0, int(memory["usage"]) - int(cache)),
            memory_limit_bytes=int(memory["limit"]),
            received_bytes=sum(int(network["rx_bytes"]) for network in networks),
            sent_bytes=sum(int(network["tx_bytes"]) for network in networks),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
