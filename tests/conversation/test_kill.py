"""The promise of the log, tried: killed at any moment and resumed, a task ends as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KILLS = 200
WORKERS = 2
DOCKER_KILLS = 8


def killed(directory: Path, seed: int, count: int, *options: str) -> subprocess.Popen[str]:
    arguments = [str(directory), str(seed), str(count), *options]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.conversation.killing", *arguments],
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def reported(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_kill_at_any_moment_nothing_is_lost_nor_run_twice(tmp_path: Path) -> None:
    workers = [killed(tmp_path / str(seed), seed, KILLS // WORKERS) for seed in range(WORKERS)]
    reports = [reported(worker) for worker in workers]
    assert [report["faults"] for report in reports] == [[]] * WORKERS
    assert sum(report["kills"] for report in reports) == KILLS
    assert sum(report["cut_off"] for report in reports) > KILLS // 10  # else the kills missed what they are for


@pytest.mark.docker
def test_the_same_in_a_container_that_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OHSANDBOX_HOME", str(tmp_path / "state"))
    report = reported(killed(tmp_path / "runs", 7, DOCKER_KILLS, "docker"))
    assert report["faults"] == []
    assert report["kills"] == DOCKER_KILLS
