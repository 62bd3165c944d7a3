"""Resource use of a trial's sandboxes; notices where other work took the processors that time limits assume."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

from ohsandbox.errors import OhsandboxError
from ohsandbox.evaluation.processors import LoadMeter
from ohsandbox.evaluation.results import Load, Resources
from ohsandbox.runtime.results import ResourceUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox import DockerRuntime
    from ohsandbox.evaluation.processors import CpuShare, ProcessorLease

Worker = Literal["agent", "verifier"]


class Accounting:
    """The resource account of one trial."""

    def __init__(self, lease: ProcessorLease) -> None:
        self._lease = lease
        self._used: dict[str, ResourceUsage] = {}
        """What each sandbox has used so far, by its id."""
        self._kills: dict[Worker, int | None] = {"agent": None, "verifier": None}
        self._shares: list[CpuShare] = []
        self._no_route: int | None = None
        self.cut_short: set[Worker] = set()
        """The workers whose time limit was shortened in effect: other work took the processors."""

    def begin(self, runtime: DockerRuntime) -> None:
        """Start counting for a network namespace now: it may have served another sandbox before."""
        with contextlib.suppress(OhsandboxError):
            no_route = runtime.resource_usage().no_route
            self._used[runtime.id] = ResourceUsage(cpu_s=0.0, oom_kills=0, no_route=no_route)

    @contextlib.contextmanager
    def watched(self, runtime: DockerRuntime, worker: Worker, limit_s: float | None) -> Iterator[None]:
        """Count what worker uses in the block; limit_s is what the task gives it. Costs 1 ms."""
        meter = LoadMeter(self._lease.numbers)
        try:
            yield
        finally:
            previous = self._used.get(runtime.id, ResourceUsage(cpu_s=0.0, oom_kills=0, no_route=0))
            current = ResourceUsage()
            with contextlib.suppress(OhsandboxError):
                current = runtime.resource_usage()
            self._used[runtime.id] = current
            if current.oom_kills is not None:
                # a sandbox that was restarted counts from zero again
                new = current.oom_kills - (previous.oom_kills or 0)
                self._kills[worker] = (self._kills[worker] or 0) + (new if new >= 0 else current.oom_kills)
            if current.no_route is not None and worker == "agent":
                self._no_route = (self._no_route or 0) + max(current.no_route - (previous.no_route or 0), 0)
            own_cpu_s = None if current.cpu_s is None else max(current.cpu_s - (previous.cpu_s or 0.0), 0.0)
            share = meter.read(own_cpu_s)
            self._shares.append(share)
            if limit_s is not None and share.cut_short(limit_s):
                self.cut_short.add(worker)

    def killed(self, worker: Worker) -> str:
        """Return a clause about processes of worker that were killed for want of memory; empty if none were."""
        kills = self._kills[worker]
        return f" ({kills} processes were killed: memory ran out)" if kills else ""

    @property
    def resources(self) -> Resources:
        """Return the resource use of all sandboxes together."""
        used = self._used.values()
        peaks = [usage.peak_memory_bytes for usage in used if usage.peak_memory_bytes is not None]
        cpu = [usage.cpu_s for usage in used if usage.cpu_s is not None]
        throttled = [usage.throttled_s for usage in used if usage.throttled_s is not None]
        return Resources(
            peak_memory_bytes=max(peaks, default=None), cpu_s=sum(cpu) if cpu else None,
            oom_kills=self._kills["agent"], verifier_oom_kills=self._kills["verifier"],
            throttled_s=sum(throttled) if throttled else None, no_route=self._no_route,
        )  # fmt: skip

    @property
    def load(self) -> Load:
        """Return the load of the processors in the worst phase."""
        others = [share.others for share in self._shares if share.others is not None]
        pressure = [share.pressure for share in self._shares if share.pressure is not None]
        return Load(
            cpus=self._lease.cpus, processors=list(self._lease.numbers), time_factor=self._lease.time_factor,
            others=max(others, default=None), pressure=max(pressure, default=None),
        )  # fmt: skip
