"""What a sandbox has used, as its control group tells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime.docker.config.container_config import MIB, SandboxLimits
from ohsandbox.runtime.docker.monitoring.usage import parse_stats, parse_usage
from ohsandbox.runtime.inventory import SandboxUsage
from ohsandbox.runtime.results import ResourceUsage

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ((b"memory.peak 4096\nmemory.events oom 9\nmemory.events oom_kill 2\ncpu.stat usage_usec 1500000\n"
          b"cpu.stat throttled_usec 250000\n"), ResourceUsage(4096, 1.5, 2, 0.25)),
        ((b"memory.max_usage_in_bytes 4096 \nmemory.oom_control oom_kill 0\ncpuacct.usage 1500000000\n"
          b"cpu.stat throttled_time 250000000\n"), ResourceUsage(4096, 1.5, 0, 0.25)),
        (b"memory.peak max\n\xff\ncpu.stat usage_usec -1\ncpuacct.usage 999999999999999999999999\n", ResourceUsage()),
        (b"", ResourceUsage()),
        (b"Ip: Forwarding OutNoRoutes\nIp: 2 5\nIp6OutNoRoutes 3 \n", ResourceUsage(no_route=8)),
        (b"Ip: OutNoRoutes\nIp: " + b"9" * 5000, ResourceUsage()),
    ],
    ids=["version 2", "version 1", "nonsense", "nothing", "network", "network forged"],
)  # fmt: skip
def test_a_control_group_tells_memory_processors_and_kills(said: bytes, usage: ResourceUsage) -> None:
    assert parse_usage(said) == usage


@pytest.mark.docker
def test_memory_and_kills_of_a_sandbox_are_counted(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox(limits=SandboxLimits(memory_bytes=128 * MIB))
    before = runtime.resource_usage()
    assert before.oom_kills == 0
    assert runtime.run(["sh", "-c", "head -c 300m /dev/zero | tail -n 1 >/dev/null"]).exit_code != 0
    after = runtime.resource_usage()
    assert after.oom_kills >= 1
    assert before.peak_memory_bytes < 100 * MIB < after.peak_memory_bytes
    assert after.cpu_s > before.cpu_s
    told = runtime.execute("exec tail -n 1 /dev/zero")
    assert f"memory, {128 * MIB // MIB} MiB, was used up" in str(told.notice)


SAMPLE = {
    "read": "2026-11-23T02:14:11.028331746Z",
    "cpu_stats": {"cpu_usage": {"total_usage": 23_298_889}, "online_cpus": 2},
    "memory_stats": {
        "usage": 757_760,
        "limit": 25_276_063_744,
        "stats": {"inactive_file": 1, "total_inactive_file": 57_760},
    },
    "networks": {"eth0": {"rx_bytes": 736, "tx_bytes": 10}, "eth1": {"rx_bytes": 4, "tx_bytes": 0}},
}
"""Of engine 20.10.24, control groups of version 1, shortened."""


def test_a_sample_of_the_engine_is_read() -> None:
    at = datetime(2026, 11, 23, 2, 14, 11, 28331, UTC)
    assert parse_stats(SAMPLE) == SandboxUsage(at, 0.023298889, 700_000, 25_276_063_744, 740, 10)
    alone = {name: value for name, value in SAMPLE.items() if name != "networks"}
    assert parse_stats(
        alone | {"memory_stats": {"usage": 5, "limit": 9, "stats": {"inactive_file": 3}}}
    ) == SandboxUsage(at, 0.023298889, 2, 9, 0, 0)


@pytest.mark.parametrize("said", [None, [], {}, SAMPLE | {"read": "0001"}, SAMPLE | {"memory_stats": {}}])
def test_a_sample_of_what_does_not_run_is_none(said: object) -> None:
    assert parse_stats(said) is None


def test_the_share_of_a_processor_needs_time_between_two_samples() -> None:
    first = SandboxUsage(datetime(2026, 1, 1, tzinfo=UTC), 1.0, 1, 1, 0, 0)
    assert first.cpu_share(first) is None
    assert first._replace(measured_at=datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC), cpu_s=4.0).cpu_share(first) == 1.5


@pytest.mark.docker
def test_what_was_tried_without_a_network_is_counted(sandbox: Callable[..., Any]) -> None:
    runtime = sandbox()
    before = runtime.resource_usage().no_route
    connect = "import socket; socket.socket({}, socket.{}).connect_ex(('{}', 53))"
    for kind, address in (("SOCK_STREAM", "192.0.2.1"), ("SOCK_DGRAM", "192.0.2.2")):
        runtime.run(["python3", "-c", connect.format("socket.AF_INET", kind, address)])
    assert runtime.resource_usage().no_route - before == 2
