"""`Report`: what came of a run, or of the shards of one, with all that a reader needs to trust its numbers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ohsandbox import __version__
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.results import (
    COUNTED,
    RUN_NAME,
    Outcome,
    ResultsDirectory,
    RunRecord,
    TrialKey,
    TrialResult,
    read_record,
)
from ohsandbox.evaluation.statistics import CONFIDENCE, TaskCount, pass_at, pass_rate
from ohsandbox.evaluation.trial_sandbox import FIXED_ENV
from ohsandbox.private_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_REPORT_SCHEMA = 1
REPORT_NAME = "report.json"
OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined] # a Literal has them
_OF_ONE_SHARD = {"run_id", "shard", "tasks", "machines"}
"""Fields of a run's record that differ between the shards of one run."""


class ReportPart(BaseModel):
    """Base class of a report's parts; unknown fields of a later version are kept."""

    model_config = ConfigDict(extra="allow")


class PassRate(ReportPart):
    """The mean over tasks of the share of attempts that passed, of those whose outcome is in `COUNTED`."""

    value: float
    low: float
    """The lower end of the interval at `confidence`."""
    high: float
    confidence: float = CONFIDENCE
    method: str
    tasks: int
    """The number of tasks with an attempt that counts."""
    trials: int
    """The number of trials that count."""


class Totals(ReportPart):
    """Sums over all trials, whatever their outcome, repeats included."""

    seconds: float
    """The durations of all trials added up, as if they had run one after the other."""
    span_s: float
    """From the start of the first trial to the end of the last one; interruptions of the run are included."""
    phases: dict[str, float] = {}
    """Seconds by phase; the steps of a task are added up."""
    tokens: dict[str, int] = {}
    cost_usd: float | None = None
    """The cost of the trials whose cost is known; None where none is known."""
    trials_without_cost: int
    cost_per_solved_task_usd: float | None = None
    """cost_usd divided by the number of tasks with a passed attempt."""
    solved_tasks: int
    infrastructure_retries: int
    rate_limit_wait_s: float = 0.0
    """The part of `seconds` spent waiting because a provider limits the rate of requests."""


class TaskReport(ReportPart):
    """A task and its attempts."""

    id: str
    digest: str
    passed: int
    counted: int
    """The number of attempts whose outcome is in `COUNTED`, without repeats."""
    missing: int
    """The number of attempts that are not finished."""
    is_flaky: bool
    """Whether some of its attempts, repeats included, passed and some failed."""
    seconds: float | None = None
    """The mean duration of an attempt, without waits for a provider that limits the rate of requests."""
    cost_usd: float | None = None
    """The mean cost of the attempts whose cost is known."""

    @property
    def rate(self) -> float | None:
        """The share of the counted attempts that passed."""
        return self.passed / self.counted if self.counted else None


class Report(ReportPart):
    """The content of report.json."""

    schema_version: int = _REPORT_SCHEMA
    made_by: str = f"ohsandbox {__version__}"
    made_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    complete: bool
    """Whether every trial of the plan is finished and, for shards, every shard is here."""
    missing_shards: list[str] = []
    """The missing shards of a merged report, as "3/8"."""
    trials_planned: int
    """The number of planned trials of the runs that are here, without repeats."""
    trials_finished: int
    pass_rate: PassRate | None = None
    """None where no trial counts."""
    pass_at: dict[int, float] = {}
    """Unbiased pass@k by k: 1, 2, 4, ... and the number of attempts, as far as every task has that many that count."""
    outcomes: dict[Outcome, int]
    totals: Totals
    models: list[str] = []
    images: dict[str, list[str]] = {}
    """Digests by image name; more than one means that the image changed between trials."""
    machines: list[dict[str, str]] = []
    """The machines where the runs took place: Python, processors, engine."""
    fixed_environment: dict[str, str] = {}
    """Variables with the same value in every trial, the hash seed among them."""
    runs: list[dict[str, Any]]
    """The record of each run that is merged here: identity, versions, settings, machine."""
    tasks: list[TaskReport]
    trials: list[TrialResult]
    """By task in the order of the plan, then by attempt; repeats, which count in no rate, are marked `is_repeat`."""

    @property
    def agent_name(self) -> str:
        """The name of the agent that worked on the tasks."""
        return str(self.runs[0].get("agent", "")) if self.runs else ""


class ReportSource(NamedTuple):
    """A report, and the directories of its trials' files."""

    report: Report
    directories: Mapping[TrialKey, Path]
    """The directories by trial; without an entry for trials whose files are not here, as when only
    report.json was read.
    """

    def directory(self, result: TrialResult) -> Path | None:
        """Return the directory of a trial's files."""
        return self.directories.get(TrialKey(result.task, result.attempt))


def read_results(paths: Sequence[Path], *, is_whole: bool = False) -> ReportSource:
    """Make the report of results directories, several of which may be shards of one run.

    is_whole: they are meant to be all of the run, so that a shard which is not among them is missing, also where there
    is only one; without it, one shard may be a report of its own.

    Raises:
        UsageError: a directory holds no results; they are not of the same plan; a trial is in two of them.
    """
    records = [read_record(path) for path in paths]
    for path, record in zip(paths, records, strict=True):
        _require_same_plan(paths[0], records[0], path, record)
    result_of: dict[TrialKey, TrialResult] = {}
    directories: dict[TrialKey, Path] = {}
    for path in paths:
        results = ResultsDirectory(path)
        for key, result in results.finished().items():
            if key in result_of:
                raise UsageError(
                    f"Task {key.task!r}, attempt {key.attempt}, is in {directories[key]} and in {results.trial(key)}. "
                    "Name shards of one run, each once."
                )
            result_of[key], directories[key] = result, results.trial(key)
    digests = {task: digest for record in records for task, digest in record.tasks.items()}
    return ReportSource(_build(records, digests, result_of, _missing_shards(records, is_whole=is_whole)), directories)


def load_report(path: Path) -> ReportSource:
    """Read a report.json, also that of a directory of reports alone, or make the report of a results directory.

    Raises:
        UsageError: it is neither.
    """
    if path.is_dir() and not (path / RUN_NAME).exists() and (path / REPORT_NAME).exists():
        path /= REPORT_NAME  # of `eval report -o`
    if path.is_dir():
        return read_results([path])
    try:
        return ReportSource(Report.model_validate_json(read_regular(path, follow=True)), {})
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a results directory.") from None
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "all of it"
        raise UsageError(f"{path} is not a report ({location}: {first['msg']}). Name a {REPORT_NAME}.") from None


def _require_same_plan(first_path: Path, first: RunRecord, path: Path, record: RunRecord) -> None:
    first_plan, plan = (plan_record.model_dump(mode="json", exclude=_OF_ONE_SHARD) for plan_record in (first, record))
    for name in {**first_plan, **plan}:
        if (was := first_plan.get(name)) != (value := plan.get(name)):
            raise UsageError(
                f"{first_path} and {path} are results of different runs: {name} is {was!r} and {value!r}. "
                "Use `ohsandbox eval compare` to compare runs; a report merges shards of one run."
            )
    for task in first.tasks.keys() & record.tasks.keys():
        if first.tasks[task] != record.tasks[task]:
            raise UsageError(
                f"Task {task!r} is not the same in {first_path} and {path}: its files differ. Run both again."
            )


def _build(
    records: list[RunRecord], digests: dict[str, str], results: dict[TrialKey, TrialResult], missing_shards: list[str]
) -> Report:
    attempts = records[0].attempts
    planned = {TrialKey(task, attempt + 1) for task in digests for attempt in range(attempts)}
    by_task: dict[str, list[TrialResult]] = {task: [] for task in digests}
    for key in sorted(results, key=lambda key: key.attempt):
        by_task.setdefault(key.task, []).append(results[key])
    trials = [result for results in by_task.values() for result in results]
    machines = [machine for record in records for machine in record.machines]
    tasks = [_task(task, digests.get(task, ""), results, attempts) for task, results in by_task.items()]
    counts = [TaskCount(task.passed, task.counted) for task in tasks]
    outcomes = Counter(result.outcome for result in trials if not result.is_repeat)
    return Report(
        complete=planned <= results.keys() and not missing_shards,
        missing_shards=missing_shards,
        trials_planned=len(planned),
        trials_finished=len(planned & results.keys()),
        pass_rate=_pass_rate(counts),
        pass_at=_pass_at(counts, attempts),
        outcomes={name: outcomes[name] for name in OUTCOMES},
        totals=_totals(trials, tasks),
        models=sorted({result.model for result in trials if result.model}),
        images=_images(trials),
        machines=[machine for position, machine in enumerate(machines) if machine not in machines[:position]],
        fixed_environment=FIXED_ENV,
        runs=[record.model_dump(mode="json", exclude={"tasks", "machines"}) for record in records],
        tasks=tasks,
        trials=trials,
    )


def _missing_shards(records: list[RunRecord], *, is_whole: bool) -> list[str]:
    shards = {record.shard for record in records if record.shard}
    counts = {shard.partition("/")[2] for shard in shards}
    if not shards or (len(records) == 1 and not is_whole):
        return []
    if len(counts) > 1:
        raise UsageError(f"Shards of different numbers: {', '.join(sorted(shards))}. Name those of one run.")
    count = counts.pop()
    return [shard for number in range(int(count)) if (shard := f"{number + 1}/{count}") not in shards]


def _task(task: str, digest: str, results: list[TrialResult], attempts: int) -> TaskReport:
    first = [result for result in results if not result.is_repeat]
    verdicts = {result.outcome == "pass" for result in results if result.outcome in COUNTED}
    costs = [result.cost_usd for result in results if result.cost_usd is not None]
    return TaskReport(
        id=task,
        digest=digest,
        passed=sum(result.outcome == "pass" for result in first),
        counted=sum(result.outcome in COUNTED for result in first),
        missing=max(0, attempts - len(first)),
        is_flaky=len(verdicts) > 1,
        seconds=sum(result.seconds - result.rate_limit_wait_s for result in results) / len(results)
        if results
        else None,
        cost_usd=sum(costs) / len(costs) if costs else None,
    )


def _pass_rate(counts: list[TaskCount]) -> PassRate | None:
    if (estimate := pass_rate(counts)) is None:
        return None
    return PassRate(
        value=estimate.value, low=estimate.low, high=estimate.high, method=estimate.method,
        tasks=sum(count.attempts > 0 for count in counts), trials=sum(count.attempts for count in counts),
    )  # fmt: skip


def _pass_at(counts: list[TaskCount], attempts: int) -> dict[int, float]:
    powers = {2**power for power in range(attempts.bit_length())}
    estimates = {k: pass_at(k, counts) for k in sorted(powers | {attempts})}
    return {k: value for k, value in estimates.items() if value is not None}


def _totals(trials: list[TrialResult], tasks: list[TaskReport]) -> Totals:
    phases, tokens = Counter[str](), Counter[str]()
    for result in trials:
        tokens.update(result.usage)
        for phase in result.phases:
            phases[phase.name.rpartition(": ")[2]] += phase.seconds  # type: ignore[assignment] # sums of float
    costs = [result.cost_usd for result in trials if result.cost_usd is not None]
    ends = [result.started_at.timestamp() + result.seconds for result in trials]
    solved = sum(task.passed > 0 for task in tasks)
    return Totals(
        seconds=sum(result.seconds for result in trials),
        span_s=max(ends) - min(result.started_at.timestamp() for result in trials) if trials else 0.0,
        phases=dict(phases),
        tokens=dict(tokens),
        cost_usd=sum(costs) if costs else None,
        trials_without_cost=len(trials) - len(costs),
        cost_per_solved_task_usd=sum(costs) / solved if costs and solved else None,
        solved_tasks=solved,
        infrastructure_retries=sum(result.infrastructure_tries - 1 for result in trials),
        rate_limit_wait_s=sum(result.rate_limit_wait_s for result in trials),
    )


def _images(trials: list[TrialResult]) -> dict[str, list[str]]:
    digests_of: dict[str, set[str]] = {}
    for result in trials:
        if result.image and result.image_digest:
            digests_of.setdefault(result.image, set()).add(result.image_digest)
    return {name: sorted(digests) for name, digests in sorted(digests_of.items())}
