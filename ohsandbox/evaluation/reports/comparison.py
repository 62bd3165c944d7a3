"""`Comparison`: what changed between two runs of the same tasks, and whether chance explains it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.reports.html import render_page
from ohsandbox.evaluation.reports.report import PassRate, ReportPart
from ohsandbox.evaluation.statistics import CONFIDENCE, mean_difference, paired_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.evaluation.reports.report import Report, TaskReport

_COMPARISON_SCHEMA = 1
Change = Literal[
    "broken", "worsened", "fixed", "improved", "mixed", "failing", "passing", "no_verdict", "changed_task", "only_in_a",
    "only_in_b",
]  # fmt: skip
"""The kind of change of a task, by the share of its attempts that passed. broken: fewer, and none in B. worsened:
fewer. fixed: more, and all in B. improved: more. failing, passing, mixed: the share is the same: none, all, some.
no_verdict: no attempt counts in one of the runs. changed_task: the task's files are not the same. The last four are not
part of any test."""
_CHANGES: tuple[Change, ...] = Change.__args__  # type: ignore[attr-defined] # a Literal has them
_NOT_SETTINGS = frozenset({"run_id"})


class TaskComparison(ReportPart):
    """One task in two runs; values of a run that lacks the task are None."""

    id: str
    change: Change
    rate_a: float | None = None
    rate_b: float | None = None
    seconds_a: float | None = None
    """Mean of the attempts."""
    seconds_b: float | None = None
    cost_usd_a: float | None = None
    cost_usd_b: float | None = None


class ComparedRun(ReportPart):
    """One of the two runs, over all its tasks."""

    name: str
    complete: bool
    agent: str
    models: list[str]
    pass_rate: PassRate | None
    trials: int
    """The number of finished trials."""
    cost_usd: float | None
    cost_per_solved_task_usd: float | None


class Effect(ReportPart):
    """B's pass rate minus A's, over the tasks that have a verdict in both."""

    value: float
    low: float
    """The lower end of the interval at `confidence`."""
    high: float
    confidence: float = CONFIDENCE
    interval_method: str
    p_value: float
    """The two-sided p-value."""
    p_worse: float
    """The one-sided p-value: the probability of a result as bad for B, or worse, if nothing has changed."""
    test: str


class Quantity(ReportPart):
    """A quantity of B compared with A's: means over the tasks for which both are known."""

    a: float
    b: float
    tasks: int


class Comparison(ReportPart):
    """The output of `ohsandbox eval compare --json`."""

    schema_version: int = _COMPARISON_SCHEMA
    a: ComparedRun
    b: ComparedRun
    compared_tasks: int
    effect: Effect
    changes: dict[Change, int]
    seconds_per_task: Quantity | None = None
    cost_usd_per_task: Quantity | None = None
    settings: dict[str, tuple[Any, Any]]
    """The settings in the runs' records that differ, with A's value and B's."""
    tasks: list[TaskComparison]
    """The tasks; those that changed for the worse come first."""

    def is_worse(self, alpha: float) -> bool:
        """B is worse by more than chance explains: p_worse is at most alpha."""
        return self.effect.value < 0 and self.effect.p_worse <= alpha


def compare_reports(a: Report, b: Report, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two reports task by task.

    Raises:
        UsageError: there is no task on which both have a verdict.
    """
    of_a, of_b = ({task.id: task for task in report.tasks} for report in (a, b))
    tasks = [_compared(name, of_a.get(name), of_b.get(name)) for name in dict.fromkeys([*of_a, *of_b])]
    pairs = [
        (of_a[task.id], of_b[task.id])
        for task in tasks
        if task.id in of_a and task.id in of_b and task.change not in {"no_verdict", "changed_task"}
    ]
    if not pairs:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in _counted(tasks).items())
        raise UsageError(
            f"{names[0]} and {names[1]} have no task on which both have a verdict ({counts or 'no tasks'}). "
            "Compare runs of the same tasks."
        )
    tasks.sort(key=lambda task: _CHANGES.index(task.change))
    return Comparison(
        a=_run(a, names[0]),
        b=_run(b, names[1]),
        compared_tasks=len(pairs),
        effect=_estimated_effect(pairs),
        changes=_counted(tasks),
        seconds_per_task=_quantity([(first.seconds, two.seconds) for first, two in pairs]),
        cost_usd_per_task=_quantity([(first.cost_usd, two.cost_usd) for first, two in pairs]),
        settings=_settings(a, b),
        tasks=tasks,
    )


def comparison_html(comparison: Comparison) -> str:
    """Return the comparison as a self-contained page, as `html` does for one run."""
    return render_page(
        "comparison.html", comparison=comparison, order={name: position for position, name in enumerate(_CHANGES)}
    )


def _compared(name: str, a: TaskReport | None, b: TaskReport | None) -> TaskComparison:
    return TaskComparison(
        id=name,
        change=_change(a, b),
        rate_a=a.rate if a else None,
        rate_b=b.rate if b else None,
        seconds_a=a.seconds if a else None,
        seconds_b=b.seconds if b else None,
        cost_usd_a=a.cost_usd if a else None,
        cost_usd_b=b.cost_usd if b else None,
    )


def _change(a: TaskReport | None, b: TaskReport | None) -> Change:
    if a is None or b is None:
        return "only_in_b" if a is None else "only_in_a"
    if a.digest != b.digest:
        return "changed_task"
    if (was := a.rate) is None or (rate_now := b.rate) is None:
        return "no_verdict"
    if rate_now < was:
        return "worsened" if rate_now else "broken"
    if rate_now > was:
        return "fixed" if rate_now == 1 else "improved"
    return "mixed" if 0 < rate_now < 1 else "passing" if rate_now else "failing"


def _estimated_effect(pairs: Sequence[tuple[TaskReport, TaskReport]]) -> Effect:
    differences = [Fraction(b.passed, b.counted) - Fraction(a.passed, a.counted) for a, b in pairs]
    test, estimate = paired_test(differences), mean_difference(differences)
    assert estimate is not None, "there are pairs"  # noqa: S101
    return Effect(
        value=estimate.value, low=estimate.low, high=estimate.high, interval_method=estimate.method,
        p_value=test.p_value, p_worse=test.p_worse, test=test.method,
    )  # fmt: skip


def _counted(tasks: Sequence[TaskComparison]) -> dict[Change, int]:
    counts = Counter(task.change for task in tasks)
    return {name: counts[name] for name in _CHANGES if counts[name]}


def _quantity(pairs: Sequence[tuple[float | None, float | None]]) -> Quantity | None:
    known_pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known_pairs:
        return None
    count = len(known_pairs)
    return Quantity(a=sum(a for a, _ in known_pairs) / count, b=sum(b for _, b in known_pairs) / count, tasks=count)


def _run(report: Report, name: str) -> ComparedRun:
    return ComparedRun(
        name=name, complete=report.complete, agent=report.agent_name, models=report.models,
        pass_rate=report.pass_rate, trials=report.trials_finished, cost_usd=report.totals.cost_usd,
        cost_per_solved_task_usd=report.totals.cost_per_solved_task_usd,
    )  # fmt: skip


def _settings(a: Report, b: Report) -> dict[str, tuple[Any, Any]]:
    first, two = (_settings_of(report) for report in (a, b))
    settings = {name: (first.get(name), two.get(name)) for name in {**first, **two} if name not in _NOT_SETTINGS}
    settings |= {"models": (a.models, b.models), "images": (a.images, b.images), "machines": (a.machines, b.machines)}
    return {name: pair for key, (of_a, of_b) in settings.items() for name, pair in _differing(key, of_a, of_b).items()}


def _differing(name: str, a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Values that differ, by name; of mappings such as agent_settings each key is compared by itself."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b) == 1:
        [a], [b] = a, b
    if not isinstance(a, dict) or not isinstance(b, dict) or name == "images":
        return {name: (a, b)} if a != b else {}
    return {f"{name}.{key}": (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def _settings_of(report: Report) -> dict[str, Any]:
    """The settings in the first run's record; shards that are complete count as one run."""
    settings = dict(report.runs[0]) if report.runs else {}
    return settings | {"shard": None} if len(report.runs) > 1 and not report.missing_shards else settings
