from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.evaluation import runner
from ohsandbox.evaluation.agents import CommandAgent, NopAgent
from ohsandbox.evaluation.progress import TrialEnded, TryFailed
from ohsandbox.evaluation.results import Fault, TrialKey, TrialResult
from ohsandbox.evaluation.runner import Run, RunPlan, Shard, select_tasks
from ohsandbox.evaluation.task import Step, Task, TaskEnvironment, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.evaluation.progress import RunEvent
    from ohsandbox.evaluation.results import Outcome
    from ohsandbox.evaluation.trial import TrialSpec


@pytest.fixture(autouse=True)
def _no_pauses_and_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRY_PAUSES_S", (0.0,))
    monkeypatch.setattr(runner, "_remove_orphaned_sandboxes", lambda: None)


def tasks(path: Path, *names: str) -> list[Task]:
    step = Step(instruction="Do it.", verifier=Verifier(command="true"))
    return [
        Task(id=name, path=path / name, format="inline", environment=TaskEnvironment(image="i"), steps=(step,))
        for name in names
    ]


class FakeExecutor:
    """Trials that end as `outcome` says, in threads."""

    def __init__(self, outcome: Callable[[TrialKey], Outcome], slots: int = 2, fault: Fault | None = None) -> None:
        self.slots, self._outcome, self._fault = slots, outcome, fault
        self.begun: list[TrialKey] = []
        self.most, self._running, self._lock = 0, 0, threading.Lock()
        self.closed = False
        self._pool = ThreadPoolExecutor(8)

    def check(self) -> None:
        return

    def submit(self, spec: TrialSpec, directory: Path) -> Future[TrialResult]:
        assert list(directory.iterdir()) == []
        (directory / "left").touch()
        with self._lock:
            self.begun.append(spec.key)
            self._running += 1
            self.most = max(self.most, self._running)
        return self._pool.submit(self._work, spec)

    def _work(self, spec: TrialSpec) -> TrialResult:
        outcome = self._outcome(spec.key)
        with self._lock:
            self._running -= 1
        gone = Fault(phase="sandbox", kind="EngineUnavailable", message="gone")
        fault = (self._fault or gone) if "error" in outcome else None
        return TrialResult(
            task=spec.task.id, attempt=spec.attempt, outcome=outcome, fault=fault, agent="nop", task_digest="sha256:0"
        )

    def close(self) -> None:
        self.closed = True
        self._pool.shutdown()


def test_every_task_is_tried_as_often_as_planned_and_never_more_at_once_than_there_are_slots(tmp_path: Path) -> None:
    executor = FakeExecutor(lambda _: "pass", slots=3)
    plan = RunPlan(tasks(tmp_path, *"abcde"), NopAgent(), attempts=2)
    results = Run(plan, tmp_path / "out", executor=executor)()
    assert sorted(results) == sorted(TrialKey(name, attempt) for name in "abcde" for attempt in (1, 2))
    assert [key.attempt for key in executor.begun] == [1] * 5 + [2] * 5
    assert executor.most <= 3
    assert executor.closed


def test_only_what_is_unfinished_runs_again(tmp_path: Path) -> None:
    plan, out = RunPlan(tasks(tmp_path, *"abc"), NopAgent()), tmp_path / "out"
    Run(plan, out, executor=FakeExecutor(lambda key: "pass" if key.task != "b" else "fail"))()
    (out / "trials" / "c" / "1" / "result.json").unlink()  # as after a kill
    again = FakeExecutor(lambda _: "fail")
    results = Run(plan, out, executor=again)()
    assert again.begun == [("c", 1)]
    assert {key.task: one.outcome for key, one in results.items()} == {"a": "pass", "b": "fail", "c": "fail"}


@pytest.mark.parametrize("outcome", ["infrastructure_error", "model_error"])
def test_what_says_nothing_of_the_agent_is_done_again_by_the_next_run(tmp_path: Path, outcome: Outcome) -> None:
    plan = RunPlan(tasks(tmp_path, "a"), NopAgent(), infrastructure_tries=1)
    Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: outcome))()
    results = Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))()
    assert results["a", 1].outcome == "pass"  # type: ignore[index] # a key is a tuple


def test_the_infrastructure_has_tries_of_its_own(tmp_path: Path) -> None:
    failures = iter(["infrastructure_error", "infrastructure_error", "pass"])
    told: list[RunEvent] = []
    executor = FakeExecutor(lambda _: next(failures))  # type: ignore[arg-type]
    results = Run(RunPlan(tasks(tmp_path, "a"), NopAgent()), tmp_path / "out", executor=executor, tell=told.append)()
    assert results[TrialKey("a", 1)].outcome == "pass"
    assert results[TrialKey("a", 1)].infrastructure_tries == 3
    assert [type(event) for event in told if isinstance(event, TryFailed | TrialEnded)] == [TryFailed] * 2 + [
        TrialEnded
    ]


def test_a_trial_that_the_infrastructure_fails_every_time_ends_as_its_error(tmp_path: Path) -> None:
    executor = FakeExecutor(lambda _: "infrastructure_error")
    results = Run(RunPlan(tasks(tmp_path, "a"), NopAgent()), tmp_path / "out", executor=executor)()
    assert results[TrialKey("a", 1)].outcome == "infrastructure_error"
    assert len(executor.begun) == 3


@pytest.mark.parametrize(
    ("phase", "kind", "outcome"),
    [
        ("agent", "SandboxUnavailable", "agent_error"),
        ("second: verifier", "SandboxRefused", "agent_error"),
        ("sandbox", "SandboxUnavailable", "infrastructure_error"),
        ("agent", "EngineUnavailable", "infrastructure_error"),
        ("agent", "SandboxGone", "infrastructure_error"),  # somebody has removed it
    ],
)
def test_a_sandbox_that_ends_under_the_agent_on_every_try_is_the_agents_fault(
    tmp_path: Path, phase: str, kind: str, outcome: Outcome
) -> None:
    executor = FakeExecutor(lambda _: "infrastructure_error", fault=Fault(phase=phase, kind=kind, message="ended"))
    results = Run(RunPlan(tasks(tmp_path, "a"), NopAgent()), tmp_path / "out", executor=executor)()
    assert results[TrialKey("a", 1)].outcome == outcome
    assert results[TrialKey("a", 1)].infrastructure_tries == 3


def test_failed_tasks_are_repeated_and_counted_apart(tmp_path: Path) -> None:
    executor = FakeExecutor(lambda key: "pass" if key.task == "good" or key.attempt == 3 else "fail")
    plan = RunPlan(tasks(tmp_path, "good", "flaky"), NopAgent(), repeat_failed=2)
    results = Run(plan, tmp_path / "out", executor=executor)()
    repeats = {key: one.outcome for key, one in results.items() if one.is_repeat}
    assert repeats == {("flaky", 2): "fail", ("flaky", 3): "pass"}
    again = FakeExecutor(lambda _: "pass")
    assert len(Run(plan, tmp_path / "out", executor=again)()) == 4
    assert again.begun == []


def test_fail_fast_begins_nothing_after_a_failure(tmp_path: Path) -> None:
    executor = FakeExecutor(lambda key: "fail" if key.task == "b" else "pass", slots=1)
    plan = RunPlan(tasks(tmp_path, *"abcdef"), NopAgent(), fail_fast=True)
    assert [key.task for key in Run(plan, tmp_path / "out", executor=executor)()] == ["a", "b"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attempts": 2}, "attempts was 1 and is 2"),
        ({"timeout_multiplier": 2.0}, "timeout_multiplier was 1.0 and is 2.0"),
        ({"tasks": "ab"}, "task 'c' is not among the 2 tasks given"),
        ({"tasks": "abcd"}, "task 'd' is new"),
        ({"shard": Shard(1, 2)}, "shard was None and is 1/2"),
    ],
)
def test_a_directory_belongs_to_one_plan(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    plan = RunPlan(tasks(tmp_path, *"abc"), NopAgent())
    Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))
    other = changed | ({"tasks": tasks(tmp_path, *str(changed["tasks"]))} if "tasks" in changed else {})
    with pytest.raises(UsageError, match="holds the results of another run: ") as caught:
        Run(plan._replace(**other), tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_an_agent_with_other_settings_is_another_agent(tmp_path: Path) -> None:
    plan = RunPlan(tasks(tmp_path, "a"), CommandAgent("agent --fast"))
    Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))
    other = plan._replace(agent=CommandAgent("agent --slow"))
    with pytest.raises(UsageError, match="command was agent --fast and is agent --slow"):
        Run(other, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))


def test_a_changed_task_is_another_task(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "test.sh").write_text("exit 0")
    plan = RunPlan(tasks(tmp_path, "a"), NopAgent())
    Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))
    (tmp_path / "a" / "test.sh").write_text("exit 1")
    with pytest.raises(UsageError, match="task 'a' has changed"):
        Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))


def test_two_runs_of_one_directory_exclude_each_other(tmp_path: Path) -> None:
    plan, inside, go_on = RunPlan(tasks(tmp_path, "a"), NopAgent()), threading.Event(), threading.Event()

    def wait(_: TrialKey) -> Outcome:
        inside.set()
        go_on.wait(60)
        return "pass"

    first = threading.Thread(target=Run(plan, tmp_path / "out", executor=FakeExecutor(wait)))
    first.start()
    inside.wait(60)
    with pytest.raises(UsageError, match="Another process is at work"):
        Run(plan, tmp_path / "out", executor=FakeExecutor(lambda _: "pass"))()
    go_on.set()
    first.join()


def test_without_an_engine_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineUnavailable):
        Run(RunPlan(tasks(tmp_path, "a"), NopAgent()), tmp_path / "out")()
    assert not (tmp_path / "out" / "trials").exists()


def test_an_exception_of_the_listener_ends_the_run_and_its_executor(tmp_path: Path) -> None:
    def tell(event: RunEvent) -> None:
        if isinstance(event, TrialEnded):
            raise KeyboardInterrupt

    executor = FakeExecutor(lambda _: "pass")
    run = Run(RunPlan(tasks(tmp_path, *"abcd"), NopAgent()), tmp_path / "out", executor=executor, tell=tell)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert executor.closed


def test_shards_are_a_partition_of_the_tasks(tmp_path: Path) -> None:
    every = tasks(tmp_path, *"gacbedf")
    parts = [select_tasks(every, shard=Shard(part, 3)) for part in (1, 2, 3)]
    assert [[task.id for task in part] for part in parts] == [["a", "d", "g"], ["b", "e"], ["c", "f"]]


def test_a_pattern_selects_by_id(tmp_path: Path) -> None:
    every = tasks(tmp_path, "sum-1", "sum-2", "max-1")
    assert [task.id for task in select_tasks(every, patterns=["sum-*"])] == ["sum-1", "sum-2"]
    with pytest.raises(UsageError, match=r"No task matches 'min-\*'"):
        select_tasks(every, patterns=["sum-*", "min-*"])
