"""The environment for Harbor: its own agents solve, or do not solve, tasks of each kind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.slow("needs an environment of its own, two minutes of downloads and processor time"),
]

ROOT = Path(__file__).parents[2]
HARBOR = ROOT / ".cache" / "harbor" / "bin" / "harbor"
COMMAND = next(
    line for line in (ROOT / "docs" / "integrations.md").read_text().splitlines() if line.startswith("harbor ")
)
"""What the document has a reader type."""
SOLUTION = """#!/bin/bash
set -o pipefail
python3 -c 'print(sum(map(int, open("numbers.txt").read().split())))' >sum.txt
"""
TEST = """#!/bin/bash
if [ "$(cat sum.txt)" = 42 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
ls /sys/class/net >/logs/verifier/net.txt
cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max >/logs/verifier/memory.txt
id -un >/logs/verifier/user.txt
"""
LIMITS = '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 256\n'
KINDS: dict[str, dict[str, str]] = {
    "image": {"task.toml": LIMITS + 'docker_image = "ohsandbox-base:nonroot"\n'},
    "dockerfile": {
        "task.toml": LIMITS,
        "environment/Dockerfile": "FROM ohsandbox-base:debian\nCOPY numbers.txt .\n",
    },
    "users": {
        "task.toml": LIMITS + 'workdir = "/srv"\n[agent]\nuser = "agent"\n[verifier]\nuser = "root"\n',
        "environment/Dockerfile": (
            "FROM ohsandbox-base:nonroot\nUSER root\nCOPY numbers.txt /srv/\nRUN chmod 777 /srv\n"
        ),
    },
}


@pytest.fixture(scope="module", autouse=True)
def _harbor() -> None:
    """Harbor needs Python 3.12, so it has a virtual environment of its own; `make test-all` has prepared it."""
    if not HARBOR.exists():
        subprocess.run([ROOT / ".ci" / "engine", "harbor"], check=False, capture_output=True)
    if not HARBOR.exists():
        pytest.skip("Harbor is not in .cache/harbor: there is no Python >= 3.12, or it could not be installed")


def task(directory: Path, kind: str) -> None:
    """Write a task of that kind: to add the numbers of a file."""
    files = {
        "instruction.md": "Write the sum of the numbers in numbers.txt to sum.txt.\n",
        "environment/numbers.txt": "40 2\n", "solution/solve.sh": SOLUTION, "tests/test.sh": TEST,
    }  # fmt: skip
    for name, text in (files | KINDS[kind]).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def harbor(directory: Path, agent: str) -> subprocess.CompletedProcess[str]:
    """The command of the document in directory; litellm, which Harbor imports, shall not ask for prices."""
    return subprocess.run(
        [HARBOR, *COMMAND.replace("oracle", agent).split()[1:], "--quiet"],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "200"},
        capture_output=True, text=True, check=False, cwd=directory,
    )  # fmt: skip


def trial(directory: Path, kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The result of the trial of that task, and what its verifier wrote."""
    [path] = (directory / "jobs").glob(f"*/{kind}__*/result.json")
    written = {found.name: found.read_text() for found in (path.parent / "verifier").iterdir()}
    return json.loads(path.read_text()), written


class Job(NamedTuple):
    """A run of Harbor with a task of each kind."""

    directory: Path
    reward: int
    """What its agent is to have for each task."""


@pytest.fixture(scope="module", params=[("oracle", 1), ("nop", 0)], ids=["oracle", "nop"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One run of each agent: Harbor takes 4 s of processor time to start."""
    agent, reward = request.param
    directory = tmp_path_factory.mktemp(agent)
    for kind in KINDS:
        task(directory / "my-task" / kind, kind)
    ended = harbor(directory, agent)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Job(directory, reward)


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_has_1_and_an_agent_that_does_nothing_0(kind: str, job: Job) -> None:
    result, written = trial(job.directory, kind)
    assert result["exception_info"] is None, result["exception_info"]
    assert result["verifier_result"]["rewards"] == {"reward": job.reward}
    assert written["net.txt"].split() == ["lo"]
    assert written["memory.txt"].split()[0] == str(256 * 1024**2)
    assert written["user.txt"].strip() == ("agent" if kind == "image" else "root")


def test_a_task_of_several_containers_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "my-task"
    task(place, "dockerfile")
    (place / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    ended = harbor(tmp_path, "oracle")
    assert "needs Docker Compose, and a sandbox is one container" in ended.stdout + ended.stderr + "".join(
        found.read_text() for found in (tmp_path / "jobs").rglob("exception.txt")
    )
