"""`ohsandbox eval`: an agent on every task of a directory, in isolated sandboxes."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from ohsandbox.cli.eval_agents import make_agent
from ohsandbox.cli.rendering.eval_progress import open_progress
from ohsandbox.cli.rendering.text import counted, hide, say
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.runner import Run, RunPlan, Shard, select
from ohsandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.cli.options_commands import RunOptions
    from ohsandbox.cli.options_eval import EvalOptions
    from ohsandbox.evaluation.executor import TrialExecutor
    from ohsandbox.evaluation.reports.report import Report
    from ohsandbox.evaluation.task import Task

_FOR_REPORTS = ("ohsandbox.cli.eval_reports", "jinja2")


def read_tasks(paths: Sequence[Path]) -> list[Task]:
    """Read tasks, strictly.

    Raises:
        UsageError: there is a problem; all problems have been told.
    """
    loaded = load_tasks(paths)
    if loaded.problems:
        for problem in loaded.problems:
            say(str(problem))
        where = ", ".join(map(str, paths))
        found = counted(len(loaded.problems), "problem")
        raise UsageError(f"{found} in {where}: nothing was started. Remedy: fix them.")
    return loaded.tasks


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
    threading.Thread(target=lambda: [import_module(name) for name in _FOR_REPORTS], name="reports", daemon=True).start()
    try:
        with progress:
            run()
    except (UsageError, EngineUnavailable):
        raise  # nothing has begun: the directory is another process's, or no engine answers
    except BaseException:  # Ctrl-C, or an engine that went away: what is known is told all the same
        with contextlib.suppress(OSError, UsageError):
            _report(how)
            say("The same command goes on with the trials that are left.")
        raise
    from ohsandbox.cli.eval_reports import exit_code  # noqa: PLC0415 - as in _report

    return exit_code(_report(how), how.min_pass_rate)


def _report(how: EvalOptions) -> Report:
    from ohsandbox.cli.eval_reports import report_results  # noqa: PLC0415 - imported while the first trials begin

    return report_results([how.output])


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
