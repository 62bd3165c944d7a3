"""mini-swe-agent's own agent does a task in a sandbox, and its environments' contract is kept."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from pydantic import ValidationError

from ohsandbox.errors import SandboxGone
from ohsandbox.integrations.mini_swe_agent import SUBMIT, OhsandboxEnvironment
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
NAME = "ohsandbox.integrations.mini_swe_agent.OhsandboxEnvironment"


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with FakeRuntime() as runtime:
        yield runtime


def _run(runtime: FakeRuntime, command: str, **options: Any) -> dict[str, Any]:
    return OhsandboxEnvironment(runtime=runtime).execute({"command": command}, **options)


@pytest.mark.docker
def test_the_default_agent_mends_a_bug_and_submits_the_patch(tmp_path: Path) -> None:
    environment = get_environment({"environment_class": NAME, "image": IMAGE, "env": {"LEVEL": "3"}})
    commands = [
        "printf 'def add(a, b):\\n    return a - b' > calc.py; python3 -Bc 'import calc; assert calc.add(2, 2) == 4'",
        "cp calc.py calc.old; sed -i 's/a - b/a + b/' calc.py; python3 -Bc 'import calc; assert calc.add(2, 2) == 4'",
        "exit $LEVEL",
        f"echo {SUBMIT}; diff calc.old calc.py | grep '^>'",
    ]
    model = DeterministicModel(outputs=[make_output("", [{"command": command}]) for command in commands])
    config = get_config_from_spec("default.yaml")["agent"]
    agent = DefaultAgent(model, environment, **config | {"cost_limit": 0.0, "output_path": tmp_path / "run.json"})
    try:
        ended = agent.run("Mend add.")
    finally:
        environment.cleanup()
    assert ended == {"exit_status": "Submitted", "submission": ">     return a + b\n"}
    told = [message["extra"]["returncode"] for message in agent.messages if "returncode" in message.get("extra", {})]
    assert told == [1, 0, 3]
    assert "Linux" in agent.messages[1]["content"]
    assert json.loads((tmp_path / "run.json").read_text())["info"]["config"]["environment_type"] == NAME


def test_each_command_has_a_shell_of_its_own_and_both_streams_are_one(runtime: FakeRuntime) -> None:
    _run(runtime, "export A=1; cd /")
    result = _run(runtime, "echo a$A; pwd >&2; exit 3")
    assert result == {"output": f"a\n{runtime.workdir}\n", "returncode": 3, "exception_info": ""}


def test_a_directory_and_variables_are_given_to_each_command(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED", "one")
    options = {"env": {"OWN": "two"}, "forward_env": ["FORWARDED", "MISSING"], "cwd": "/"}
    environment = OhsandboxEnvironment(runtime=runtime, **options)
    assert environment.execute({"command": "echo $FORWARDED $OWN; pwd"})["output"] == "one two\n/\n"
    assert environment.execute({"command": "pwd"}, cwd="/usr")["output"] == "/usr\n"


def test_a_timeout_ends_the_command_and_keeps_its_output(runtime: FakeRuntime) -> None:
    result = _run(runtime, "echo begun; sleep 600", timeout=1)
    assert (result["returncode"], result["output"].splitlines()[0]) == (-1, "begun")
    assert "timed out after 1 seconds" in result["exception_info"]
    assert result["extra"]["exception_type"] == "TimeoutExpired"


def test_a_missing_directory_is_told_and_ends_nothing(runtime: FakeRuntime) -> None:
    assert "/nowhere" in _run(runtime, "true", cwd="/nowhere")["exception_info"]


def test_only_success_submits(runtime: FakeRuntime) -> None:
    assert _run(runtime, f"echo {SUBMIT}; exit 1")["returncode"] == 1
    with pytest.raises(Submitted) as raised:
        _run(runtime, f"echo; echo {SUBMIT}; echo patch; echo more")
    assert raised.value.messages[0]["extra"]["submission"] == "patch\nmore\n"


def test_a_sandbox_that_is_gone_is_no_output(runtime: FakeRuntime) -> None:
    runtime.break_down(SandboxGone("gone"))
    with pytest.raises(SandboxGone):
        _run(runtime, "true")


def test_a_trajectory_does_not_hold_the_values_of_variables(runtime: FakeRuntime) -> None:
    environment = OhsandboxEnvironment(runtime=runtime, env={"TOKEN": "hidden-value"})
    assert "hidden-value" not in json.dumps(environment.serialize())


def test_an_unknown_key_is_refused(runtime: FakeRuntime) -> None:
    with pytest.raises(ValidationError, match="timeout_s"):
        OhsandboxEnvironment(runtime=runtime, timeout_s=3)


def test_cleanup_leaves_a_runtime_to_its_owner(runtime: FakeRuntime) -> None:
    OhsandboxEnvironment(runtime=runtime).cleanup()
    assert runtime.is_alive()


def test_an_interpreter_runs_the_command(runtime: FakeRuntime) -> None:
    environment = OhsandboxEnvironment(runtime=runtime, interpreter=["python3", "-c"])
    assert environment.execute({"command": "print(6 * 7)"})["output"] == "42\n"


@pytest.mark.parametrize("name", ["mini.yaml", "default.yaml", "swebench.yaml"])
def test_the_configurations_that_it_ships_are_taken(runtime: FakeRuntime, name: str) -> None:
    config = get_config_from_spec(name)["environment"] | {"cwd": ""}
    config.pop("environment_class", None)
    config["env"].pop("BASH_ENV", None)  # a file of the image, and here of this machine
    environment = OhsandboxEnvironment(runtime=runtime, **config)
    assert environment.execute({"command": "echo $PAGER"})["output"] == "cat\n"
