"""What a sandbox has used, as its control group tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime.docker.container_config import MIB, SandboxLimits
from ohsandbox.runtime.docker.usage import parse
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
    ],
    ids=["version 2", "version 1", "nonsense", "nothing"],
)  # fmt: skip
def test_a_control_group_tells_memory_processors_and_kills(said: bytes, usage: ResourceUsage) -> None:
    assert parse(said) == usage


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
