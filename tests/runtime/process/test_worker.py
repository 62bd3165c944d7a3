"""Workers that end at an odd moment."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxFileError
from ohsandbox.runtime.process.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[CLIRuntime]:
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        yield runtime


@pytest.fixture
def killed(runtime: CLIRuntime, monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The first idle worker that is taken is killed just then, before it is sent its call."""
    killed: list[Worker] = []
    acquire = runtime._pool.acquire_idle

    def taken(user: Any) -> Worker | None:
        worker = acquire(user)
        if worker is not None and not killed:
            killed.append(worker)
            os.kill(worker.channel.pid, signal.SIGKILL)
            worker.channel.wait(60)
        return worker

    monkeypatch.setattr(runtime._pool, "acquire_idle", taken)
    return killed


def test_a_program_runs_although_its_worker_is_killed_just_before(runtime: CLIRuntime, killed: list[Worker]) -> None:
    for number in (1, 2):
        ended = runtime.run(["sh", "-c", f"echo {number} >>ran; cat ran"])
        assert (ended.exit_code, ended.stdout.split()) == (0, [b"1", b"2"][:number])
    assert killed


def test_a_program_runs_although_its_new_worker_is_killed_before_it_reads_a_line(
    runtime: CLIRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, killed = Worker.send, list[Worker]()

    def late(worker: Worker, exchange: Any) -> None:
        if not killed:
            killed.append(worker)
            os.kill(worker.channel.pid, signal.SIGKILL)
            worker.channel.wait(60)
            with contextlib.suppress(BrokenPipeError):
                while True:  # until the program is gone that was reading the script for it
                    worker.channel.write(b"\n")
        send(worker, exchange)

    monkeypatch.setattr(Worker, "send", late)
    assert runtime.run(["echo", "ran"]).stdout == b"ran\n"
    assert killed[0].calls == 1


def test_a_file_is_copied_or_an_error_of_ours_is_raised_if_the_program_ends_at_once(
    runtime: CLIRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_channel = runtime.open_channel

    def ended(*_: Any, **options: Any) -> Any:
        channel = open_channel(["sh", "-c", "echo odd >&2; exit 3"], **options)
        channel.wait(60)
        return channel

    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(runtime, "open_channel", ended)
    for copy in (runtime.upload, runtime.download):
        with pytest.raises(SandboxFileError, match=r"odd|exit code 3"):
            copy(str(tmp_path / "file"), str(tmp_path / "other"))
