"""The commands of `ohsandbox eval`, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohsandbox.cli.option_values import path
from ohsandbox.cli.options_commands import RunOptions
from ohsandbox.cli.options_eval import EVALUATED_MODEL, CompareOptions, EvalOptions, ValidateOptions
from ohsandbox.cli.typer_options import command, new_app, option

evaluation = new_app(
    "eval",
    runs_by_default=True,
    help="Evaluate an agent on tasks, each in a fresh sandbox: `ohsandbox eval TASKS`.",
    epilog="Exit codes: 0 pass rate reached, 1 not reached, 2 a task or option is invalid, 4 engine or sandbox failed, "
    "5 model or provider failed.",
)


@evaluation.callback(invoke_without_command=True)
def _evaluation(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


Tasks = Annotated[
    list[Path],
    typer.Argument(metavar="TASKS...", help="A task, a list of tasks in .jsonl or .yaml, or a directory of tasks."),
]


@command(evaluation, "run")
def run_evaluation(
    tasks: Tasks,
    how: EvalOptions,
    what: Annotated[RunOptions, EVALUATED_MODEL],
) -> int:
    """Run the trials that have no result yet. The word `run` may be left out."""
    from ohsandbox.cli.eval import run_tasks

    return run_tasks(tasks, how, what)


@command(evaluation, "validate")
def validate_evaluation(tasks: Tasks, how: ValidateOptions) -> int:
    """Check tasks: read them strictly, then run the solution, which must pass, and nothing, which must not.

    Exit codes: 0 all are valid, 1 one is not, 2 one cannot be read or carried out, 4 engine or sandbox failed.
    """
    from ohsandbox.cli.eval_validate import validate_tasks

    return validate_tasks(tasks, how)


@command(evaluation, "schema")
def print_evaluation_schema() -> int:
    """Print the JSON Schema of a task in a .jsonl or .yaml list."""
    from ohsandbox.cli.eval_validate import print_schema

    return print_schema()


@command(evaluation, "report")
def report_evaluation(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directory; several are shards of one run.")
    ],
    *,
    output: Path | None = option(
        "Where the reports go.  [default: the first DIR]", "DIR", flags=["--output", "-o"], parser=path
    ),
    min_pass_rate: float | None = option(
        "Exit as `eval` does with this option, and with 1 if a shard is missing.  [default: exit with 0]",
        "RATE", min=0, max=1,
    ),
) -> int:  # fmt: skip
    """Write report.json, junit.xml, summary.md and report.html anew from results."""
    from ohsandbox.cli.eval_reports import exit_code, report_results

    report = report_results(directories, output, is_whole=True)
    return 0 if min_pass_rate is None else exit_code(report, min_pass_rate)


@command(evaluation, "compare")
def compare_evaluations(
    before: Annotated[Path, typer.Argument(metavar="A", help="Results directory or report.json, as it was.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Results directory or report.json, as it is now.")],
    how: CompareOptions,
) -> int:
    """Compare two runs task by task. Exit code 1: B is worse by more than chance; 2: they cannot be compared."""
    from ohsandbox.cli.eval_reports import compare_runs

    return compare_runs(before, after, how)
