"""`ohsandbox eval`: an agent on every task of a directory, in isolated sandboxes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ohsandbox.cli.eval_agents import make_agent
from ohsandbox.cli.eval_reports import exit_code, report_results
from ohsandbox.cli.eval_validate import read_tasks
from ohsandbox.cli.rendering.eval_progress import open_progress
from ohsandbox.cli.rendering.text import hide, say
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.evaluation.runner import Run, RunPlan, Shard, select
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.cli.options import EvalOptions, RunOptions
    from ohsandbox.evaluation.executor import TrialExecutor


def run_tasks(paths: Sequence[Path], how: EvalOptions, what: RunOptions) -> int:
    """Run them, and say what came of it."""
    tasks = read_tasks(paths)
    agent = make_agent(how, what)
    hide(agent.secrets.masker)
    shard = None if how.shard is None else Shard(*map(int, how.shard.split("/")))
    plan = RunPlan(
        select(tasks, patterns=how.filters or (), shard=shard), agent, attempts=how.attempts,
        concurrent=how.concurrent, infrastructure_tries=how.infrastructure_retries + 1,
        repeat_failed=how.repeat_failed, shard=shard,
        timeout_multiplier=how.timeout_multiplier, fail_fast=how.fail_fast,
        separate_verifier=how.verifier == "separate", ca_bundle=_ca_bundle(how, what),
        image_budget_bytes=how.image_budget,
    )  # fmt: skip
    progress = open_progress(no_tui=how.no_tui)
    run = Run(plan, how.output, tell=progress, executor=_executor(how))
    try:
        with progress:
            run()
    except (UsageError, EngineUnavailable):
        raise  # nothing has begun: the directory is another process's, or no engine answers
    except BaseException:  # Ctrl-C, or an engine that went away: what is known is told all the same
        with contextlib.suppress(OSError, UsageError):
            report_results([how.output])
            say("The same command goes on with the trials that are left.")
        raise
    return exit_code(report_results([how.output]), how.min_pass_rate)


def _executor(how: EvalOptions) -> TrialExecutor | None:
    if how.engine == "local":
        if how.address is not None:
            raise UsageError("--address is the address of a Ray cluster. Remedy: add --engine ray.")
        return None
    from ohsandbox.evaluation.ray_executor import RayExecutor  # noqa: PLC0415 - an extra, and slow

    return RayExecutor(how.concurrent, address=how.address, image_budget_bytes=how.image_budget)


def _ca_bundle(how: EvalOptions, what: RunOptions) -> str | None:
    """The flag, else the setting, as `run` has it."""
    bundle = how.ca_bundle or Settings.load(what.settings).ca_bundle
    return None if bundle is None else str(bundle)
