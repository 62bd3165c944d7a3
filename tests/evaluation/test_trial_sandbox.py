"""What is done with a trial's sandbox."""

from __future__ import annotations

import threading

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.evaluation.trial_sandbox import SandboxRemovals


def test_a_removal_holds_up_nobody_and_the_end_waits_for_it() -> None:
    may_end, removed = threading.Event(), threading.Event()
    removals = SandboxRemovals(1)

    def close() -> None:
        may_end.wait(60)
        removed.set()

    removals.submit(close)
    assert not removed.is_set()
    may_end.set()
    removals.finish()
    assert removed.is_set()


def test_no_more_are_removed_at_once_than_trials_run() -> None:
    may_end, began = threading.Event(), threading.Event()
    removals = SandboxRemovals(1)
    removals.submit(lambda: may_end.wait(60))

    def submit() -> None:
        removals.submit(lambda: None)
        began.set()

    second = threading.Thread(target=submit)
    second.start()
    assert not began.wait(0.2)
    may_end.set()
    assert began.wait(60)
    second.join(60)
    removals.finish()


def test_a_removal_that_fails_is_left_to_gc_and_frees_its_place() -> None:
    removals = SandboxRemovals(1)

    def fails() -> None:
        raise SandboxUnavailable("the engine has gone")

    removals.submit(fails)
    removed = threading.Event()
    removals.submit(removed.set)
    removals.finish()
    assert removed.is_set()
