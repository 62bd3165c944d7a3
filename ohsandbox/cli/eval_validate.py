"""`ohsandbox eval validate`: tasks are read, and then proven: a solution solves them, doing nothing does not."""

# ruff: noqa: T201 - a verdict for each task is printed
from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.eval import read_tasks
from ohsandbox.cli.eval_agents import take_network
from ohsandbox.cli.eval_reports import BAD_INPUT, INFRASTRUCTURE, NOT_REACHED, PASSED
from ohsandbox.cli.rendering.eval_progress import open_progress
from ohsandbox.cli.rendering.tables import print_json, print_table
from ohsandbox.cli.rendering.text import counted, safe_line, say
from ohsandbox.evaluation.agents import NopAgent, OracleAgent
from ohsandbox.evaluation.formats.inline import InlineTask
from ohsandbox.evaluation.results import COUNTED
from ohsandbox.evaluation.runner import Run, RunPlan, select

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.cli.options_eval import ValidateOptions
    from ohsandbox.evaluation.agents import EvaluatedAgent
    from ohsandbox.evaluation.results import TrialResult
    from ohsandbox.evaluation.task import Task

_VALID = "valid"


class Proof(NamedTuple):
    """What was found of a task."""

    task: str
    oracle: str
    """The reward of its solution, or the trial's outcome where there is none."""
    nop: str
    """The same of doing nothing."""
    finding: str
    code: int


def validate_tasks(paths: Sequence[Path], how: ValidateOptions) -> int:
    """Read the tasks, prove each, and say what was found."""
    tasks = select(read_tasks(paths), patterns=how.filters or ())
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


def print_schema() -> int:
    """Print the JSON Schema of a task in our own lists."""
    schema = InlineTask.model_json_schema()
    print(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2))
    return PASSED


def prove(task: Task, oracle: TrialResult | None, nop: TrialResult | None) -> Proof:
    """Judge a task by its two trials; of a trial that was not carried out, None."""
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
    return Proof(task.id, _cell(oracle), _cell(nop), "; ".join(findings) or _VALID, code)


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
    take_network(agent, how)
    plan = RunPlan(tasks, agent, concurrent=how.concurrent, timeout_multiplier=how.timeout_multiplier)
    say(f"{agent.name}: {counted(len(tasks), 'task')}")
    progress = open_progress(no_tui=how.no_tui)
    run = Run(plan, directory / agent.name, tell=progress)
    with progress:
        return {key.task: result for key, result in run().items()}
