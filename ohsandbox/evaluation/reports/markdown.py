"""`summary.md`: a page for the job summary of a CI system, in GitHub's Markdown.

Names and messages stand in code spans, in which nothing is markup but a backtick, and a bar in a table; both are
replaced by characters that look alike. Output of programs is not shown at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.evaluation.reports import foreign_text
from ohsandbox.evaluation.reports.numbers import dollars, percent, seconds
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ohsandbox.evaluation.reports.report import Report
    from ohsandbox.evaluation.results import TrialResult

MARKDOWN_NAME = "summary.md"
MAX_BYTES = 1024**2 - 64 * 1024
"""GitHub refuses more than 1 MiB from one step, whose other commands may write a summary, too."""
MAX_MESSAGE_CHARS = 200
_MAX_FLAKY = 20
"""Most flaky tasks that are named."""
_INERT = str.maketrans({"`": "\N{MODIFIER LETTER GRAVE ACCENT}", "|": "\N{BROKEN BAR}", "\n": " "})


def markdown_report(report: Report) -> str:
    """Return the page: the numbers, then a row for each trial that did not pass, as many as fit into `MAX_BYTES`."""
    head = "\n".join(_head(report))
    rows = [_row(result) for result in report.trials if result.outcome != "pass" and not result.is_repeat]
    if not rows:
        return f"{head}\n"
    title = "\n### Did not pass\n\n| task | attempt | outcome | time | why |\n| --- | ---: | --- | ---: | --- |\n"
    return f"{head}\n{title}{_fitting(rows, MAX_BYTES - len((head + title).encode()))}"


def _head(report: Report) -> Iterator[str]:
    rate, totals = report.pass_rate, report.totals
    yield f"## Evaluation of {_code(report.agent_name)}: {percent(rate.value) if rate else 'no verdict'}"
    yield ""
    if not report.complete:
        yield f"**Partial: {report.trials_finished} of {report.trials_planned} trials are finished.**\n"
    if rate is not None:
        yield (
            f"Pass rate {percent(rate.value)}, {rate.confidence:.0%} interval {percent(rate.low)} to "
            f"{percent(rate.high)} ({rate.method}), over {counted(rate.tasks, 'task')} and "
            f"{counted(rate.trials, 'trial')}.\n"
        )
    yield "| | |\n| --- | --- |"
    counts = ", ".join(f"{count} {name}" for name, count in report.outcomes.items() if count)
    yield f"| outcomes | {counts or 'none'} |"
    if len(report.pass_at) > 1:
        yield f"| pass@k | {', '.join(f'{k}: {percent(value)}' for k, value in report.pass_at.items())} |"
    yield f"| time | {seconds(totals.span_s)}; {seconds(totals.seconds)} in trials |"
    if flaky := [task.id for task in report.tasks if task.is_flaky]:
        more = f" and {len(flaky) - _MAX_FLAKY} more" if len(flaky) > _MAX_FLAKY else ""
        yield f"| flaky | {', '.join(map(_code, flaky[:_MAX_FLAKY]))}{more} |"
    if totals.tokens:
        yield f"| tokens | {', '.join(f'{count:,} {_text(name)}' for name, count in totals.tokens.items())} |"
    if totals.cost_usd is not None:
        yield f"| cost | {dollars(totals.cost_usd)}, {dollars(totals.cost_per_solved_task_usd)} per solved task |"
    yield f"| infrastructure retries | {totals.infrastructure_retries} |"
    yield f"| model | {', '.join(map(_code, report.models)) or 'none'} |"
    yield f"| made by | {_text(report.made_by)} |"


def _row(result: TrialResult) -> str:
    reason = _code(foreign_text.reason(result), limit_chars=MAX_MESSAGE_CHARS)
    return f"| {_code(result.task)} | {result.attempt} | {result.outcome} | {seconds(result.seconds)} | {reason} |\n"


def _fitting(rows: Iterable[str], room_bytes: int) -> str:
    rows_kept, left_out, room = list[str](), 0, room_bytes - 100
    for row in rows:
        size = len(row.encode())
        if left_out or size > room:
            left_out += 1
        else:
            rows_kept.append(row)
            room -= size
    return "".join(rows_kept) + (f"\n{left_out} more are in the other reports.\n" if left_out else "")


def _code(text: str, *, limit_chars: int = foreign_text.MAX_NAME_CHARS) -> str:
    inert = foreign_text.message_line(text).translate(_INERT)
    shortened = inert if len(inert) <= limit_chars else f"{inert[: limit_chars - 1]}…"
    return f"`{shortened or ' '}`"


def _text(word: str) -> str:
    """A word of ours or a litellm's, without markup."""
    return "".join(character for character in word if character.isalnum() or character in " ._-")
