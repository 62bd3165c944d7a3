"""Which agent `ohsandbox eval` asks, and what `ohsandbox eval validate` says of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from ohsandbox.cli.commands.eval import make_agent, print_task_schema, prove, read_tasks, validate_tasks
from ohsandbox.cli.options.per_command import EvalOptions, RunOptions, ValidateOptions
from ohsandbox.errors import UsageError
from ohsandbox.evaluation.results import Fault, TrialResult
from ohsandbox.evaluation.task import Solution, Step, Task, TaskEnvironment, Verifier

if TYPE_CHECKING:
    from ohsandbox.evaluation.results import Outcome


@pytest.mark.parametrize(
    ("how", "what", "name"),
    [
        ({}, {}, "oracle"),
        ({"agent": "nop"}, {}, "nop"),
        ({}, {"model": "scripted:demo"}, "ohsandbox"),
        ({"agent_command": "cat"}, {}, "command"),
        ({"agent": "command", "agent_command": "cat", "agent_network": "open"}, {}, "command"),
    ],
)
def test_the_agent_is_the_one_named_or_implied(how: dict[str, Any], what: dict[str, Any], name: str) -> None:
    agent = make_agent(EvalOptions(**how), RunOptions(**what))
    assert (agent.name, agent.network) == (name, how.get("agent_network"))


@pytest.mark.parametrize(
    ("how", "what", "said"),
    [
        ({"agent": "claude"}, {}, "Unknown agent 'claude'"),
        ({"agent": "replay"}, {}, "Unknown agent 'replay'"),
        ({"agent": "oracle:x"}, {}, "Unknown agent 'oracle:x'"),
        ({"agent": "oracle"}, {"model": "openai/x"}, "--model is not for the agent 'oracle'"),
        ({"agent": "nop"}, {"max_time_s": 3.0}, "--max-time-s is not for the agent 'nop'"),
        ({"agent": "ohsandbox", "agent_env": ["A=b"]}, {"model": "scripted:demo"}, "--agent-env is not for"),
        ({"agent_command": "cat"}, {"secrets": ["TOKEN"]}, "--secret is not for the agent 'command'"),
        ({"agent": "command"}, {}, "needs a command"),
        ({"agent": "replay:/nowhere"}, {"model": "openai/x"}, "--model is not for the agent 'replay'"),
        ({"agent": "replay:/nowhere"}, {}, "/nowhere holds no results"),
        ({"agent": "ohsandbox"}, {}, "No model is named"),
        ({"agent_command": "cat", "agent_env": ["UNSET_HERE"]}, {}, "--agent-env UNSET_HERE has no value"),
        ({"agent_command": "cat", "agent_env": ["A=1", "A=2"]}, {}, "--agent-env A is given twice"),
        ({"agent_command": "cat", "agent_env": ["PATH=/x"]}, {}, "cannot be named 'PATH'"),
    ],
)
def test_what_does_not_fit_is_refused(how: dict[str, Any], what: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_agent(EvalOptions(**how), RunOptions(**what))


def test_a_credential_stays_outside_and_gives_the_agent_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "sk-planted-0123456789")
    flag = "api.example.org=env:TOKEN"
    agent = make_agent(EvalOptions(agent_command="cat", agent_credential=[flag]), RunOptions())
    assert (agent.credentials, agent.network) == ((flag,), "allowlist")
    assert agent.settings["credentials"] == [flag]
    assert "TOKEN" not in agent.secrets.environment()
    assert agent.secrets.masker.mask("it is sk-planted-0123456789") == "it is <secret:TOKEN>"
    with pytest.raises(UsageError, match="--agent-credential and --agent-network open exclude each other"):
        make_agent(EvalOptions(agent_credential=[flag], agent_network="open"), RunOptions())
    with pytest.raises(UsageError, match="never enters a sandbox"):
        make_agent(EvalOptions(agent_command="cat", agent_env=["TOKEN"], agent_credential=[flag]), RunOptions())
    monkeypatch.delenv("TOKEN")
    with pytest.raises(UsageError, match="TOKEN"):
        make_agent(EvalOptions(agent_credential=[flag]), RunOptions())


def test_variables_of_the_command_come_from_the_flag_or_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "value of here")
    agent = make_agent(EvalOptions(agent_command="cat", agent_env=["HERE", "GIVEN=a=b"]), RunOptions())
    assert agent.secrets.environment() == {"HERE": "value of here", "GIVEN": "a=b"}


def test_our_agent_takes_settings_and_flags_as_run_does(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"model": "scripted:demo", "max_iterations": 9, "max_tokens": 5}))
    what = RunOptions(settings=settings, max_tokens=7, disable=["jupyter"])
    told = make_agent(EvalOptions(agent="ohsandbox"), what).settings
    assert (told["model"], told["limits"]["max_iterations"], told["limits"]["max_tokens"]) == ("scripted:demo", 9, 7)
    assert "execute_ipython_cell" not in told["tools"]


# --- eval validate: which tasks are valid, and how that ends --------------------------------------

IMAGE = "ohsandbox-base:debian"
GOOD = {
    "id": "good", "image": IMAGE, "prompt": "Copy it.", "files": {"a/in.txt": "1\n"},
    "solution": "cp a/in.txt a/out.txt", "check": "sh check.sh",
    "check_files": {"check.sh": "cmp a/out.txt a/in.txt\n"},
}  # fmt: skip


def result(outcome: Outcome, reward: float | None = None) -> TrialResult:
    fault = None if reward is not None else Fault(phase="verifier", kind="NoVerdict", message="why")
    return TrialResult(
        task="t", attempt=1, outcome=outcome, reward=reward, agent="x", task_digest="sha256:0", fault=fault
    )


def task(*, has_solution: bool = True) -> Task:
    solution = Solution(command="true") if has_solution else None
    step = Step(instruction="x", verifier=Verifier(command="true"), solution=solution)
    return Task(id="t", path=Path("/x"), format="inline", environment=TaskEnvironment(image="x"), steps=(step,))


@pytest.mark.parametrize(
    ("oracle", "nop", "finding", "code"),
    [
        (("pass", 1), ("fail", 0), "valid", 0),
        (("pass", 1), ("pass", 1), "doing nothing passes", 1),
        (("fail", 0.5), ("fail", 0), "the solution does not pass: fail", 1),
        (("pass", 1), ("verifier_error", None), "doing nothing gets no verdict: NoVerdict in verifier: why", 1),
        (("invalid", None), ("fail", 0), "the solution: NoVerdict in verifier: why", 2),
        (("invalid", None), ("infrastructure_error", None), "the solution: NoVerdict in verifier: why; doing", 4),
        (None, None, "valid", 0),
    ],
)
def test_a_task_is_judged_by_its_two_trials(oracle: Any, nop: Any, finding: str, code: int) -> None:
    proof = prove(task(), oracle and result(*oracle), nop and result(*nop))
    assert proof.finding.startswith(finding)
    assert proof.code == code


def test_without_a_solution_nothing_is_proven() -> None:
    proof = prove(task(has_solution=False), None, result("fail", 0))
    assert proof == ("t", "-", "0", "no solution: nothing proves that it can be solved", 1)


def test_problems_are_told_and_nothing_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"idd": "x"}\n')
    with pytest.raises(UsageError, match=r"problems in .*: nothing was started"):
        validate_tasks([tmp_path], ValidateOptions())
    told = capsys.readouterr().err
    assert "tasks.jsonl:1: id = 1: expected a valid string" in told
    assert "tasks.jsonl:2: unknown key 'idd': did you mean 'id'?" in told


def test_static_reads_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(GOOD))
    assert validate_tasks([tmp_path], ValidateOptions(static=True)) == 0
    assert capsys.readouterr().out == "1 task read: no problem\n"


def test_the_schema_takes_what_the_reader_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_task_schema() == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = {**GOOD, "limits": {"memory": "1G", "cpus": 1}, "network": {"agent": "open"}}
    jsonschema.validate(valid, schema)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(valid))
    assert [one.id for one in read_tasks([tmp_path])] == ["good"]
    for wrong in ({**GOOD, "x": 1}, {"id": "a"}, {**GOOD, "limits": {"cpus": 0}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.docker
def test_solutions_must_pass_and_doing_nothing_must_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [GOOD, {**GOOD, "id": "solved", "check": "true"}, {**GOOD, "id": "unsolvable", "check": "false"}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    how = ValidateOptions(output=tmp_path / "out", no_tui=True)
    assert validate_tasks([tmp_path / "tasks.jsonl"], how) == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["TASK", "ORACLE", "NO-OP", "FINDING"],
        ["good", "1", "0", "valid"],
        ["solved", "1", "1", "doing", "nothing", "passes"],
        ["unsolvable", "0", "0", "the", "solution", "does", "not", "pass:", "fail"],
        ["1", "of", "3", "tasks", "valid"],
    ]
    assert (tmp_path / "out/oracle/trials/good/1/result.json").exists()
