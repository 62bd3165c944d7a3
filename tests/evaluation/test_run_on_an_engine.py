"""Whole runs of the command on an engine: killed, interrupted, many."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation.agents import NopAgent
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.runner import Run, RunPlan
from ohsandbox.runtime.sandboxes import list_sandboxes
from tests.processes import running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

IMAGE = "ohsandbox-base:debian"
TEST = '#!/bin/sh\nif [ "$(cat /tmp/answer)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n'


def write_task(place: Path, *, solution: str = "echo 42 >/tmp/answer", test: str = TEST) -> None:
    files = {
        "task.toml": f'[environment]\ndocker_image = "{IMAGE}"\n[verifier]\nnetwork_mode = "no-network"\n',
        "instruction.md": "Write the number 42 to /tmp/answer.\n",
        "solution/solve.sh": f"#!/bin/sh\n{solution}\n", "tests/test.sh": test,
    }  # fmt: skip
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def start(directory: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ohsandbox", "eval", "tasks", "-o", "out", *arguments]
    return running(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(directory: Path) -> dict[str, dict[str, object]]:
    return {path.parts[-3]: json.loads(path.read_text()) for path in directory.glob("out/trials/*/1/result.json")}


def wait_for_results(directory: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(results(directory)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def sandboxes_of(directory: Path) -> list[str]:
    run_id = json.loads((directory / "out" / "run.json").read_text())["run_id"]
    return [one.name for one in list_sandboxes(labels={"eval": run_id})]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with six tasks that take a moment."""
    for number in range(6):
        write_task(tmp_path / "tasks" / f"task-{number}", solution="sleep 1; echo 42 >/tmp/answer")
    return tmp_path


def test_a_killed_run_goes_on_where_it_was(place: Path) -> None:
    with start(place, "-n", "2") as killed:
        wait_for_results(place, 2, killed)
        killed.kill()
    before = {path: path.stat().st_mtime_ns for path in place.glob("out/trials/*/1/result.json")}
    with start(place, "-n", "2") as ended:
        printed, _ = ended.communicate(timeout=200)
    assert ended.returncode == 0, printed
    assert {name: one["outcome"] for name, one in results(place).items()} == {f"task-{n}": "pass" for n in range(6)}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert sandboxes_of(place) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_sandbox_and_no_half_result(place: Path, number: int, code: int) -> None:
    with start(place, "-n", "3") as going:
        wait_for_results(place, 1, going)
        going.send_signal(number)
        printed, _ = going.communicate(timeout=60)
    assert going.returncode == code, printed
    assert "Traceback" not in printed
    assert 1 <= len(results(place)) < 6
    report = json.loads((place / "out" / "report.json").read_text())
    assert (report["complete"], report["trials_planned"], report["trials_finished"]) == (False, 6, len(results(place)))
    assert f"Partial: {len(results(place))} of 6 trials are finished." in printed
    assert all(one["outcome"] == "pass" for one in results(place).values())
    assert sandboxes_of(place) == []


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def memory_kib() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


@pytest.mark.slow
def test_the_runner_stays_as_small_as_it_was(tmp_path: Path) -> None:
    """Not of 200 trials here, but the second 20 must need nothing that the first 20 did not leave."""
    for number in range(20):
        write_task(tmp_path / "tasks" / f"task-{number}", test="#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n")
    plan = RunPlan(load_tasks(tmp_path / "tasks").tasks, NopAgent(), concurrent=4)
    assert all(one.outcome == "pass" for one in Run(plan, tmp_path / "first")().values())
    files, memory = descriptors(), memory_kib()
    assert all(one.outcome == "pass" for one in Run(plan, tmp_path / "second")().values())
    assert descriptors() <= files
    assert memory_kib() - memory < 8 * 1024
