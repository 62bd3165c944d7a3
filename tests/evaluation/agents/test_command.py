"""Any program as the agent: how it is told, and what becomes of what it prints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents import CommandAgent
from ohsandbox.evaluation.agents.command import AgentSetupFailed
from ohsandbox.secrets import Secrets

if TYPE_CHECKING:
    from ohsandbox import CLIRuntime
    from ohsandbox.evaluation.agents import Assignment
    from ohsandbox.runtime import ExecResult

Assign = Callable[..., "Assignment"]
TOKEN = "token-of-no-value-0123456789"


@pytest.mark.parametrize("command", ['printf %s "$OHSANDBOX_INSTRUCTION"', 'cat "$OHSANDBOX_INSTRUCTION_FILE"', "cat"])
def test_the_instruction_comes_by_variable_file_and_stdin(sandbox: CLIRuntime, assign: Assign, command: str) -> None:
    instruction = "Write 'two'\nlines, $HOME and \"all\": ä"
    assignment = assign(instruction)
    assert CommandAgent(command).work(sandbox, assignment).fault is None
    assert (assignment.directory / "output.txt").read_text("utf-8") == instruction


def test_what_it_prints_is_masked_however_it_comes(sandbox: CLIRuntime, assign: Assign) -> None:
    assignment = assign()
    halves = 'printf %s "${TOKEN%0123456789}"; sleep 0.3; echo 0123456789; echo "$TOKEN" >&2; printf "\\377"'
    agent = CommandAgent(halves, secrets=Secrets({"TOKEN": TOKEN}))
    assert agent.work(sandbox, assignment).fault is None
    assert (assignment.directory / "output.txt").read_text("utf-8") == "<secret:TOKEN>\n<secret:TOKEN>\n\ufffd"


def test_an_exit_code_is_the_agents_fault(sandbox: CLIRuntime, assign: Assign) -> None:
    report = CommandAgent("exit 3").work(sandbox, assign())
    assert (report.fault, report.message) == ("ExitCode", "it ended with exit code 3")


def test_a_program_that_is_not_in_the_image_is_told(sandbox: CLIRuntime, assign: Assign) -> None:
    report = CommandAgent("no-such-agent").work(sandbox, assign())
    assert report.message == "it ended with exit code 127 (a command was not found)"


def test_out_of_time_it_is_killed(sandbox: CLIRuntime, assign: Assign) -> None:
    assert CommandAgent("echo begun; sleep 60").work(sandbox, assign(timeout_s=0.5)).fault == "Timeout"


def test_cancelled_it_is_killed_and_its_log_kept(sandbox: CLIRuntime, assign: Assign) -> None:
    assignment = assign()
    threading.Timer(0.5, assignment.cancel.set).start()
    assert CommandAgent("trap '' TERM INT; echo begun; sleep 60").work(sandbox, assignment).fault == "Cancelled"
    assert (assignment.directory / "output.txt").read_text() == "begun\n"


def test_a_setup_that_fails_says_nothing_of_the_agent(
    sandbox: CLIRuntime, assign: Assign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_as_anybody(argv: list[str], **how: Any) -> ExecResult:
        return run(argv, **{**how, "user": None})  # this host has no users

    run = sandbox.run
    monkeypatch.setattr(sandbox, "run", run_as_anybody)
    assignment = assign()
    with pytest.raises(AgentSetupFailed, match=r"exit code 1\. See agent/setup\.txt"):
        CommandAgent("true", setup="echo no network; exit 1").work(sandbox, assignment)
    assert (assignment.directory / "setup.txt").read_text() == "no network\n"


def test_an_instruction_that_fits_no_variable_is_refused(sandbox: CLIRuntime, assign: Assign) -> None:
    with pytest.raises(UsageError, match="has 131072 bytes"):
        CommandAgent("cat").work(sandbox, assign("x" * 131072))


def test_the_longest_instruction_arrives(sandbox: CLIRuntime, assign: Assign) -> None:
    assignment = assign("x" * (128 * 1024 - len("OHSANDBOX_INSTRUCTION=") - 1))
    assert CommandAgent("sh -c 'echo \"${#OHSANDBOX_INSTRUCTION}\"'").work(sandbox, assignment).fault is None
    assert (assignment.directory / "output.txt").read_text() == "131049\n"


def test_the_settings_name_variables_and_mask_their_values() -> None:
    agent = CommandAgent(f"agent --token {TOKEN}", setup="npm i", secrets=Secrets({"TOKEN": TOKEN}))
    assert agent.settings == {"command": "agent --token <secret:TOKEN>", "setup": "npm i", "env": ["TOKEN"]}
