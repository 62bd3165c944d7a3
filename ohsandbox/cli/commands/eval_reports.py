"""Results of `ohsandbox eval`: report files, the summary on stdout, the exit code, `report` and `compare`."""

# ruff: noqa: T201 - a summary is printed

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.entrypoint import BAD_INPUT, INFRASTRUCTURE, MODEL, NOT_REACHED, PASSED
from ohsandbox.cli.rendering.tables import print_table
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.evaluation.reports import load_report, read_results, write_reports
from ohsandbox.evaluation.reports.comparison import compare_reports, comparison_html
from ohsandbox.evaluation.reports.markdown import markdown_report
from ohsandbox.evaluation.reports.numbers import dollars, percent, probability, seconds
from ohsandbox.private_files import write_atomically
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.cli.options.per_command import CompareOptions
    from ohsandbox.evaluation.reports.comparison import Comparison, TaskComparison
    from ohsandbox.evaluation.reports.report import Report

_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable that names a file of GitHub Actions; text appended to the file is shown with the job."""
MAX_NAMED = 8
"""Largest number of flaky tasks that the summary names."""
_SHOWN_CHANGES = frozenset({"broken", "worsened", "fixed", "improved", "changed_task", "no_verdict"})


def exit_code_of_run(report: Report, min_pass_rate: float) -> int:
    """Return the exit code of a run.

    Where several hold, the first of these: 4, the infrastructure failed in a trial; 5, the model did; 2, a task is
    invalid; 1, the pass rate is below min_pass_rate, no trial counts, or not all are finished. After 4 and 5 the same
    command goes on with the trials that are left; 2 stays until the task is fixed. A shard without tasks is 0.
    """
    for outcome, code in (("infrastructure_error", INFRASTRUCTURE), ("model_error", MODEL), ("invalid", BAD_INPUT)):
        if report.outcomes.get(outcome):  # type: ignore[call-overload] # a literal each
            return code
    if not report.complete:
        return NOT_REACHED
    if not report.trials_planned:
        return PASSED
    reached = report.pass_rate is not None and report.pass_rate.value >= min_pass_rate
    return PASSED if reached else NOT_REACHED


def report_results(paths: list[Path], output: Path | None = None, *, is_whole: bool = False) -> Report:
    """Write the reports of one results directory, or of several shards, to output, and print the summary.

    Args:
        paths: the results directories.
        output: where the reports go; None is the first of paths.
        is_whole: see `read_results`.
    """
    source, directory = read_results(paths, is_whole=is_whole), output or paths[0]
    write_reports(source, directory)
    _append_step_summary(source.report)
    for line in _summary(source.report):
        print(safe_line(line))
    print(f"Reports: {safe_line(directory / 'report.html')}, report.json, junit.xml, summary.md", flush=True)
    return source.report


def compare_runs(a: Path, b: Path, how: CompareOptions) -> int:
    """Compare two runs; return 1 if B is worse."""
    comparison = compare_reports(load_report(a).report, load_report(b).report, names=(str(a), str(b)))
    if how.html is not None:
        how.html.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(how.html, comparison_html(comparison).encode("utf-8", "replace"), durable=False)
    if how.as_json:
        print(comparison.model_dump_json(indent=2))
    else:
        _print_comparison(comparison)
    regressions = comparison.changes.get("broken", 0)
    too_many = how.max_regressions is not None and regressions > how.max_regressions
    if comparison.is_worse(how.alpha):
        say(f"B is worse than A: {probability(comparison.effect.p_worse)}, at most {how.alpha:g}.")
    if too_many:
        are = "is" if regressions == 1 else "are"
        say(f"{counted(regressions, 'task')} {are} broken, more than {how.max_regressions}.")
    return NOT_REACHED if too_many or comparison.is_worse(how.alpha) else PASSED


def _append_step_summary(report: Report) -> None:
    if not (path := os.environ.get(_STEP_SUMMARY)):
        return
    try:
        with Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(markdown_report(report))
    except OSError as error:
        say(f"The summary cannot be appended to {path} ({_STEP_SUMMARY}): {error.strerror}. It is in summary.md.")


def _summary(report: Report) -> Iterator[str]:
    if not report.complete:
        missing = f"; missing shards: {', '.join(report.missing_shards)}" if report.missing_shards else ""
        yield f"Partial: {report.trials_finished} of {report.trials_planned} trials are finished{missing}."
    yield ", ".join(f"{count} {name}" for name, count in report.outcomes.items() if count) or (
        "No trial is finished." if report.trials_planned else "No tasks."
    )
    if (rate := report.pass_rate) is not None:
        interval = f"{rate.confidence:.0%} interval {percent(rate.low)} to {percent(rate.high)}"
        number = f"{counted(rate.tasks, 'task')}, {counted(rate.trials, 'trial')}"
        yield f"Pass rate {percent(rate.value)} ({interval}; {number})"
    if len(report.pass_at) > 1:
        yield ", ".join(f"pass@{k} {percent(value)}" for k, value in report.pass_at.items())
    if not report.trials:
        return
    totals = report.totals
    cost = "" if totals.cost_usd is None else f", {dollars(totals.cost_usd)}"
    per_task = totals.cost_per_solved_task_usd
    solved = "" if per_task is None else f" ({dollars(per_task)} per solved task)"
    again = totals.infrastructure_retries
    retries = f", {again} infrastructure {'retry' if again == 1 else 'retries'}" if again else ""
    yield f"{seconds(totals.span_s)}{cost}{solved}{retries}"
    if flaky := [task.id for task in report.tasks if task.is_flaky]:
        more = f" and {len(flaky) - MAX_NAMED} more" if len(flaky) > MAX_NAMED else ""
        yield f"Flaky: {', '.join(flaky[:MAX_NAMED])}{more}"


def _print_comparison(comparison: Comparison) -> None:
    effect = comparison.effect
    for letter, run in (("A", comparison.a), ("B", comparison.b)):
        rate = "no verdict" if run.pass_rate is None else percent(run.pass_rate.value)
        partial = "" if run.complete else ", partial"
        agent = ", ".join(filter(None, [run.agent, *run.models]))
        print(f"{letter}  {rate}  {counted(run.trials, 'trial')}{partial}  {safe_line(agent)}  {safe_line(run.name)}")
    for name, (value_a, two) in comparison.settings.items():
        print(f"   {safe_line(name)}: {safe_line(value_a)} -> {safe_line(two)}")
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in comparison.changes.items()))
    rows = [_row(task) for task in comparison.tasks if task.change in _SHOWN_CHANGES]
    if rows:
        print()
        print_table(("TASK", "CHANGE", "A", "B", "TIME", "COST"), rows)
        print()
    print(
        f"B - A: {percent(effect.value, signed=True)}, {effect.confidence:.0%} interval "
        f"{percent(effect.low, signed=True)} to {percent(effect.high, signed=True)}, over "
        f"{counted(comparison.compared_tasks, 'task')}"
    )
    print(f"Two-sided {probability(effect.p_value)}; that B is worse: {probability(effect.p_worse)} ({effect.test})")
    for title, pair, shown in (
        ("Time", comparison.seconds_per_task, seconds),
        ("Cost", comparison.cost_usd_per_task, dollars),
    ):
        if pair is not None:
            print(f"{title} per task: {shown(pair.a)} -> {shown(pair.b)}")


def _row(task: TaskComparison) -> tuple[str, ...]:
    apart = (
        shown(None if a is None or b is None else b - a, signed=True)
        for a, b, shown in ((task.seconds_a, task.seconds_b, seconds), (task.cost_usd_a, task.cost_usd_b, dollars))
    )
    return (task.id, task.change.replace("_", " "), percent(task.rate_a), percent(task.rate_b), *apart)
