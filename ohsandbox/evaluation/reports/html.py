"""`report.html`: one file that shows a run to people, and loads nothing.

Its content policy allows one style sheet and one script, each by its hash, and no other source of anything: text that
came through as markup would do nothing. Pictures are SVG in the page. Without the script all is there but unsorted.
"""

from __future__ import annotations

import os
import shlex
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.evaluation.reports import foreign_text, numbers
from ohsandbox.evaluation.reports.report import OUTCOMES
from ohsandbox.evaluation.results import CONVERSATION_NAME
from ohsandbox.html_page import open_templates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import jinja2

    from ohsandbox.evaluation.reports.report import ReportSource, TaskReport
    from ohsandbox.evaluation.results import TrialResult

HTML_NAME = "report.html"
_MAX_COLUMNS = 200
"""Most columns of a chart by task: each must be wide enough to point at; with more tasks a column stands
for several.
"""
PHASES = frozenset({"image", "sandbox", "setup", "agent", "collect", "verifier", "close"})
_WIDTH, _HEIGHT = 1000, 200
"""The size of a chart in its own units; the page stretches it."""


class _Column(NamedTuple):
    """A column of a chart by task: its height, and the part of it that stands for passed attempts."""

    x: float
    width: float
    top: int
    middle: int
    label: str


class _Chart(NamedTuple):
    """A chart of the tasks by one quantity, the largest first."""

    title: str
    highest: str
    median: str
    columns: list[_Column]
    note: str


class _PhaseBar(NamedTuple):
    """A phase in a trial's timeline."""

    css: str
    x: int
    width: int
    label: str


class _TrialRow(NamedTuple):
    """A trial in the list of trials."""

    rank: int
    """The rank of its outcome: trials that did not pass come first."""
    outcome: str
    task: str
    attempt: int
    seconds: float
    cost_usd: float | None
    why: str
    phases: list[_PhaseBar]
    facts: list[str]
    conversations: list[str]
    """Commands that show the conversations of our agent, to be typed in the results directory."""
    tail: str


def html(source: ReportSource) -> str:
    """Return the page."""
    report = source.report
    limit_bytes = foreign_text.tail_limit(report)
    rows = [_row(result, source, limit_bytes) for result in report.trials]
    charts = [
        _chart("Time per task", report.tasks, lambda task: task.seconds, numbers.seconds),
        _chart("Cost per task", report.tasks, lambda task: task.cost_usd, numbers.dollars),
    ]
    return render_page(
        "report.html",
        report=report,
        totals=report.totals,
        began=min((result.started_at for result in report.trials), default=report.made_at),
        charts=[chart for chart in charts if chart is not None],
        rows=sorted(rows, key=lambda row: row.rank),
    )


def render_page(template: str, **values: Any) -> str:
    """Return a page rendered from one of our templates, in which all values are escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    environment = open_templates(Path(__file__).parent / "templates")
    formats = {
        format_of.__name__: format_of
        for format_of in (numbers.percent, numbers.seconds, numbers.dollars, numbers.probability)
    }
    environment.filters |= {"name": foreign_text.name, **formats}
    environment.globals |= formats
    return environment


def _row(result: TrialResult, source: ReportSource, limit_bytes: int) -> _TrialRow:
    passed = result.outcome == "pass"
    files = source.directory(result)
    directory = None if passed else files
    return _TrialRow(
        rank=len(OUTCOMES) if passed else OUTCOMES.index(result.outcome),
        outcome=result.outcome,
        task=foreign_text.name(result.task),
        attempt=result.attempt,
        seconds=result.seconds,
        cost_usd=result.cost_usd,
        why=foreign_text.message_line(foreign_text.reason(result)),
        phases=list(_phases(result)),
        facts=list(_facts(result)),
        conversations=_conversations(files),
        tail=foreign_text.output_tail(directory, of_agent=result.outcome == "agent_error", limit_bytes=limit_bytes),
    )


def _conversations(directory: Path | None) -> list[str]:
    """The commands for the conversations of a trial, one for each step."""
    if directory is None:
        return []
    directories = sorted(
        [*directory.glob(f"agent/{CONVERSATION_NAME}"), *directory.glob(f"steps/*/agent/{CONVERSATION_NAME}")]
    )
    return [
        f"ohsandbox view --dir {foreign_text.message_line(shlex.quote(os.path.relpath(path)))}" for path in directories
    ]


def _phases(result: TrialResult) -> Iterator[_PhaseBar]:
    if not result.phases:
        return
    began = result.phases[0].started_at
    ends = [(phase.started_at - began).total_seconds() + phase.seconds for phase in result.phases]
    scale = _WIDTH / (max(ends) or 1)
    for phase in result.phases:
        kind = phase.name.rpartition(": ")[2]
        yield _PhaseBar(
            css=f"phase-{kind if kind in PHASES else 'other'}",
            x=round((phase.started_at - began).total_seconds() * scale),
            width=max(1, round(phase.seconds * scale)),
            label=f"{foreign_text.name(phase.name)} {numbers.seconds(phase.seconds)}",
        )


def _facts(result: TrialResult) -> Iterator[str]:
    for name, value in result.rewards.items():
        yield f"{foreign_text.name(name)} {value:g}"
    if result.image:
        yield f"image {foreign_text.name(result.image)} {foreign_text.name(result.image_digest or '')}".rstrip()
    if result.model:
        yield f"model {foreign_text.name(result.model)}"
    for name, count in result.usage.items():
        yield f"{count:,} {foreign_text.name(name).replace('_', ' ')}"
    for step in result.steps:
        rewards = ", ".join(f"{foreign_text.name(name)} {value:g}" for name, value in step.rewards.items())
        yield f"step {foreign_text.name(step.name)}: {rewards or 'no verdict'}"
    yield from _use(result)
    if result.is_repeat:
        yield "repeat of a task that failed; counts in no rate"
    if result.infrastructure_tries > 1:
        yield f"{result.infrastructure_tries} tries"
    yield from map(foreign_text.message_line, result.notes)


def _use(result: TrialResult) -> Iterator[str]:
    used, load = result.resources, result.load
    if used.peak_memory_bytes is not None:
        yield f"peak memory {used.peak_memory_bytes / 1024**2:,.0f} MiB"
    if used.cpu_s is not None:
        yield f"processor {numbers.seconds(used.cpu_s)}"
    if result.rate_limit_wait_s:
        yield f"waited {numbers.seconds(result.rate_limit_wait_s)} for a provider that limits the rate"
    if used.throttled_s:
        yield f"throttled {numbers.seconds(used.throttled_s)}"
    if kills := (used.oom_kills or 0) + (used.verifier_oom_kills or 0):
        yield f"{kills} processes killed for lack of memory"
    if load is not None and load.others is not None:
        yield f"others used {numbers.percent(load.others)} of its processors"


def _chart(
    title: str,
    tasks: Sequence[TaskReport],
    quantity: Callable[[TaskReport], float | None],
    format_value: Callable[[float | None], str],
) -> _Chart | None:
    """A chart of the tasks whose quantity is known; None if there are none."""
    known_values = [(value, task) for task in tasks if (value := quantity(task)) is not None]
    known_values.sort(key=lambda pair: -pair[0])
    if not known_values or not (highest := known_values[0][0]):
        return None
    group = -(-len(known_values) // _MAX_COLUMNS)
    groups = [known_values[start : start + group] for start in range(0, len(known_values), group)]
    width = _WIDTH / len(groups)
    columns = []
    for number, members in enumerate(groups):
        value = sum(pair[0] for pair in members) / len(members)
        passed = sum(task.rate or 0.0 for _, task in members) / len(members)
        top = round(_HEIGHT * (1 - value / highest))
        label = foreign_text.name(members[0][1].id) if group == 1 else f"{len(members)} tasks, mean"
        columns.append(
            _Column(
                round(number * width, 2), round(width * 0.86, 2), top, round(_HEIGHT - (_HEIGHT - top) * passed),
                f"{label}: {format_value(value)}, {numbers.percent(passed)} passed",
            )
        )  # fmt: skip
    note = "a column for each task" if group == 1 else f"a column for {group} tasks"
    return _Chart(title, format_value(highest), format_value(median(pair[0] for pair in known_values)), columns, note)
