"""A run: every trial that has no result yet, so many at a time, each tried again when the infrastructure failed."""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox import __version__
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.images import Images
from ohsandbox.evaluation.progress import PhaseBegan, RunBegan, TrialBegan, TrialCancelled, TrialEnded, TryFailed
from ohsandbox.evaluation.results import ResultsDirectory, TrialKey, TrialResult
from ohsandbox.evaluation.trial import Trial, TrialOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.progress import RunEvent, Tell
    from ohsandbox.evaluation.task import Task

RUN_NAME = "run.json"


class RunRecord(BaseModel):
    """What a run is made of; written at its start, and compared when it goes on."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    ohsandbox: str = __version__
    agent: str
    attempts: int
    timeout_multiplier: float = 1.0
    tasks: dict[str, str]
    """Id to digest."""


class RunPlan(NamedTuple):
    """What is to be done."""

    tasks: Sequence[Task]
    agent: EvaluatedAgent
    attempts: int = 1
    concurrent: int = 4
    infrastructure_tries: int = 3
    timeout_multiplier: float = 1.0
    fail_fast: bool = False


class Run:
    """Carries a plan out. What is finished in the directory already is not done again."""

    def __init__(self, plan: RunPlan, path: Path, *, tell: Tell | None = None) -> None:
        """Read what the directory holds; it is made if missing.

        Raises:
            UsageError: it holds the results of another plan: other tasks, another agent.
        """
        self.plan = plan
        self.results = ResultsDirectory(path)
        self.cancel = threading.Event()
        """Set by a caller in another thread (a signal, say): trials end soon, and unfinished."""
        self._listener, self._listener_lock = tell, threading.Lock()
        self._images = Images(tell=self._tell)
        self._digests = {task.id: task.digest() for task in plan.tasks}
        self.record = self._recorded()
        self._options = TrialOptions(run_id=self.record.run_id, timeout_multiplier=plan.timeout_multiplier)

    def _recorded(self) -> RunRecord:
        plan = self.plan
        made = RunRecord(
            run_id=uuid.uuid4().hex[:12], agent=plan.agent.name, attempts=plan.attempts,
            timeout_multiplier=plan.timeout_multiplier, tasks=self._digests,
        )  # fmt: skip
        path = self.results.path / RUN_NAME
        try:
            before = RunRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            self.results.write_json(RUN_NAME, made.model_dump_json(indent=2) + "\n")
            return made
        except ValidationError:
            raise UsageError(f"{path} is not the record of a run. Remedy: name another directory.") from None
        for name in ("agent", "attempts", "timeout_multiplier", "tasks"):
            if (was := getattr(before, name)) != (now := getattr(made, name)):
                what = "tasks have changed" if name == "tasks" else f"{name} was {was!r} and is {now!r}"
                raise UsageError(
                    f"{path.parent} holds the results of another run: {what}. Remedy: name another directory."
                )
        return before

    def _tell(self, event: RunEvent) -> None:
        if self._listener is not None:
            with self._listener_lock:
                self._listener(event)

    def keys(self) -> list[TrialKey]:
        """Every trial of the plan: all tasks once, then all again."""
        return [TrialKey(task.id, attempt + 1) for attempt in range(self.plan.attempts) for task in self.plan.tasks]

    def __call__(self) -> dict[TrialKey, TrialResult]:
        """Do what is left, and return the results of all trials; without those that were cancelled."""
        done = self.results.finished()
        self._tell(RunBegan(len(self.keys()), dict(done)))
        tasks = {task.id: task for task in self.plan.tasks}
        left = iter([key for key in self.keys() if key not in done])
        with ThreadPoolExecutor(self.plan.concurrent, thread_name_prefix="trial") as pool:
            running = dict[Future[TrialResult | None], TrialKey]()
            try:
                self._fill(pool, running, left, tasks)
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        key = running.pop(future)
                        if (result := future.result()) is not None:
                            done[key] = result
                            if self.plan.fail_fast and result.outcome != "pass":
                                left = iter(())
                    self._fill(pool, running, left, tasks)
            except BaseException:
                self.cancel.set()
                raise
        return {key: done[key] for key in self.keys() if key in done}

    def _fill(
        self,
        pool: ThreadPoolExecutor,
        running: dict[Future[TrialResult | None], TrialKey],
        left: Iterator[TrialKey],
        tasks: dict[str, Task],
    ) -> None:
        with contextlib.suppress(StopIteration):
            while len(running) < self.plan.concurrent and not self.cancel.is_set():
                key = next(left)
                running[pool.submit(self._trial, tasks[key.task], key)] = key

    def _trial(self, task: Task, key: TrialKey) -> TrialResult | None:
        tries = 0
        while True:
            tries += 1
            directory = self.results.begin(key)
            self._tell(TrialBegan(key, tries))
            result = Trial(
                task, key.attempt, self.plan.agent, self._images, self._options, directory=directory,
                task_digest=self._digests[task.id], cancel=self.cancel,
                tell=lambda phase: self._tell(PhaseBegan(key, phase)),
            ).run()  # fmt: skip
            if self.cancel.is_set():
                self._tell(TrialCancelled(key))
                return None
            if result.outcome != "infrastructure_error" or tries == self.plan.infrastructure_tries:
                break
            self._tell(TryFailed(key, result.fault))
        result = result.model_copy(update={"infrastructure_tries": tries})
        self.results.finish(result)
        self._tell(TrialEnded(result))
        return result
