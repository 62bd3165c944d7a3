"""`ohsandbox eval`: an agent on every task of a directory, in isolated sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.cli.eval_agents import make_agent
from ohsandbox.cli.eval_reports import exit_code, report_results
from ohsandbox.cli.rendering.text import hide, say
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.progress import RateLimited, TrialEnded
from ohsandbox.evaluation.runner import Run, RunPlan, Shard, select

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.cli.options import EvalOptions, RunOptions
    from ohsandbox.evaluation.progress import RunEvent


def run_tasks(path: Path, how: EvalOptions, what: RunOptions) -> int:
    """Run them, and say what came of it."""
    loaded = load_tasks(path)
    if loaded.problems:
        for problem in loaded.problems:
            say(str(problem))
        raise UsageError(f"{len(loaded.problems)} problems in {path}: nothing was started. Remedy: mend them.")
    agent = make_agent(how, what)
    hide(agent.secrets.masker)
    shard = None if how.shard is None else Shard(*map(int, how.shard.split("/")))
    plan = RunPlan(
        select(loaded.tasks, patterns=how.filters or (), shard=shard), agent, attempts=how.attempts,
        concurrent=how.concurrent, infrastructure_tries=how.infrastructure_retries + 1,
        repeat_failed=how.repeat_failed, shard=shard,
        timeout_multiplier=how.timeout_multiplier, fail_fast=how.fail_fast,
    )  # fmt: skip
    run = Run(plan, how.output, tell=_tell)
    try:
        run()
    finally:  # also after Ctrl-C, and a failure in the middle: what is known is told
        report = report_results([how.output])
    return exit_code(report, how.min_pass_rate)


def _tell(event: RunEvent) -> None:
    if isinstance(event, RateLimited):
        say(f"{event.model} limits the rate of requests: all trials wait {event.wait_s:.0f} s")
    if not isinstance(event, TrialEnded):
        return
    result = event.result
    fault = f": {result.fault.message}" if result.fault else ""
    print(f"{result.outcome:<20} {result.task} #{result.attempt} {result.seconds:.1f} s{fault}", flush=True)  # noqa: T201
