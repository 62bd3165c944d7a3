"""One attempt at one task: makes a fresh sandbox, runs the agent, gets the verdict, and records everything."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, UnknownUserError, UsageError
from ohsandbox.evaluation.accounting import Accounting
from ohsandbox.evaluation.agent_patch import find_baseline, write_patch
from ohsandbox.evaluation.agents.base import AgentReport, Assignment
from ohsandbox.evaluation.compose import ServiceRuntime
from ohsandbox.evaluation.handover import hand_over_artifacts, hand_over_patch, hand_over_tree
from ohsandbox.evaluation.masking import mask_tree
from ohsandbox.evaluation.results import Fault, Phase, StepResult, TrialKey, TrialResult
from ohsandbox.evaluation.sandbox_files import copy_from_sandbox
from ohsandbox.evaluation.task import Task  # noqa: TC001 - NamedTuple's annotation
from ohsandbox.evaluation.trial_sandbox import HealthcheckFailed, TrialOptions, TrialSandboxes
from ohsandbox.evaluation.verifier import NoVerdict, Score, run_verifier

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ohsandbox import DockerRuntime
    from ohsandbox.evaluation.agent_patch import Baseline
    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.images import Images
    from ohsandbox.evaluation.processors import ProcessorLease, Processors
    from ohsandbox.evaluation.results import Outcome, ServiceResult
    from ohsandbox.evaluation.task import Collect, Network, Step
    from ohsandbox.evaluation.trial_sandbox import SandboxRemovals
    from ohsandbox.network.audit import NetworkDecision

_PATCH_NAME = "patch.diff"
NETWORK_NAME, VERIFIER_NETWORK_NAME = "network.jsonl", "verifier-network.jsonl"
"""Files, in the agent's directory and in the step's, with the allowlist's requests of agent and verifier
and the decisions.
"""
_MAX_UNREACHED = 5
"""Most hosts that a note names; the file has all of them."""
_PASSING_REWARD = 1.0
_CONTENTION = "Contention"
"""The fault kind of a trial whose time was cut short by other users of the processors."""


class TrialSpec(NamedTuple):
    """All inputs of a trial; it can be pickled."""

    task: Task
    task_digest: str
    attempt: int
    agent: EvaluatedAgent
    options: TrialOptions

    @property
    def key(self) -> TrialKey:
        """The trial's key in the run."""
        return TrialKey(self.task.id, self.attempt)


def opens_network(task: Task, agent: EvaluatedAgent, *, separate_verifier: bool) -> bool:
    """Whether the sandbox in which the agent works on a task has an open network at any time."""
    verifiers = [] if separate_verifier else [step.verifier for step in task.steps]
    phases = [verifier.network for verifier in verifiers if verifier.environment is None]
    return "open" in {*phases, *(agent.network or step.agent.network for step in task.steps)}


class _StepEnd(NamedTuple):
    report: AgentReport
    verdict: Score | None
    fault: Fault | None
    """The verifier's fault."""


class Trial:
    """One attempt; `run` returns its result, and raises only errors that end the whole run."""

    def __init__(
        self,
        spec: TrialSpec,
        directory: Path,
        *,
        images: Images,
        processors: Processors,
        cancel: threading.Event,
        tell: Callable[[str], None],
        removals: SandboxRemovals | None = None,
    ) -> None:
        """Make a trial that has not begun.

        Args:
            spec: what is to be done, by which agent.
            directory: for its files; empty.
            images: has the task's image.
            processors: of them the trial is lent its own.
            cancel: ends the trial once it is set.
            tell: is called with the name of each phase that begins.
            removals: removes the sandbox after the result; None has the trial wait for that.
        """
        self.task, self.attempt, self.agent = spec.task, spec.attempt, spec.agent
        self._tell = tell
        self._images, self._options, self._directory, self._cancel = images, spec.options, directory, cancel
        self._processors, self._removals = processors, removals
        self._begun_accounting: Accounting | None = None
        self._baseline: Baseline | None = None
        self._network: Network | None = None
        self._phases: list[Phase] = []
        self._phase = "start"
        self._notes: list[str] = list(spec.task.notes)
        self._result = TrialResult(
            task=spec.task.id, attempt=spec.attempt, outcome="infrastructure_error", agent=spec.agent.name,
            task_digest=spec.task_digest,
        )  # fmt: skip

    def run(self) -> TrialResult:
        """Run the trial. Failures of the engine, the image or this machine become an infrastructure_error."""
        began = time.monotonic()
        update: dict[str, Any]
        try:
            with self._processors.lend(self.task.environment.cpus) as lease:
                update = self._run(lease)
        except UsageError as error:
            update = {"outcome": "invalid", "fault": self._fault(error)}
        except (OhsandboxError, OSError) as error:
            update = {"outcome": "infrastructure_error", "fault": self._fault(error)}
        update |= {"seconds": time.monotonic() - began, "phases": self._phases, "notes": self._notes}
        update["load_average"] = os.getloadavg()[0]
        if (books := self._begun_accounting) is not None:
            update |= {"resources": books.resources, "load": books.load}
        return self._without_secrets(self._result.model_copy(update=update))

    def _without_secrets(self, result: TrialResult) -> TrialResult:
        masker = self.agent.secrets.masker
        mask_tree(self._directory, masker)
        return TrialResult.model_validate(masker.mask_json(result.model_dump(mode="json"))) if masker else result

    def _run(self, lease: ProcessorLease) -> dict[str, Any]:
        task, self._begun_accounting = self.task, Accounting(lease)
        self._sandboxes = TrialSandboxes(
            self._images, self._options, lease, cancel=self._cancel,
            labels={"eval.task": task.id, "eval.attempt": str(self.attempt)},
        )  # fmt: skip
        if (wanted_cpus := task.environment.cpus or 0) > lease.cpus:
            self._notes.append(f"the task asks for {wanted_cpus:g} processors, and this machine has {lease.cpus:g}")
        with contextlib.ExitStack() as stack:
            with self._timed("image"):
                image = stack.enter_context(self._images.held(task.environment))
            self._result = self._result.model_copy(update={"image": image.name, "image_digest": image.digest})
            self._network = self._network_of(task.steps[0])
            with self._timed("sandbox"):
                allow = self._allow_of(task.steps[0])
                runtime = stack.enter_context(
                    self._sandboxes.make(
                        task.environment, self._network, allow, credentials=self.agent.credentials, opens=self._opens
                    )
                )
                self._sandboxes.prepare(runtime, task.environment)
                self._accounting.begin(runtime)
            ends: list[tuple[Step, _StepEnd]] = []
            for step in task.steps:
                ends.append((step, self._step(runtime, step)))
                if not _goes_on(step, ends[-1][1]):
                    break
            with self._timed("close"):
                services: list[ServiceResult] = []
                if isinstance(runtime, ServiceRuntime):
                    services = runtime.save_services(self._directory / "services")
                    runtime.close()
                elif self._removals is not None:
                    self._removals.submit(stack.pop_all().close)
                else:
                    runtime.close()
        return self._judged(ends) | {"services": services}

    def _step(self, runtime: DockerRuntime, step: Step) -> _StepEnd:
        directory = self._directory / "steps" / step.name if step.name else self._directory
        (directory / "agent").mkdir(parents=True, exist_ok=True)
        is_first = step is self.task.steps[0]
        with self._timed("setup", step):
            self._set_network(runtime, self._network_of(step), self._allow_of(step), credentials=True)
            try:
                self._sandboxes.set_up(runtime, step)
            except HealthcheckFailed as error:
                if is_first:
                    raise
                # the sandbox was healthy once: what the agent did since is its own fault
                return _StepEnd(AgentReport(fault=type(error).__name__, message=str(error)), None, None)
            if is_first:
                self._baseline = find_baseline(runtime)
            if step.verifier.environment is None:
                users = [
                    step.verifier.user,
                    *(collect.user for collect in step.verifier.collect if collect.service is None),
                ]
                self._sandboxes.check_users(runtime, users)
        with self._timed("agent", step), self._accounting.watched(runtime, "agent", self._scaled(step.agent.timeout_s)):
            report = self.agent.work(
                runtime,
                Assignment(
                    self.task, step, self.attempt, directory / "agent", self._limit(step.agent.timeout_s), self._cancel
                ),
            )
        self._notes += report.notes
        _write_network(runtime, directory / "agent" / NETWORK_NAME, since=self._phases[-1].started_at)
        if report.fault is not None:
            report = report.model_copy(update={"message": report.message + self._accounting.killed("agent")})
        try:
            with self._timed("collect", step), _as_the_agent_left_it():
                runtime.end_processes()  # nothing of the agent runs while it is judged
                self._notes += copy_from_sandbox(runtime, "/logs/agent", directory / "agent" / "logs")
                patch_fault = self._collect(runtime, step, directory)
            with self._timed("verifier", step):
                verdict = self._verify(runtime, step, directory, patch_fault)
        except (NoVerdict, TimeoutError) as error:
            fault = self._fault(error)
            killed = self._accounting.killed("verifier")
            return _StepEnd(report, None, fault.model_copy(update={"message": fault.message + killed}))
        return _StepEnd(report, verdict, None)

    def _collect(self, runtime: DockerRuntime, step: Step, directory: Path) -> str | None:
        """Save the agent's work; return why its patch is incomplete, or ""."""
        fault = None
        if self._baseline is not None:
            fault = write_patch(runtime, self._baseline, directory / _PATCH_NAME)
            self._notes += [fault] if fault else []
        self._collect_of(runtime, step, directory, None)
        self._notes += copy_from_sandbox(runtime, "/logs/artifacts", directory / "artifacts")
        if isinstance(runtime, ServiceRuntime):
            self._collect_of_services(runtime, step, directory)
        return fault

    def _collect_of_services(self, runtime: ServiceRuntime, step: Step, directory: Path) -> None:
        """Save the agent's work in each named service beside the sandbox; a service that has ended is noted."""
        services = {collect.service for collect in step.verifier.collect} | {
            artifact.service for artifact in step.artifacts
        }
        for service in sorted(filter(None, services)):
            with self._of_service(service), runtime.joined(service) as service_runtime:
                self._collect_of(service_runtime, step, directory, service)

    def _collect_of(self, runtime: DockerRuntime, step: Step, directory: Path, service: str | None) -> None:
        """Run the commands, then copy the artifacts, of one service; None is the sandbox."""
        for collect in step.verifier.collect:
            if collect.service == service:
                with self._of_service(service):
                    self._collect_by(runtime, collect)
        for artifact in step.artifacts:
            if artifact.service == service:
                target = directory / "artifacts" / artifact.name
                with self._of_service(service):
                    self._notes += copy_from_sandbox(runtime, artifact.source, target, exclude=artifact.exclude)

    def _collect_by(self, runtime: DockerRuntime, collect: Collect) -> None:
        ended = runtime.run(
            ["/bin/sh", "-c", collect.command], user=collect.user, timeout_s=self._limit(collect.timeout_s)
        )
        if ended.exit_code != 0:
            self._notes.append(f"collect command ended with exit code {ended.exit_code}: {collect.command[:80]}")

    @contextlib.contextmanager
    def _of_service(self, service: str | None) -> Iterator[None]:
        """Turn a failure in a service's container, which may have no shell, into a note instead of raising it."""
        try:
            yield
        except OhsandboxError as error:
            if service is None:
                raise
            note = f"not all is kept of service {service!r}: {error}"
            self._notes += [note] if note not in self._notes else []

    def _verify(self, runtime: DockerRuntime, step: Step, directory: Path, patch_fault: str | None) -> Score:
        verifier = step.verifier
        if verifier.environment is not None:
            with (
                self._images.held(verifier.environment),
                self._sandboxes.make(verifier.environment, verifier.network, verifier.allow) as fresh_runtime,
            ):
                self._network = verifier.network
                self._sandboxes.prepare(fresh_runtime, verifier.environment)
                hand_over_artifacts(fresh_runtime, step.artifacts, directory / "artifacts")
                return self._judge(fresh_runtime, step, directory)
        if not self._options.separate_verifier:
            self._set_network(runtime, verifier.network, verifier.allow, credentials=False)
            with _as_the_agent_left_it():
                return self._judge(runtime, step, directory)
        with self._sandboxes.make(self.task.environment, verifier.network, verifier.allow) as fresh:
            self._network = verifier.network
            self._sandboxes.prepare(fresh, self.task.environment)
            for earlier in self.task.steps[: self.task.steps.index(step) + 1]:
                self._sandboxes.set_up(fresh, earlier)
            if self._baseline is not None and patch_fault is None:
                hand_over_patch(fresh, self._baseline, directory / _PATCH_NAME)
            else:
                directory_name = self._baseline.top if self._baseline else fresh.workdir
                self._notes += hand_over_tree(runtime, fresh, directory_name)
            hand_over_artifacts(fresh, step.artifacts, directory / "artifacts")
            return self._judge(fresh, step, directory)

    def _judge(self, runtime: DockerRuntime, step: Step, directory: Path) -> Score:
        timeout_s, began = step.verifier.timeout_s, datetime.now(UTC)
        try:
            with self._accounting.watched(runtime, "verifier", self._scaled(timeout_s)):
                return run_verifier(
                    runtime, step.verifier, directory / "verifier", timeout_s=self._limit(timeout_s) or timeout_s,
                    cancel=self._cancel,
                )  # fmt: skip
        finally:
            self._notes += _unreached(_write_network(runtime, directory / VERIFIER_NETWORK_NAME, since=began))

    def _judged(self, ends: list[tuple[Step, _StepEnd]]) -> dict[str, Any]:
        """Return the trial's outcome, given the outcomes of its steps."""
        rewards = _rewards([end.verdict for _, end in ends], final=self.task.reward_strategy == "final")
        is_whole = len(ends) == len(self.task.steps) and all(end.verdict is not None for _, end in ends)
        reports = [end.report for _, end in ends]
        usage: dict[str, int] = {}
        for report in reports:
            usage |= {name: usage.get(name, 0) + count for name, count in report.usage.items()}
        costs = [report.cost_usd for report in reports if report.cost_usd is not None]
        outcome, fault = _outcome(Score(rewards).reward if rewards and is_whole else 0.0, ends)
        if outcome != "pass" and fault is not None and fault.kind in {"Timeout", TimeoutError.__name__}:
            outcome, fault = self._outcome_under_contention(outcome, fault)
        steps = [
            StepResult(name=step.name, rewards=end.verdict.rewards if end.verdict else {}, fault=end.fault)
            for step, end in ends
        ]
        return {
            "outcome": outcome, "fault": fault, "reward": Score(rewards).reward if rewards else None,
            "rewards": rewards, "steps": steps if len(self.task.steps) > 1 else [],
            "usage": usage, "cost_usd": sum(costs) if costs else None,
            "rate_limit_wait_s": sum(report.rate_limit_wait_s for report in reports),
            "model": next((report.model for report in reports if report.model), None),
        }  # fmt: skip

    def _outcome_under_contention(self, outcome: Outcome, fault: Fault) -> tuple[Outcome, Fault]:
        """Return the outcome; a timeout counts as the infrastructure's fault where others used the processors."""
        worker = "agent" if fault.kind == "Timeout" else "verifier"
        if worker not in self._accounting.cut_short:
            return outcome, fault
        others = self._accounting.load.others or 0.0
        message = f"{fault.message}, and others used {others:.0%} of its processors. Run fewer at a time (-n)."
        return "infrastructure_error", Fault(phase=fault.phase, kind=_CONTENTION, message=message)

    @property
    def _accounting(self) -> Accounting:
        if self._begun_accounting is None:
            raise RuntimeError("the trial has not begun")
        return self._begun_accounting

    def _network_of(self, step: Step) -> Network:
        """The network while the agent works."""
        return self.agent.network or step.agent.network

    def _allow_of(self, step: Step) -> tuple[str, ...]:
        """The allowlist while the agent works: the task's own hosts, and those of the agent's user.

        Of an open network the addresses that the user opened.
        """
        if self._network_of(step) == "open":
            return self.agent.allow
        return (*step.agent.allow, *self.agent.allow) if self._network_of(step) == "allowlist" else ()

    @property
    def _opens(self) -> bool:
        return opens_network(self.task, self.agent, separate_verifier=self._options.separate_verifier)

    def _set_network(
        self, runtime: DockerRuntime, network: Network, allow: Sequence[str], *, credentials: bool
    ) -> None:
        """Change the network; the credentials are for the agent only, not for the verifier."""
        if self.agent.credentials and runtime.adds_credentials is not credentials:
            runtime.set_network("none")
            runtime.adds_credentials = credentials
        runtime.set_network(network, allow=allow)
        self._network = network

    def _scaled(self, timeout_s: float | None) -> float | None:
        """A limit of the task, scaled by the factor that the run's user chose."""
        return None if timeout_s is None else timeout_s * self._options.timeout_multiplier

    def _limit(self, timeout_s: float | None) -> float | None:
        """A scaled limit for this machine, where trials may compete for processors."""
        scaled = self._scaled(timeout_s)
        return None if scaled is None else scaled * self._accounting.load.time_factor

    def _fault(self, error: BaseException) -> Fault:
        return Fault(phase=self._phase, kind=type(error).__name__, message=str(error))

    @contextlib.contextmanager
    def _timed(self, name: str, step: Step | None = None) -> Iterator[None]:
        self._phase = name if step is None or not step.name else f"{step.name}: {name}"
        self._tell(self._phase)
        started_at, began, phase = datetime.now(UTC), time.monotonic(), self._phase
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._phases.append(Phase(name=phase, started_at=started_at, seconds=seconds, network=self._network))


@contextlib.contextmanager
def _as_the_agent_left_it() -> Iterator[None]:
    """A user whom an agent has removed from its sandbox is not a fault of the task, whose trials count in no rate."""
    try:
        yield
    except UnknownUserError as error:
        raise NoVerdict(f"after the agent: {error}") from error


def _write_network(runtime: DockerRuntime, path: Path, *, since: datetime) -> list[NetworkDecision]:
    """Write the decisions of the allowlist, one per line, and return them; without any no file is written."""
    decisions = [decision for decision in runtime.network_decisions() if decision.time >= since.timestamp()]
    if decisions:
        path.write_text("".join(json.dumps(dataclasses.asdict(decision)) + "\n" for decision in decisions))
    return decisions


def _unreached(decisions: Sequence[NetworkDecision]) -> list[str]:
    """Notes on the hosts that a verifier asked for in vain: refused, or allowed by no rule as they did not answer.

    They change no outcome: what an agent leaves behind may make a verifier ask for anything.
    """
    refused = [decision for decision in decisions if not (decision.allowed and decision.rule)]
    notes = dict.fromkeys(
        f"the verifier could not reach {decision.host}:{decision.port}: it {decision.reason}" for decision in refused
    )
    return [*notes][:_MAX_UNREACHED]


def _goes_on(step: Step, end: _StepEnd) -> bool:
    if end.verdict is None:
        return False
    return all(end.verdict.rewards.get(name, 0.0) >= least for name, least in step.min_reward.items())


def _outcome(reward: float, ends: list[tuple[Step, _StepEnd]]) -> tuple[Outcome, Fault | None]:
    reports = [end.report for _, end in ends]
    stopped = next((report for report in reports if report.fault is not None), None)
    fault = next((end.fault for _, end in ends if end.fault is not None), None)
    fault_of_agent = (
        None if stopped is None else Fault(phase="agent", kind=stopped.fault or "", message=stopped.message)
    )
    if fault is None and reward >= _PASSING_REWARD:
        return "pass", fault_of_agent
    if stopped is not None and stopped.is_model_fault:
        return "model_error", fault_of_agent
    if fault is not None:
        return "verifier_error", fault
    return ("fail", None) if fault_of_agent is None else ("agent_error", fault_of_agent)


def _rewards(verdicts: Sequence[Score | None], *, final: bool) -> dict[str, float]:
    """The rewards of a task by those of its steps: the last one's, or their mean, in which a missing name is 0.

    A step without a verdict does not count in the mean; the outcome tells of it.
    """
    if final:
        return verdicts[-1].rewards if verdicts and verdicts[-1] is not None else {}
    rewards = [verdict.rewards for verdict in verdicts if verdict is not None]
    names = dict.fromkeys(name for step_rewards in rewards for name in step_rewards)
    return {name: sum(step_rewards.get(name, 0.0) for step_rewards in rewards) / len(rewards) for name in names}
