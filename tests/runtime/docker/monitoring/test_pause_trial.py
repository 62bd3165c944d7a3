"""Who is found to fill a disk: with a clock, a disk and other writers that are simulated."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import SandboxPaused
from ohsandbox.paths import state_dir
from ohsandbox.private_files import locked
from ohsandbox.runtime.disk_space import DiskSpace
from ohsandbox.runtime.docker.container import Container
from ohsandbox.runtime.docker.monitoring import pause_trial
from ohsandbox.runtime.docker.monitoring.pause_trial import PauseTrial, busiest
from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAUSING_S = 0.03


class Disk:
    """A disk that the sandbox fills at own_rate while it runs, and another program in phases, in bytes a second."""

    def __init__(self, own_rate: float, rate: float, period_s: float, share: float) -> None:
        self.own_rate, self.rate, self.period_s, self.share = own_rate, rate, period_s, share
        self.now = self.start = random.uniform(0, period_s)
        self.own_bytes = 0.0
        self.is_running = True

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.own_bytes += self.own_rate * seconds * self.is_running

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.sleep(PAUSING_S)
        self.is_running = False
        yield
        self.is_running = True
        self.sleep(PAUSING_S)

    def ask(self) -> DiskSpace:
        phases, into = divmod(self.now, self.period_s)
        writing_s = phases * self.period_s * self.share + min(into, self.period_s * self.share)
        return DiskSpace(10**12 - int(self.own_bytes + self.rate * writing_s), 10**12, 10**6, 10**6)


@pytest.fixture
def trial_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Disk], bool]:
    """Tries a sandbox once."""

    def fills(disk: Disk) -> bool:
        clock = SimpleNamespace(monotonic=lambda: disk.now, sleep=disk.sleep)
        monkeypatch.setattr(pause_trial, "time", clock)
        return PauseTrial(disk.paused).fills(disk.ask)

    return fills


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("period_s", [0.05, 0.1, 0.36, 0.4, 1.0, 5.0])
def test_a_sandbox_is_innocent_while_another_program_writes_in_phases(
    trial_of: Callable[[Disk], bool], period_s: float, share: float
) -> None:
    random.seed(f"{period_s} {share}")
    guilty = sum(trial_of(Disk(0, 10**8, period_s, share)) for _ in range(200))
    assert guilty <= 200 * 0.03


@pytest.mark.parametrize("rate", [0, 10**6])
def test_a_sandbox_that_writes_all_the_time_is_found_beside_a_smaller_writer(
    trial_of: Callable[[Disk], bool], rate: int
) -> None:
    assert all(trial_of(Disk(10**7, rate, 0.3, 0.5)) for _ in range(50))


def test_no_trial_waits_for_that_of_another_sandbox(trial_of: Callable[[Disk], bool]) -> None:
    disk = Disk(10**7, 0, 1, 0)
    with locked(state_dir(create=True) / "disk-trial.lock"):
        assert not trial_of(disk)
    assert disk.now == disk.start
    assert trial_of(disk)


def test_a_sandbox_that_a_checkpoint_has_paused_is_not_tried(trial_of: Callable[[Disk], bool]) -> None:
    calls: list[str] = []
    api = SimpleNamespace(pause=lambda _: calls.append("pause"), unpause=lambda _: calls.append("unpause"))
    container = Container(SimpleNamespace(api=api), "0", name="box")  # type: ignore[arg-type] # no more of it is used
    disk = Disk(10**7, 0, 1, 0)
    disk.paused = lambda: container.paused(waits=False)  # type: ignore[method-assign]
    with container.paused():
        assert not trial_of(disk)
        with pytest.raises(SandboxPaused), container.paused(waits=False):
            pass
    assert calls == ["pause", "unpause"]
    with container.paused(waits=False):
        assert calls[2:] == ["pause"]


def test_only_processes_that_spend_time_in_the_kernel_are_named() -> None:
    def spent(*ticks: int | None) -> dict[tuple[str, int], ProcessWrites]:
        return {("", pid): ProcessWrites(0, 0, 0, of, "0:0", "sh") for pid, of in enumerate(ticks)}

    assert busiest(spent(5, 5, 5), spent(6, 5, 5)) == []
    assert busiest(spent(5, 5, None), spent(25, 8, None)) == [("", 0)]
    assert busiest({}, {}) == []
