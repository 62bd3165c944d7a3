"""Waiting for a command, with a shell that is told what to be."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.shell import wait
from ohsandbox.runtime.shell.output import Capture
from ohsandbox.runtime.shell.wait import CommandWait, WaitOptions, WaitOutcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Told:
    """The shell and the call that a `CommandWait` looks at."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.capture = Capture()
        self.alive = self.began = True
        self.finished = self.traps_exit = False
        self.recoveries = self.reaped = 0
        self.command, self.text = "true", ""

    def recover(self) -> None:
        self.recoveries += 1

    def reap(self) -> None:
        self.reaped += 1
        self.alive = False

    def becomes(self, change: Callable[[], object], *, after_s: float) -> None:
        def make() -> None:
            with self.changed:
                change()
                self.changed.notify_all()

        threading.Timer(after_s, make).start()

    def finish(self) -> None:
        self.finished = True

    def watched(self, wait: WaitOptions, verdict: str = "busy", **options: Any) -> WaitOutcome:
        return CommandWait(cast("Any", self), cast("Any", self), lambda: verdict, wait, **options).outcome()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    for name in ("FIRST_PROBE_S", "SECOND_PROBE_S", "PROBE_PERIOD_S"):
        monkeypatch.setattr(wait, name, 0.02)
    return Told()


def test_a_shell_that_runs_on_behind_its_command_is_lost_without_being_asked(told: Told) -> None:
    assert told.watched(WaitOptions(timeout_s=5), "spins") is WaitOutcome.LOST
    assert told.recoveries == 0


def test_a_shell_that_may_be_at_work_on_its_exit_trap_is_not_lost(told: Told) -> None:
    told.traps_exit = True
    assert told.watched(WaitOptions(timeout_s=1), "spins") is WaitOutcome.TIMEOUT


@pytest.mark.parametrize("verdict", ["spins", "busy"])
def test_a_shell_that_still_reads_a_long_command_is_not_lost(
    told: Told, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    monkeypatch.setattr(wait, "BEGIN_S", 0.05)
    told.began, told.command = False, "x" * (5 * 1024 * 1024)
    assert told.watched(WaitOptions(timeout_s=0.5), verdict) is WaitOutcome.TIMEOUT
    monkeypatch.setattr(wait, "READ_CHARS_PER_S", 100 * 1024 * 1024)
    assert told.watched(WaitOptions(timeout_s=5), verdict) is WaitOutcome.LOST


def test_a_finished_command_is_finished_at_once(told: Told) -> None:
    told.finish()
    assert told.watched(WaitOptions()) is WaitOutcome.FINISHED


def test_the_end_of_a_command_wakes_the_watch(told: Told) -> None:
    told.becomes(told.finish, after_s=0.1)
    assert told.watched(WaitOptions()) is WaitOutcome.FINISHED


def test_a_command_that_finished_in_a_shell_that_died_is_finished(told: Told) -> None:
    told.finish()
    told.alive = False
    assert told.watched(WaitOptions()) is WaitOutcome.FINISHED


def test_a_dead_shell_was_left(told: Told) -> None:
    told.alive = False
    assert told.watched(WaitOptions()) is WaitOutcome.LEFT


def test_a_shell_whose_process_is_gone_is_reaped(told: Told) -> None:
    assert told.watched(WaitOptions(), "gone") is WaitOutcome.LEFT
    assert told.reaped == 1


def test_time_runs_out(told: Told) -> None:
    began = time.monotonic()
    assert told.watched(WaitOptions(timeout_s=0.1)) is WaitOutcome.TIMEOUT
    assert 0.1 <= time.monotonic() - began < 10


def test_silence_is_told_and_output_restarts_it(told: Told) -> None:
    told.becomes(lambda: told.capture.feed(b"x"), after_s=0.15)
    began = time.monotonic()
    assert told.watched(WaitOptions(idle_timeout_s=2.0)) is WaitOutcome.IDLE
    assert time.monotonic() - began >= 2.1


def test_the_hard_limit_comes_before_the_idle_one(told: Told) -> None:
    assert told.watched(WaitOptions(timeout_s=0.05, idle_timeout_s=0.05)) is WaitOutcome.TIMEOUT


def test_a_caller_that_yields_is_told_so_and_a_hard_limit_comes_first(told: Told) -> None:
    began = time.monotonic()
    assert told.watched(WaitOptions(yield_s=0.2)) is WaitOutcome.YIELDED
    assert time.monotonic() - began >= 0.2
    assert told.watched(WaitOptions(timeout_s=0.05, yield_s=0.05)) is WaitOutcome.TIMEOUT


def test_a_cancel_ends_the_wait_and_what_finished_before_it_is_finished(told: Told) -> None:
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    assert told.watched(WaitOptions(cancel=cancel)) is WaitOutcome.CANCELLED
    told.finish()
    assert told.watched(WaitOptions(cancel=cancel)) is WaitOutcome.FINISHED


def test_output_that_matches_returns_at_once(told: Told) -> None:
    told.becomes(lambda: told.capture.feed(b"port \x1b[1m80\x1b[0m"), after_s=0.05)
    assert told.watched(WaitOptions(5, expect=r"port \d+$")) is WaitOutcome.EXPECTED


def test_output_that_came_before_the_wait_matches_too(told: Told) -> None:
    told.capture.feed(b"ready")
    assert told.watched(WaitOptions(5, expect="ready")) is WaitOutcome.EXPECTED


def test_a_pattern_that_would_never_end_is_given_up_and_told(told: Told) -> None:
    told.capture.feed(b"x" * wait.EXPECT_BYTES)
    look = CommandWait(cast("Any", told), cast("Any", told), lambda: "busy", WaitOptions(3, expect="(x+x+)+y"))
    began = time.monotonic()
    assert look.outcome() is WaitOutcome.TIMEOUT
    assert time.monotonic() - began < 10
    assert "given up" in look.notice


def test_a_match_is_found_in_output_that_came_during_the_pause_between_two_looks(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "EXPECT_PAUSE", 1000)
    told.becomes(lambda: told.capture.feed(b"a" * 60_000), after_s=0.05)
    told.becomes(lambda: told.capture.feed(b"ready"), after_s=0.1)
    assert told.watched(WaitOptions(60, expect="ready$")) is WaitOutcome.EXPECTED


@pytest.mark.parametrize("pattern", ["(", "a" * (wait.EXPECT_CHARS + 1), "(?P<"])
def test_what_is_no_pattern_or_too_long_a_one_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="expect"):
        wait.expectation(pattern)


def test_a_reader_is_reported_after_two_looks(told: Told) -> None:
    assert told.watched(WaitOptions(5), "input") is WaitOutcome.INPUT


def test_output_between_two_looks_withdraws_the_verdict(told: Told) -> None:
    looks = iter(["input", "busy", "input", "input"])

    def probe() -> str:
        told.capture.feed(b"x")
        return next(looks, "input")

    found = CommandWait(cast("Any", told), cast("Any", told), probe, WaitOptions(0.3)).outcome()
    assert found is WaitOutcome.TIMEOUT


def test_a_reader_may_be_ignored(told: Told) -> None:
    assert told.watched(WaitOptions(0.2), "input", ignore_input=True) is WaitOutcome.TIMEOUT


def test_a_shell_that_reads_the_terminal_before_the_command_began_has_lost_it(told: Told) -> None:
    told.began = False
    assert told.watched(WaitOptions(5), "input") is WaitOutcome.LOST


def test_an_idle_shell_is_asked_and_asked_again_and_then_given_up(told: Told) -> None:
    assert told.watched(WaitOptions(5), "idle") is WaitOutcome.LOST
    assert told.recoveries > 1


def test_an_idle_shell_that_answers_is_finished(told: Told) -> None:
    told.recover = told.finish  # type: ignore[method-assign]
    assert told.watched(WaitOptions(5), "idle") is WaitOutcome.FINISHED


@pytest.mark.slow
def test_what_ended_while_this_process_was_stopped_has_not_run_out_of_time(tmp_path: Path) -> None:
    lines = (
        "from ohsandbox import CLIRuntime",
        f"with CLIRuntime({str(tmp_path)!r}) as runtime:",
        "    runtime.execute('true')",
        "    print('begins', flush=True)",
        "    seen = runtime.execute('sleep 0.5; echo done', timeout_s=2)",
        "    print(repr(seen.output), seen.timed_out)",
    )
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        assert process.stdout.readline() == "begins\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == "'done\\n' False\n"
