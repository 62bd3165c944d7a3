"""An engine that restarts in the middle of a run: a second one of our own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.evaluation import runner
from ohsandbox.evaluation.agents.base import AgentReport, Assignment, EvaluatedAgent
from ohsandbox.evaluation.progress import TrialEnded, TryFailed
from ohsandbox.evaluation.results import Fault
from ohsandbox.evaluation.runner import Run, RunPlan
from ohsandbox.evaluation.task import Step, Task, TaskEnvironment, Verifier
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.sandboxes import list_sandboxes
from tests.runtime.docker import test_faults
from tests.runtime.docker.test_faults import PrivateEngine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.evaluation.progress import RunEvent
    from ohsandbox.runtime import Runtime

pytestmark = [
    *test_faults.pytestmark,
    pytest.mark.slow(
        "starts and kills an engine of its own; tests/evaluation/test_runner.py has a sandbox that is lost"
    ),
]
_collect_here = test_faults._collect_here
IMAGE = "ohsandbox-base:busybox"


@pytest.fixture
def private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateEngine]:
    found = PrivateEngine(tmp_path_factory.mktemp("dockerd"))
    found.start()
    try:
        with contextlib.closing(connect()) as shared, contextlib.closing(connect({"DOCKER_HOST": found.host})) as own:
            own.api.load_image(b"".join(shared.api.get_image(IMAGE)))
        monkeypatch.setenv("DOCKER_HOST", found.host)
        yield found
    finally:
        found.stop()


class WorkingAgent(EvaluatedAgent):
    """Solves the task `first` at once; its program in any other runs until the engine ends it, the first time."""

    name = "working"

    def __init__(self) -> None:
        super().__init__()
        self.at_work = threading.Semaphore(0)
        self.engine_restarted = threading.Event()

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        if assignment.task.id != "first" and not self.engine_restarted.is_set():
            runtime.run(["/bin/sh", "-c", "echo begun; exec sleep 1000"], on_output=lambda *_: self.at_work.release())
        runtime.run(["/bin/sh", "-c", "echo 42 >/answer"], user="root")
        return AgentReport()


def test_an_engine_that_restarts_in_mid_run_fails_no_task_and_loses_no_result(
    private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY_PAUSES_S", (0.0,))
    names = "first", "second", "third", "fourth"
    step = Step(instruction="Write 42.", verifier=Verifier(command='[ "$(cat /answer)" = 42 ]', verdict="exit code"))
    tasks = [
        Task(
            id=name, path=tmp_path / name, format="inline", steps=(step,),
            environment=TaskEnvironment(image=IMAGE),
        )
        for name in names
    ]  # fmt: skip
    agent, failed, first_ended = WorkingAgent(), dict[str, Fault | None](), threading.Event()
    result = tmp_path / "out" / "trials" / "first" / "1" / "result.json"
    before = list[bytes]()

    def hear(event: RunEvent) -> None:
        if isinstance(event, TrialEnded):
            first_ended.set()
        elif isinstance(event, TryFailed):
            failed[event.key.task] = event.fault

    def restart() -> None:
        first_ended.wait()
        for _ in range(2):
            agent.at_work.acquire()
        before.append(result.read_bytes())
        private.stop()
        agent.engine_restarted.set()
        private.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    results = Run(RunPlan(tasks, agent, concurrent=2), tmp_path / "out", tell=hear)()
    restarting.join()
    assert {key.task: one.outcome for key, one in results.items()} == dict.fromkeys(names, "pass")
    assert {key.task: one.infrastructure_tries for key, one in results.items()} == {
        "first": 1, "second": 2, "third": 2, "fourth": 1,
    }  # fmt: skip
    assert {name: fault and fault.phase for name, fault in failed.items()} == {"second": "agent", "third": "agent"}
    assert before == [result.read_bytes()]
    assert list_sandboxes() == []
