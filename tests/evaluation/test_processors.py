"""Each trial has its own processors while they last; who took them is measured by the kernel's counters."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from ohsandbox.evaluation.processors import CpuShare, LoadMeter, ProcessorLease, Processors, of_this_machine


def test_trials_get_the_processors_that_the_fewest_have() -> None:
    processors = Processors((0, 1, 2, 3), concurrent=4)
    with contextlib.ExitStack() as stack:
        leases = [stack.enter_context(processors.lend(1)) for _ in range(6)]
        assert [lease.cpuset for lease in leases] == ["0", "1", "2", "3", "0", "1"]
        wide = stack.enter_context(processors.lend(1.5))
        assert (wide.cpus, wide.cpuset, wide.time_factor) == (1.5, "2,3", 2)
    with processors.lend(None) as lease:
        assert lease == ProcessorLease(2, (0, 1), 2)


def test_no_trial_gets_more_than_there_are() -> None:
    with Processors((0, 1), concurrent=1).lend(64) as lease:
        assert lease == ProcessorLease(2, (0, 1), 1)
    with Processors((), concurrent=8).lend(3) as lease:
        assert (lease.cpus, lease.cpuset, lease.time_factor) == (3, None, 1)


@pytest.mark.parametrize(
    ("own", "others", "cut"),
    [
        (0.04, 0.96, True),
        (0.3, 0.7, True),  # of 10 s, 3 were the trial's to use
        (0.3, 0.05, False),  # it had all that it wanted
        (0.005, 0.995, False),  # it slept, whatever others did
        (0.2, 0.5, False),  # a third was left idle: it waited for something else
        (0.95, 0.05, False),
        (None, None, False),
    ],
)
def test_a_limit_was_cut_short_where_the_trial_wanted_what_others_used(
    own: float | None, others: float | None, *, cut: bool
) -> None:
    assert CpuShare(10.0, own, others, None).cut_short(10.0) is cut


def test_a_scaled_limit_is_cut_short_only_where_less_than_the_limit_was_left() -> None:
    assert not CpuShare(40.0, 0.25, 0.75, None).cut_short(10.0)
    assert CpuShare(40.0, 0.1, 0.9, None).cut_short(10.0)


def _work_until(over: threading.Event) -> None:
    while not over.is_set():
        pass


def test_what_others_do_is_measured() -> None:
    numbers = of_this_machine()
    assert numbers
    meter = LoadMeter(numbers)
    over = threading.Event()
    busy = threading.Thread(target=lambda: _work_until(over))
    busy.start()
    time.sleep(0.3)
    over.set()
    busy.join()
    share = meter.read(own_s=0.0)
    assert share.own == 0.0
    assert share.others is not None
    assert share.others > 0
    assert LoadMeter(()).read(1.0).others is None
