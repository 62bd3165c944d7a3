"""`run` and transfers, called from outside: cancelled, heard while they run, with their streams merged."""
# ruff: noqa: S101, D103, S108 - cases are tests: their names are sentences, their values literal

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import CallCancelledError, UsageError
from ohsandbox.runtime.aio import to_thread
from ohsandbox.testing.conformance.case import already_set, is_running, number_nobody_sleeps, refuses, set_after
from ohsandbox.testing.conformance.scratch import STUBBORN, soon

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime

# --- run, cancelled ---


def a_cancelled_run_keeps_its_partial_output_and_leaves_nothing(runtime: Runtime) -> None:
    number = number_nobody_sleeps()
    runtime.run(["true"])  # what runs it is there: the time below is the command's own
    with soon():
        script = f"echo out; echo err >&2; {STUBBORN.format(number)}"
        result = runtime.run(["/bin/sh", "-c", script], cancel=set_after(0.3))
    assert result[:4] == (None, b"out\n", b"err\n", False)
    assert (result.cancelled, result.cause, result.not_started) == (True, "cancelled", False)
    assert not is_running(runtime, f"sleep {number}")


def a_run_cancelled_before_it_began_runs_nothing(runtime: Runtime) -> None:
    result = runtime.run(["touch", "/tmp/cancelled-before"], cancel=set_after(0))
    while not result.cancelled:  # the timer may be late
        result = runtime.run(["touch", "/tmp/cancelled-before"], cancel=already_set())
    assert (result.exit_code, result.not_started, result.cause) == (None, True, "cancelled")
    runtime.run(["rm", "-f", "/tmp/cancelled-before"])
    assert runtime.run(["touch", "/tmp/cancelled-before"], cancel=already_set()).cancelled
    assert runtime.run(["test", "-e", "/tmp/cancelled-before"]).exit_code == 1


def a_run_is_cancelled_while_its_stdin_is_on_its_way(runtime: Runtime) -> None:
    for size in (60_000, 20_000_000):
        result = runtime.run(["sleep", "60"], stdin=bytes(size), cancel=set_after(0.3))
        assert result.cancelled, size


def a_run_that_never_stops_printing_is_cancelled(runtime: Runtime) -> None:
    with soon():
        assert runtime.run(["yes"], cancel=set_after(0.3), limit_bytes=1000).cancelled


def a_cancel_that_nobody_sets_changes_nothing(runtime: Runtime) -> None:
    result = runtime.run(["/bin/sh", "-c", "sleep 0.2; cat; exit 3"], stdin=b"in", cancel=threading.Event())
    assert result[:3] == (3, b"in", b"")
    assert not result.cancelled
    assert runtime.run(["sleep", "60"], timeout_s=0.2, cancel=threading.Event()).timed_out


def asyncio_cancels_one_of_more_runs_than_it_has_threads(runtime: Runtime) -> None:
    async def use() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        tasks = [asyncio.ensure_future(to_thread(runtime.run, ["sleep", "60"])) for _ in range(3)]
        await asyncio.sleep(0.5)
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled()

    asyncio.run(use())


def asyncio_cancels_a_run(runtime: Runtime) -> None:
    number = number_nobody_sleeps()

    async def use() -> None:
        task = asyncio.ensure_future(to_thread(runtime.run, ["sleep", number]))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled()
        assert (await to_thread(runtime.run, ["echo", "ok"])).stdout == b"ok\n"

    asyncio.run(use())
    assert not is_running(runtime, f"sleep {number}")


# --- run, heard ---


def what_a_run_prints_is_heard_while_it_runs(runtime: Runtime) -> None:
    release = threading.Event()
    heard: list[tuple[str, bytes]] = []

    def hear(stream: str, data: bytes) -> None:
        heard.append((stream, data))
        if b"first" in data:
            release.set()

    script = "echo first; sleep 60"
    assert runtime.run(["/bin/sh", "-c", script], on_output=hear, cancel=release).cancelled
    assert heard == [("stdout", b"first\n")]


def what_is_heard_of_a_run_is_exactly_what_it_prints(runtime: Runtime) -> None:
    heard: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def hear(stream: str, data: bytes) -> None:
        heard[stream] += data

    for script in ("printf abcde", "printf 01; printf 45 >&2; exit 126", "seq 200000", "printf 'ohs-\\0:\\n'", ":"):
        heard.update(stdout=b"", stderr=b"")
        result = runtime.run(["/bin/sh", "-c", script], on_output=hear)
        assert (heard["stdout"], heard["stderr"]) == (result.stdout, result.stderr), script
    heard.update(stdout=b"", stderr=b"")
    result = runtime.run(["no-such-program"], on_output=hear)
    assert (heard["stdout"], heard["stderr"]) == (b"", result.stderr)
    assert result.not_started


def what_a_run_prints_past_its_limit_is_heard_all_the_same(runtime: Runtime) -> None:
    sizes: list[int] = []
    result = runtime.run(
        ["head", "-c", "3000000", "/dev/zero"], limit_bytes=10, on_output=lambda _, data: sizes.append(len(data))
    )
    assert (sum(sizes), result.stdout, result.truncated) == (3_000_000, bytes(10), True)


def a_run_waits_for_who_hears_it(runtime: Runtime) -> None:
    """It writes 64 MiB while nobody reads the first of them: a program that did not wait would be through."""
    first = threading.Event()

    def hear(_stream: str, _data: bytes) -> None:
        if not first.is_set():
            first.set()
            time.sleep(0.5)
            assert runtime.run(["test", "-e", "/tmp/run-is-through"]).exit_code == 1

    script = "rm -f /tmp/run-is-through; head -c 67108864 /dev/zero; : >/tmp/run-is-through"
    assert runtime.run(["/bin/sh", "-c", script], on_output=hear, limit_bytes=1).exit_code == 0


def an_error_of_who_hears_a_run_ends_it_and_is_raised(runtime: Runtime) -> None:
    number = number_nobody_sleeps()

    def fail(stream: str, data: bytes) -> None:
        raise ZeroDivisionError(stream, data)

    error = refuses(partial(_sh, runtime, f"echo x; sleep {number}", on_output=fail), ZeroDivisionError)
    assert error.args == ("stdout", b"x\n")
    assert not is_running(runtime, f"sleep {number}")


# --- run, with its streams merged ---


def merged_streams_keep_the_order_of_writing(runtime: Runtime) -> None:
    script = "i=0; while [ $i -lt 50 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done; exit 3"
    result = _sh(runtime, script, merge_streams=True)
    assert (result.exit_code, result.stderr) == (3, b"")
    assert result.stdout.split() == [word for i in range(50) for word in (b"o%d" % i, b"e%d" % i)]


def a_program_that_is_missing_is_told_in_the_merged_stream(runtime: Runtime) -> None:
    result = runtime.run(["no-such-program"], merge_streams=True)
    assert (result.exit_code, result.not_started, result.stderr) == (127, True, b"")
    assert b"no-such-program" in result.stdout
    assert b"ohs" not in result.stdout


def options_that_cannot_be_meant_are_refused(runtime: Runtime) -> None:
    wrong: list[dict[str, Any]] = [
        {"user": ""}, {"user": -1}, {"user": True}, {"user": "a\0b"}, {"workdir": ""}, {"workdir": "a\0b"},
        {"env": {"A": 1}}, {"env": {"A": None}}, {"env": {"": "x"}}, {"env": {"A=B": "x"}}, {"env": {"A": "\0"}},
        {"on_output": "print"}, {"cancel": True}, {"timeout_s": True}, {"timeout_s": "5"},
    ]  # fmt: skip
    for options in wrong:
        for call in (partial(runtime.run, ["true"]), partial(runtime.execute, "true")):
            error = refuses(partial(call, **options), UsageError, ValueError)
            assert len(str(error).splitlines()) == 1, error


def _sh(runtime: Runtime, script: str, **options: Any) -> Any:
    return runtime.run(["/bin/sh", "-c", script], **options)


# --- transfers, cancelled ---


def transfers_are_cancelled(runtime: Runtime) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "source"), Path(name, "target")
        source.mkdir()
        for number in range(4):
            with (source / str(number)).open("wb") as file:
                file.truncate(400_000_000)
        upload = partial(runtime.upload, source, "/tmp/cancelled-upload")
        with soon():
            refuses(lambda: upload(cancel=set_after(0.3)), CallCancelledError)
            refuses(lambda: upload(cancel=already_set()), CallCancelledError)
            runtime.run(["rm", "-rf", "/tmp/cancelled-upload"])
            runtime.run(["mkdir", "/tmp/cancelled-download"])
            script = (
                "for i in 1 2 3 4; do dd if=/dev/zero of=/tmp/cancelled-download/$i bs=1 count=0 seek=400000000; done"
            )
            assert _sh(runtime, script).exit_code == 0
            refuses(
                lambda: runtime.download("/tmp/cancelled-download", target, cancel=set_after(0.3)),
                CallCancelledError,
            )
        runtime.run(["rm", "-rf", "/tmp/cancelled-download"])
