"""One attempt at one task: a fresh sandbox, the agent's work, the verdict, and a record of it all."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from ohsandbox import DockerRuntime, SandboxLimits
from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.evaluation.agents.base import Assignment
from ohsandbox.evaluation.masking import mask_tree
from ohsandbox.evaluation.results import Fault, Phase, StepResult, TrialResult
from ohsandbox.evaluation.sandbox_files import fetch, put
from ohsandbox.evaluation.verifier import NoVerdict, Score, verify

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.evaluation.agents import AgentReport, EvaluatedAgent
    from ohsandbox.evaluation.images import Images
    from ohsandbox.evaluation.results import Outcome
    from ohsandbox.evaluation.task import Network, Step, Task, TaskEnvironment

LABEL = "eval"
FIXED_ENV = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "0"}
"""The same for every trial, so that its verdict does not depend on the machine; a task's own variables win."""
_MAKE_LOGS = (
    "mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs/agent /logs/verifier /logs/artifacts"
)
PASSING_REWARD = 1.0


class TrialOptions(BaseModel):
    """What holds for all trials of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    timeout_multiplier: float = 1.0
    ca_bundle: str | None = None
    oci_runtime: str = ""


class _StepEnd(NamedTuple):
    report: AgentReport
    verdict: Score | None
    fault: Fault | None
    """The verifier's."""


class Trial:
    """One attempt; `run` makes its result, and never raises but for what ends the whole run."""

    def __init__(
        self,
        task: Task,
        attempt: int,
        agent: EvaluatedAgent,
        images: Images,
        options: TrialOptions,
        *,
        directory: Path,
        task_digest: str,
        cancel: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        """Make a trial that has not begun; tell is called with the name of each phase that begins."""
        self.task, self.attempt, self.agent = task, attempt, agent
        self._tell = tell
        self._images, self._options, self._directory, self._cancel = images, options, directory, cancel
        self._phases: list[Phase] = []
        self._phase = "start"
        self._notes: list[str] = list(task.notes)
        self._result = TrialResult(
            task=task.id, attempt=attempt, outcome="infrastructure_error", agent=agent.name, task_digest=task_digest
        )

    def run(self) -> TrialResult:
        """Do it all. What the engine, the image or this machine fails at is an infrastructure_error."""
        began = time.monotonic()
        update: dict[str, Any]
        try:
            update = self._run()
        except UsageError as error:
            update = {"outcome": "invalid", "fault": self._fault(error)}
        except (OhsandboxError, OSError) as error:
            update = {"outcome": "infrastructure_error", "fault": self._fault(error)}
        ended = self._result.model_copy(
            update=update
            | {
                "seconds": time.monotonic() - began,
                "phases": self._phases,
                "notes": self._notes,
                "load_average": os.getloadavg()[0],
            }
        )
        return self._without_secrets(ended)

    def _without_secrets(self, result: TrialResult) -> TrialResult:
        masker = self.agent.secrets.masker
        mask_tree(self._directory, masker)
        return TrialResult.model_validate(masker.mask_json(result.model_dump(mode="json"))) if masker else result

    def _run(self) -> dict[str, Any]:
        with self._timed("image"):
            image = self._images.get(self.task.environment)
        self._result = self._result.model_copy(update={"image": image.name, "image_digest": image.digest})
        first = self.task.steps[0]
        with contextlib.ExitStack() as stack:
            with self._timed("sandbox"):
                runtime = self._sandbox(self.task.environment, self._network(first))
                stack.enter_context(runtime)
                self._prepare(runtime)
            ends: list[tuple[Step, _StepEnd]] = []
            for step in self.task.steps:
                ends.append((step, self._step(runtime, step)))
                if not _goes_on(step, ends[-1][1]):
                    break
            with self._timed("close"):
                runtime.close()
        return self._judged(ends)

    def _sandbox(self, environment: TaskEnvironment, network: Network) -> DockerRuntime:
        image = self._images.get(environment)
        limits: dict[str, Any] = {
            "cpus": environment.cpus, "memory_bytes": environment.memory_bytes, "disk_bytes": environment.disk_bytes,
        }  # fmt: skip
        return DockerRuntime(
            image.name,
            env={**FIXED_ENV, **environment.env},
            workdir=environment.workdir or image.workdir,
            network=network,
            limits=SandboxLimits(**{name: value for name, value in limits.items() if value is not None}),
            labels={LABEL: self._options.run_id, f"{LABEL}.task": self.task.id, f"{LABEL}.attempt": str(self.attempt)},
            ca_bundle=self._options.ca_bundle,
            runtime=self._options.oci_runtime,
        )

    def _prepare(self, runtime: DockerRuntime) -> None:
        made = runtime.run(["/bin/sh", "-c", _MAKE_LOGS], user="root", workdir="/")
        if made.exit_code != 0:
            raise UsageError(f"/logs cannot be made in the sandbox: {made.stderr.decode(errors='replace').strip()}")
        for files in self.task.environment.files:
            put(runtime, files, user=None)
        if (check := self.task.environment.healthcheck) is not None:
            _await_health(runtime, check)

    def _step(self, runtime: DockerRuntime, step: Step) -> _StepEnd:
        directory = self._directory / "steps" / step.name if step.name else self._directory
        (directory / "agent").mkdir(parents=True, exist_ok=True)
        with self._timed("setup", step):
            for files in step.files:
                put(runtime, files, user=step.agent.user)
            if step.setup is not None:
                self._setup(runtime, step, step.setup)
            if step.healthcheck is not None:
                _await_health(runtime, step.healthcheck)
        with self._timed("agent", step):
            report = self.agent.work(
                runtime,
                Assignment(
                    self.task, step, self.attempt, directory / "agent", self._scaled(step.agent.timeout_s), self._cancel
                ),
            )
        self._notes += report.notes
        with self._timed("collect", step):
            runtime.end_processes()  # nothing of the agent runs while it is judged
            self._notes += fetch(runtime, "/logs/agent", directory / "agent" / "logs")
            self._collect(runtime, step, directory)
        with self._timed("verifier", step):
            try:
                verdict = self._verify(runtime, step, directory / "verifier")
            except (NoVerdict, TimeoutError) as error:
                return _StepEnd(report, None, self._fault(error))
        return _StepEnd(report, verdict, None)

    def _setup(self, runtime: DockerRuntime, step: Step, command: str) -> None:
        ended = runtime.run(["/bin/sh", "-c", command], user=step.agent.user, cancel=self._cancel)
        if ended.exit_code != 0:
            printed = (ended.stdout + ended.stderr).decode(errors="replace").strip()[-500:]
            raise UsageError(f"The set-up of step {step.name!r} ended with exit code {ended.exit_code}: {printed}")

    def _collect(self, runtime: DockerRuntime, step: Step, directory: Path) -> None:
        for one in step.verifier.collect:
            ended = runtime.run(["/bin/sh", "-c", one.command], user=one.user, timeout_s=self._scaled(one.timeout_s))
            if ended.exit_code != 0:
                self._notes.append(f"collect command ended with exit code {ended.exit_code}: {one.command[:80]}")
        for artifact in step.artifacts:
            target = artifact.destination or artifact.source.lstrip("/")
            self._notes += fetch(runtime, artifact.source, directory / "artifacts" / target)
        self._notes += fetch(runtime, "/logs/artifacts", directory / "artifacts")

    def _verify(self, runtime: DockerRuntime, step: Step, directory: Path) -> Score:
        verifier = step.verifier
        timeout_s = self._scaled(verifier.timeout_s) or verifier.timeout_s
        if verifier.environment is None:
            if verifier.network != self._network(step):
                runtime.set_network(verifier.network)
            return verify(runtime, verifier, directory, timeout_s=timeout_s, cancel=self._cancel)
        with self._sandbox(verifier.environment, verifier.network) as separate:
            self._prepare(separate)
            for artifact in step.artifacts:
                target = artifact.destination or artifact.source.lstrip("/")
                here = directory.parent / "artifacts" / target
                if here.exists():
                    separate.upload(here, posixpath.join("/", artifact.source), user="root")
            return verify(separate, verifier, directory, timeout_s=timeout_s, cancel=self._cancel)

    def _judged(self, ends: list[tuple[Step, _StepEnd]]) -> dict[str, Any]:
        """The trial's outcome by those of its steps."""
        rewards = [end.verdict.reward if end.verdict else 0.0 for _, end in ends]
        asked = len(self.task.steps)
        reward = rewards[-1] if self.task.reward_strategy == "final" else sum(rewards) / asked
        verdicts = [end.verdict for _, end in ends if end.verdict is not None]
        reports = [end.report for _, end in ends]
        usage: dict[str, int] = {}
        for report in reports:
            usage |= {name: usage.get(name, 0) + count for name, count in report.usage.items()}
        costs = [report.cost_usd for report in reports if report.cost_usd is not None]
        steps = [StepResult(name=step.name, rewards=end.verdict.rewards if end.verdict else {}) for step, end in ends]
        outcome, fault = _outcome(reward if len(ends) == asked else 0.0, ends)
        return {
            "outcome": outcome, "fault": fault, "reward": reward if verdicts else None,
            "rewards": verdicts[-1].rewards if verdicts else {},
            "steps": steps if asked > 1 else [],
            "usage": usage, "cost_usd": sum(costs) if costs else None,
            "model": next((report.model for report in reports if report.model), None),
        }  # fmt: skip

    def _network(self, step: Step) -> Network:
        """While the agent works."""
        return self.agent.network or step.agent.network

    def _scaled(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else timeout_s * self._options.timeout_multiplier

    def _fault(self, error: BaseException) -> Fault:
        return Fault(phase=self._phase, kind=type(error).__name__, message=str(error))

    @contextlib.contextmanager
    def _timed(self, name: str, step: Step | None = None) -> Iterator[None]:
        self._phase = name if step is None or not step.name else f"{step.name}: {name}"
        self._tell(self._phase)
        at, began, phase = datetime.now(UTC), time.monotonic(), self._phase
        try:
            yield
        finally:
            self._phases.append(Phase(name=phase, started_at=at, seconds=time.monotonic() - began))


def _goes_on(step: Step, end: _StepEnd) -> bool:
    if end.verdict is None:
        return False
    return all(end.verdict.rewards.get(name, 0.0) >= least for name, least in step.min_reward.items())


def _outcome(reward: float, ends: list[tuple[Step, _StepEnd]]) -> tuple[Outcome, Fault | None]:
    reports = [end.report for _, end in ends]
    stopped = next((one for one in reports if one.fault is not None), None)
    fault = next((end.fault for _, end in ends if end.fault is not None), None)
    told = None if stopped is None else Fault(phase="agent", kind=stopped.fault or "", message=stopped.message)
    if fault is None and reward >= PASSING_REWARD:
        return "pass", told
    if stopped is not None and stopped.is_model_fault:
        return "model_error", told
    if fault is not None:
        return "verifier_error", fault
    return ("fail", None) if told is None else ("agent_error", told)


def _await_health(runtime: DockerRuntime, check: Any) -> None:
    """Wait until the command succeeds.

    Raises:
        SandboxUnavailable: it failed as often as it may.
    """
    began, failures = time.monotonic(), 0
    while True:
        ended = runtime.run(["/bin/sh", "-c", check.command], timeout_s=check.timeout_s)
        if ended.exit_code == 0:
            return
        starting = time.monotonic() - began < check.start_period_s
        failures += not starting
        if failures >= check.retries:
            raise SandboxUnavailable(f"The task's healthcheck failed {failures} times: {check.command[:200]}")
        time.sleep(check.start_interval_s if starting else check.interval_s)
