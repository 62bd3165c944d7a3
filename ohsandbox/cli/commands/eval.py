"""`ohsandbox eval`: run an agent on every task of a directory in isolated sandboxes; `eval validate` checks tasks."""

# ruff: noqa: T201 - a verdict for each task is printed
from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.entrypoint import BAD_INPUT, INFRASTRUCTURE, NOT_REACHED, PASSED
from ohsandbox.cli.options.per_command import EVALUATED_MODEL, RunOptions, ValidateOptions
from ohsandbox.cli.rendering.eval_progress import open_progress
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import hide, safe_line, say
from ohsandbox.errors import EngineUnavailable, UsageError
from ohsandbox.evaluation.agents import CommandAgent, NopAgent, OracleAgent, PredictionsAgent
from ohsandbox.evaluation.formats import load_tasks
from ohsandbox.evaluation.formats.inline import InlineTask
from ohsandbox.evaluation.results import COUNTED
from ohsandbox.evaluation.runner import Run, RunPlan, Shard, select_tasks
from ohsandbox.network.credentials.credentials import check_outside, parse_credentials
from ohsandbox.network.open_addresses import parse_exception
from ohsandbox.network.policy import NetworkPolicy
from ohsandbox.secrets import HiddenValues, Secrets, check_name
from ohsandbox.settings import Settings
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ohsandbox.cli.options.per_command import EvalOptions
    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.agents.own import OhsandboxAgent, ReplayAgent
    from ohsandbox.evaluation.executor import TrialExecutor
    from ohsandbox.evaluation.reports.report import Report
    from ohsandbox.evaluation.results import TrialResult
    from ohsandbox.evaluation.task import Task

_FOR_REPORTS = ("ohsandbox.cli.commands.eval_reports", "jinja2")


def read_tasks(paths: Sequence[Path]) -> list[Task]:
    """Read tasks, strictly.

    Raises:
        UsageError: a task is invalid; all problems have been printed.
    """
    loaded = load_tasks(paths)
    if loaded.problems:
        for problem in loaded.problems:
            say(str(problem))
        where = ", ".join(map(str, paths))
        found = counted(len(loaded.problems), "problem")
        raise UsageError(f"{found} in {where}: nothing was started. Fix them.")
    return loaded.tasks


def run_tasks(paths: Sequence[Path], how: EvalOptions, what: RunOptions) -> int:
    """Run the trials of these tasks and report the results."""
    tasks = read_tasks(paths)
    agent = make_agent(how, what)
    hide(agent.secrets.masker)
    shard = None if how.shard is None else Shard(*map(int, how.shard.split("/")))
    plan = RunPlan(
        select_tasks(tasks, patterns=how.filters or (), shard=shard), agent, attempts=how.attempts,
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
    from ohsandbox.cli.commands.eval_reports import exit_code_of_run  # noqa: PLC0415 - slow, imported while the first trials begin

    return exit_code_of_run(_report(how), how.min_pass_rate)


def _report(how: EvalOptions) -> Report:
    from ohsandbox.cli.commands.eval_reports import report_results  # noqa: PLC0415 - slow, imported while the first trials begin

    return report_results([how.output])


def _executor(how: EvalOptions) -> TrialExecutor | None:
    if how.engine == "local":
        if how.address is not None:
            raise UsageError("--address is the address of a Ray cluster. Add --engine ray.")
        return None
    from ohsandbox.evaluation.ray_executor import RayExecutor  # noqa: PLC0415 - an extra, and slow

    return RayExecutor(how.concurrent, address=how.address, image_budget_bytes=how.image_budget)


def _ca_bundle(how: EvalOptions, what: RunOptions) -> str | None:
    """Return the CA bundle of the flag, or else of the settings, as `run` does."""
    bundle = how.ca_bundle or Settings.load(what.settings).ca_bundle
    return None if bundle is None else str(bundle)


# --- the agent ------------------------------------------------------------------------------------

AGENTS = ("oracle", "nop", "ohsandbox", "command", "predictions", "replay:DIR")
_FLAGS = {"secrets": "--secret"}
"""Flags whose name differs from the field's name."""


def make_agent(how: EvalOptions, what: RunOptions) -> EvaluatedAgent:
    """Make the agent that the options name. An option that does not fit the agent is refused, never ignored.

    Raises:
        UsageError: the agent is unknown, does not have an option, or lacks something it needs.
    """
    default = RunOptions()
    for_model = [one.name for one in fields(RunOptions) if one.name in EVALUATED_MODEL]
    of_model = [name for name in for_model if getattr(what, name) != getattr(default, name)]
    of_command = [name for name in ("agent_command", "agent_env", "agent_setup") if getattr(how, name) is not None]
    name, _, recorded = (how.agent or _implied(how, what)).partition(":")
    if how.predictions is not None and name != "predictions":
        raise UsageError(f"--predictions is not for the agent {name!r}. Leave it out, or leave --agent out.")
    agent: EvaluatedAgent
    match name, recorded:
        case "oracle" | "nop", "":
            _refuse(name, [*of_model, *of_command])
            agent = OracleAgent() if name == "oracle" else NopAgent()
        case "ohsandbox", "":
            _refuse(name, of_command)
            agent = _own(what)
        case "command", "":
            _refuse(name, of_model)
            agent = _command(how)
        case "predictions", "" if how.predictions is not None:
            _refuse(name, [*of_model, *of_command])
            agent = PredictionsAgent(how.predictions)
        case "replay", directory if directory:
            _refuse(name, [*of_command, *(one for one in of_model if one in {"model", "api_key", "base_url"})])
            agent = _replay(what, Path(directory))
        case _:
            raise UsageError(f"Unknown agent {how.agent!r}. Name one of: {', '.join(AGENTS)}.")
    _set_network(agent, how)
    _set_credentials(agent, how.agent_credential or (), how.agent_network)
    for warning in agent.secrets.warnings:
        say(f"warning: {warning}")
    return agent


def _set_credentials(agent: EvaluatedAgent, flags: Sequence[str], network: str | None) -> None:
    """Pass these credentials to the agent's sandboxes; their values appear in no result file.

    Raises:
        UsageError: one is none, has no value here, or is given to the agent besides; or the network is another one.
    """
    if not flags:
        return
    if network not in {None, "allowlist"}:
        raise UsageError(f"--agent-credential and --agent-network {network} exclude each other. Leave one out.")
    found = parse_credentials(flags)
    check_outside(found, agent.secrets.environment())
    agent.credentials, agent.network = tuple(flags), "allowlist"
    agent.secrets = agent.secrets.hiding(HiddenValues((one.name, one.value) for one in found))


def _set_network(agent: EvaluatedAgent, how: EvalOptions | ValidateOptions) -> None:
    """Give the agent the network that the options name.

    Raises:
        UsageError: a host is not a valid allowlist rule, or the options contradict each other.
    """
    if how.agent_allow and how.agent_network == "none":
        raise UsageError(f"--agent-allow and --agent-network {how.agent_network} exclude each other. Leave one out.")
    if how.agent_network == "open":
        agent.allow = tuple(str(parse_exception(one)) for one in how.agent_allow or ())
        agent.network = "open"
    else:
        agent.allow = NetworkPolicy(how.agent_allow or ()).rules
        agent.network = "allowlist" if agent.allow else how.agent_network


def _implied(how: EvalOptions, what: RunOptions) -> str:
    if how.predictions is not None:
        return "predictions"
    if how.agent_command is not None:
        return "command"
    return "oracle" if what.model is None else "ohsandbox"


def _refuse(agent: str, names: Iterable[str]) -> None:
    for name in names:
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(f"{flag} is not for the agent {agent!r}. Leave it out, or name another agent with --agent.")


def _own(what: RunOptions) -> OhsandboxAgent:
    from ohsandbox.cli.settings.model_check import check_model_name  # noqa: PLC0415 - slow, and other agents ask no model from here
    from ohsandbox.cli.settings.run_settings import complete_settings, instructions_of, settings_of  # noqa: PLC0415 - slow, and other agents ask no model from here
    from ohsandbox.evaluation.agents.own import OhsandboxAgent  # noqa: PLC0415 - slow, and other agents ask no model from here

    settings = complete_settings(settings_of(what), person=False)
    if told := check_model_name(settings):
        say(f"warning: {told}")
    extensions = instructions_of(settings.instructions)
    return OhsandboxAgent(settings, extensions=extensions, tool_choice=what.tool_choice)


def _replay(what: RunOptions, directory: Path) -> ReplayAgent:
    from ohsandbox.cli.settings.run_settings import settings_of  # noqa: PLC0415 - slow, and only the agent `replay` needs it
    from ohsandbox.evaluation.agents.own import ReplayAgent  # noqa: PLC0415 - slow, and only the agent `replay` needs it

    return ReplayAgent(directory, settings_of(what))


def _command(how: EvalOptions) -> CommandAgent:
    if not (how.agent_command or "").strip():
        raise UsageError("The agent 'command' needs a command. Give one with --agent-command.")
    return CommandAgent(how.agent_command or "", setup=how.agent_setup, secrets=_variables(how.agent_env or ()))


def _variables(flags: Iterable[str]) -> Secrets:
    """Read variables given as `NAME=VALUE`, or as `NAME` with the value from our environment.

    Raises:
        UsageError: a name is invalid, or given twice, or its value is missing.
    """
    found: dict[str, str] = {}
    for flag in flags:
        name, is_given, value = flag.partition("=")
        if check_name(name) in found:
            raise UsageError(f"--agent-env {name} is given twice. Leave one out.")
        found[name] = value if is_given else os.environ.get(name, "")
        if not found[name]:
            raise UsageError(f"--agent-env {name} has no value. Set the variable, or write {name}=VALUE.")
    return Secrets(found)


# --- ohsandbox eval validate ----------------------------------------------------------------------

_VALID = "valid"


class _Proof(NamedTuple):
    """The two check trials of a task."""

    task: str
    oracle: str
    """Reward of the task's solution, or the trial's outcome if there is no reward."""
    nop: str
    """The same for the agent that does nothing."""
    finding: str
    code: int


def validate_tasks(paths: Sequence[Path], how: ValidateOptions) -> int:
    """Read the tasks, validate each one, and report the findings."""
    if how.static:
        _check_static(how)
    tasks = select_tasks(read_tasks(paths), patterns=how.filters or ())
    if how.static:
        print(f"{counted(len(tasks), 'task')} read: no problem")
        return PASSED
    directory = how.output or Path(tempfile.mkdtemp(prefix="ohsandbox-validate-"))
    oracle = _carried_out([one for one in tasks if _has_solution(one)], OracleAgent(), directory, how)
    nop = _carried_out(tasks, NopAgent(), directory, how)
    proofs = [prove(task, oracle.get(task.id), nop.get(task.id)) for task in tasks]
    if how.as_json:
        print_json({name: getattr(proof, name) for name in ("task", "oracle", "nop", "finding")} for proof in proofs)
    else:
        print_table(["TASK", "ORACLE", "NO-OP", "FINDING"], [proof[:4] for proof in proofs])
        print(f"{sum(not proof.code for proof in proofs)} of {counted(len(proofs), 'task')} valid")
    code = max(proof.code for proof in proofs)
    if how.output is None and code == PASSED:
        shutil.rmtree(directory)
    else:
        say(f"Results: {safe_line(directory)}")
    return code


def _check_static(how: ValidateOptions) -> None:
    """Refuse options that concern the sandboxes, or their results, of which --static has none."""
    default = ValidateOptions()
    of_sandboxes = ("output", "concurrent", "agent_network", "agent_allow", "timeout_multiplier", "as_json")
    if given := [name for name in of_sandboxes if getattr(how, name) != getattr(default, name)]:
        flag = "--json" if given[0] == "as_json" else f"--{given[0].replace('_', '-')}"
        raise UsageError(f"--static starts no sandbox, so {flag} has no effect. Leave one out.")


def print_task_schema() -> int:
    """Print the JSON Schema of a task in our own task lists."""
    schema = InlineTask.model_json_schema()
    print(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2))
    return PASSED


def prove(task: Task, oracle: TrialResult | None, nop: TrialResult | None) -> _Proof:
    """Validate a task by its two trials; None stands for a trial that was not carried out."""
    findings, code = list[str](), PASSED
    for result, what in ((oracle, "the solution"), (nop, "doing nothing")):
        if result is not None and result.outcome not in COUNTED:
            code = max(code, INFRASTRUCTURE if result.outcome == "infrastructure_error" else BAD_INPUT)
            findings.append(f"{what}: {_why(result)}")
        elif result is not None and (result is oracle) != (result.outcome == "pass"):
            findings.append("doing nothing passes" if result is nop else f"the solution does not pass: {_why(result)}")
        elif result is nop and result is not None and result.outcome == "verifier_error":
            findings.append(f"doing nothing gets no verdict: {_why(result)}")
    if not _has_solution(task):
        findings.insert(0, "no solution: nothing proves that it can be solved")
    if findings:
        code = max(code, NOT_REACHED)
    return _Proof(task.id, _cell(oracle), _cell(nop), "; ".join(findings) or _VALID, code)


def _cell(result: TrialResult | None) -> str:
    if result is None:
        return "-"
    return result.outcome if result.reward is None else f"{result.reward:g}"


def _why(result: TrialResult) -> str:
    told = f"{result.fault.kind} in {result.fault.phase}: {result.fault.message}" if result.fault else result.outcome
    return "; ".join([told, *result.notes])


def _has_solution(task: Task) -> bool:
    return all(step.solution is not None for step in task.steps)


def _carried_out(
    tasks: Sequence[Task], agent: EvaluatedAgent, directory: Path, how: ValidateOptions
) -> dict[str, TrialResult]:
    if not tasks:
        return {}
    _set_network(agent, how)
    plan = RunPlan(tasks, agent, concurrent=how.concurrent, timeout_multiplier=how.timeout_multiplier)
    say(f"{agent.name}: {counted(len(tasks), 'task')}")
    progress = open_progress(no_tui=how.no_tui)
    run = Run(plan, directory / agent.name, tell=progress)
    with progress:
        return {key.task: result for key, result in run().items()}
