"""Runs every trial that has no result yet, several at a time; a trial is tried again when the infrastructure failed."""

from __future__ import annotations

import contextlib
import fnmatch
import heapq
import os
import platform
import threading
import time
import uuid
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path  # noqa: TC003 - pydantic reads annotations at run time
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.evaluation.executor import LocalExecutor
from ohsandbox.evaluation.images import Images, engine_facts
from ohsandbox.evaluation.progress import ImageAbsent, RunBegan, TrialBegan, TrialCancelled, TrialEnded, TryFailed
from ohsandbox.evaluation.results import (
    FAILED,
    INCONCLUSIVE,
    RUN_NAME,
    ResultsDirectory,
    RunRecord,
    TrialKey,
    TrialResult,
)
from ohsandbox.evaluation.trial import TrialSpec, opens_network
from ohsandbox.evaluation.trial_sandbox import TrialOptions
from ohsandbox.private_files import open_locked, read_regular
from ohsandbox.runtime.factory import open_inventory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.executor import TrialExecutor
    from ohsandbox.evaluation.progress import RunEvent, Tell
    from ohsandbox.evaluation.results import Fault
    from ohsandbox.evaluation.task import Task

LOCK_NAME = "run.lock"
LOOK_EVERY_S = 0.5
"""Interval at which a waiting run checks for signals and nodes: a Ctrl-C that the kernel gave to another thread wakes
nobody, and nodes of a cluster come and go."""
RETRY_PAUSES_S = (1.0, 5.0, 20.0)
"""Pauses before the second, third and every later try of a trial in which the infrastructure failed: an engine that
restarts needs 5 s, a registry's burst limit longer."""


class Shard(NamedTuple):
    """The part of a plan's tasks that one run does."""

    part: int
    """The number of the part, from 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.part}/{self.of}"


class RunPlan(NamedTuple):
    """The work of a run."""

    tasks: Sequence[Task]
    agent: EvaluatedAgent
    attempts: int = 1
    """The number of trials of each task."""
    concurrent: int = 4
    infrastructure_tries: int = 3
    """How often a trial is tried before it ends as an infrastructure_error."""
    repeat_failed: int = 0
    """Extra trials of each task that failed, to tell a flaky task from a broken one; they count in no rate."""
    timeout_multiplier: float = 1.0
    fail_fast: bool = False
    """Start no further trial after one that did not pass."""
    shard: Shard | None = None
    separate_verifier: bool = False
    """Judge in fresh sandboxes, which get only what the agent has changed."""
    ca_bundle: str | None = None
    """A PEM file that common tools in the sandboxes trust."""
    image_budget_bytes: int | None = None
    """Disk space for images that eval built or pulled; None is 40 GiB."""


def select_tasks(tasks: Sequence[Task], *, patterns: Sequence[str] = (), shard: Shard | None = None) -> list[Task]:
    """Return the tasks whose ids match one of the patterns (`*`, `?`, `[...]`), and of those only the shard's.

    Raises:
        UsageError: a pattern matches no task.
    """
    ids = [task.id for task in tasks]
    for pattern in patterns:
        if not fnmatch.filter(ids, pattern):
            raise UsageError(f"No task matches {pattern!r}. Compare with the ids, as {ids[0] if ids else ''!r}.")
    chosen = sorted(
        (task for task in tasks if not patterns or any(fnmatch.fnmatchcase(task.id, pattern) for pattern in patterns)),
        key=lambda task: task.id,
    )
    return chosen if shard is None else chosen[shard.part - 1 :: shard.of]


class _Attempt(NamedTuple):
    """A trial to be started, in the order of the queue."""

    not_before: float
    order: int
    key: TrialKey
    tries: int = 1


class Run:
    """Carries out a plan. Trials that are finished in the directory are not done again."""

    def __init__(
        self, plan: RunPlan, path: Path, *, tell: Tell | None = None, executor: TrialExecutor | None = None
    ) -> None:
        """Read the results in the directory, which is made if missing. executor None is this machine.

        Raises:
            UsageError: the directory holds the results of another plan (other tasks, another agent), or another
                process is at work on it.
        """
        self.plan = plan
        self.results = ResultsDirectory(path)
        self._listener, self._listener_lock = tell, threading.Lock()
        self._images = Images(tell=self._emit, budget_bytes=plan.image_budget_bytes)
        self._is_local = executor is None
        self._executor = executor or LocalExecutor(plan.concurrent, self._images, self._emit)
        self._tasks = {task.id: task for task in plan.tasks}
        self._digests = {task.id: task.digest() for task in plan.tasks}
        path.mkdir(parents=True, exist_ok=True)
        self.record = self._recorded()
        self._options = TrialOptions(
            run_id=self.record.run_id, timeout_multiplier=plan.timeout_multiplier,
            separate_verifier=plan.separate_verifier, ca_bundle=plan.ca_bundle,
        )  # fmt: skip

    def _recorded(self) -> RunRecord:
        plan = self.plan
        record = RunRecord(
            run_id=uuid.uuid4().hex[:12], agent=plan.agent.name, agent_settings=plan.agent.settings,
            attempts=plan.attempts, timeout_multiplier=plan.timeout_multiplier,
            shard=None if plan.shard is None else str(plan.shard), separate_verifier=plan.separate_verifier,
            tasks=self._digests,
        )  # fmt: skip
        path = self.results.path / RUN_NAME
        try:
            previous = RunRecord.model_validate_json(read_regular(path))
        except FileNotFoundError:
            self.results.write_json(RUN_NAME, record.model_dump_json(indent=2) + "\n")
            return record
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}. Name another directory (-o).") from None
        except ValidationError:
            raise UsageError(f"{path} is not the record of a run. Name another directory.") from None
        compared = "agent", "agent_settings", "attempts", "timeout_multiplier", "shard", "separate_verifier", "tasks"
        for name in compared:
            if (was := getattr(previous, name)) != (value := getattr(record, name)):
                raise UsageError(
                    f"{path.parent} holds the results of another run: {_changed(name, was, value)}. "
                    "Name another directory (-o)."
                )
        return previous

    def _emit(self, event: RunEvent) -> None:
        if self._listener is not None:
            with self._listener_lock:
                self._listener(event)

    def keys(self) -> list[TrialKey]:
        """Return the keys of every trial of the plan except repeats: all tasks once, then all again."""
        return [TrialKey(task.id, attempt + 1) for attempt in range(self.plan.attempts) for task in self.plan.tasks]

    def __call__(self) -> dict[TrialKey, TrialResult]:
        """Run the remaining trials, and return the results of all trials, repeats included.

        A trial that ended without a word on the agent (infrastructure_error, model_error) is done again.

        Raises:
            UsageError: another process is at work on the directory.
            SandboxUnavailable: no engine answers at the start.
        """
        background = ThreadPoolExecutor(1, thread_name_prefix="run")
        with self._alone(), contextlib.closing(self._executor), background:
            results = {
                key: result for key, result in self.results.finished().items() if result.outcome not in INCONCLUSIVE
            }
            self._make_networks(results)
            self._executor.check()
            noted = background.submit(self._note_machine)
            _remove_orphaned_sandboxes()
            self._emit(RunBegan(len(self.keys()), dict(results)))
            self._report_absent_images(results)
            self.plan.agent.begin(self._emit)
            self._do((key for key in self.keys() if key not in results), results)
            self._do((key for key in self._repeats(results) if key not in results), results)
            noted.result()
        return results

    def _make_networks(self, results: Mapping[TrialKey, TrialResult]) -> None:
        """Start to make the networks that the first trials need, so that they need not wait for them."""
        separate = self.plan.separate_verifier
        tasks = [self._tasks[key.task] for key in self.keys() if key not in results]
        needed = [
            task for task in tasks
            if task.environment.compose is None and opens_network(task, self.plan.agent, separate_verifier=separate)
        ]  # fmt: skip
        if self._is_local:
            self._images.networks.begin(min(len(needed), self._executor.slots))

    def _report_absent_images(self, results: Mapping[TrialKey, TrialResult]) -> None:
        """Report trials that cannot begin for want of their image at once; the others are carried out."""
        remaining = [self._tasks[name] for name in {key.task for key in self.keys() if key not in results}]
        environments = [task.environment for task in remaining]
        environments += [
            step.verifier.environment for task in remaining for step in task.steps if step.verifier.environment
        ]
        if self._is_local and environments:
            with contextlib.suppress(OhsandboxError):  # the trials tell it better
                for name, reason in self._images.absent(environments).items():
                    self._emit(ImageAbsent(name, reason))

    def _note_machine(self) -> None:
        """Add this machine to the record where it is not known yet."""
        machine = {
            "python": platform.python_version(),
            "system": platform.platform(),
            "processors": str(os.cpu_count()),
        }
        machine["concurrent trials"] = str(self._executor.slots)
        with contextlib.suppress(OhsandboxError):  # with the sandboxes on other machines, none may be here
            machine |= engine_facts()
        if machine not in self.record.machines:
            self.record = self.record.model_copy(update={"machines": [*self.record.machines, machine]})
            self.results.write_json(RUN_NAME, self.record.model_dump_json(indent=2) + "\n")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = open_locked(self.results.path / LOCK_NAME, create=True)
        if descriptor is None:
            raise UsageError(
                f"Another process is at work on {self.results.path}. Wait for it, or name another directory."
            )
        try:
            yield
        finally:
            os.close(descriptor)

    def _repeats(self, results: dict[TrialKey, TrialResult]) -> list[TrialKey]:
        failed = dict.fromkeys(key.task for key in self.keys() if key in results and results[key].outcome in FAILED)
        first = self.plan.attempts + 1
        return [TrialKey(task, first + number) for number in range(self.plan.repeat_failed) for task in failed]

    def _do(self, keys: Iterable[TrialKey], results: dict[TrialKey, TrialResult]) -> None:
        """Run the trials; a try that is to be repeated waits in the queue and not in a slot."""
        queue = [_Attempt(0.0, order, key) for order, key in enumerate(keys)]
        running: dict[Future[TrialResult], _Attempt] = {}
        try:
            while queue or running:
                while queue and len(running) < self._executor.slots and queue[0].not_before <= time.monotonic():
                    attempt = heapq.heappop(queue)
                    running[self._begin(attempt)] = attempt
                pause = max(0.0, queue[0].not_before - time.monotonic()) if queue else None
                if not running:
                    time.sleep(pause or 0.0)
                    continue
                timeout = LOOK_EVERY_S if pause is None else min(pause, LOOK_EVERY_S)
                timeout = timeout if len(running) < self._executor.slots else LOOK_EVERY_S
                for future in wait(running, timeout, FIRST_COMPLETED).done:
                    attempt = running.pop(future)
                    if (again := self._on_trial_end(attempt, future.result(), results)) is not None:
                        heapq.heappush(queue, again)
                    elif self.plan.fail_fast and results[attempt.key].outcome != "pass":
                        queue.clear()
        except BaseException:
            for attempt in running.values():
                self._emit(TrialCancelled(attempt.key))
            raise

    def _begin(self, attempt: _Attempt) -> Future[TrialResult]:
        self._emit(TrialBegan(attempt.key, attempt.tries))
        task = self._tasks[attempt.key.task]
        spec = TrialSpec(task, self._digests[task.id], attempt.key.attempt, self.plan.agent, self._options)
        return self._executor.submit(spec, self.results.begin(attempt.key))

    def _on_trial_end(
        self, attempt: _Attempt, result: TrialResult, results: dict[TrialKey, TrialResult]
    ) -> _Attempt | None:
        if result.outcome == "infrastructure_error" and attempt.tries < self.plan.infrastructure_tries:
            self._emit(TryFailed(attempt.key, result.fault))
            pause = RETRY_PAUSES_S[min(attempt.tries, len(RETRY_PAUSES_S)) - 1]
            return attempt._replace(not_before=time.monotonic() + pause, tries=attempt.tries + 1)
        if result.outcome == "infrastructure_error" and _was_ended_by_agent(result.fault):
            result = result.model_copy(update={"outcome": "agent_error"})
        is_repeat = attempt.key.attempt > self.plan.attempts
        result = result.model_copy(update={"infrastructure_tries": attempt.tries, "is_repeat": is_repeat})
        self.results.finish(result)
        results[attempt.key] = result
        self._emit(TrialEnded(result))
        return None


def _was_ended_by_agent(fault: Fault | None) -> bool:
    """Whether a sandbox ended under an agent's hands while the engine answered; on every try, that is not an accident.

    Otherwise an agent that wrecks its sandbox, as `rm /bin/sh; kill -9 -1` does, would count in no rate.
    """
    if fault is None or fault.kind not in {"SandboxUnavailable", "SandboxRefused", "SandboxPaused"}:
        return False
    return fault.phase.rpartition(": ")[2] in {"agent", "collect", "verifier"}


def _remove_orphaned_sandboxes() -> None:
    """Remove sandboxes that a killed run left behind: their leases show that their owner is gone."""
    with contextlib.suppress(OhsandboxError), open_inventory() as inventory:
        inventory.collect_garbage(keep_networks=True)


def _changed(name: str, was: Any, new: Any) -> str:
    """Describe, of several settings, the first that differs."""
    if name == "tasks":
        return _changed_tasks(was, new)
    if name == "agent_settings":
        name = next(name_in_both for name_in_both in (*new, *was) if was.get(name_in_both) != new.get(name_in_both))
        was, new = was.get(name), new.get(name)
    return f"{name} was {was} and is {new}"


def _changed_tasks(old_digests: dict[str, str], new_digests: dict[str, str]) -> str:
    """Describe the changed tasks, with one example."""
    if removed := sorted(old_digests.keys() - new_digests.keys()):
        return f"task {removed[0]!r} is not among the {len(new_digests)} tasks given"
    if new := sorted(new_digests.keys() - old_digests.keys()):
        return f"task {new[0]!r} is new"
    changed = sorted(name for name in new_digests if new_digests[name] != old_digests[name])
    return f"task {changed[0]!r} has changed"
