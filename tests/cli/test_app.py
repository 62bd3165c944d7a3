import re

import pytest

import ohsandbox
from tests.cli.conftest import Invoke


def test_the_version_is_that_of_the_package(invoke: Invoke) -> None:
    code, said, failed = invoke("--version")
    assert (code, failed) == (0, "")
    assert re.fullmatch(rf"ohsandbox {re.escape(ohsandbox.__version__)}( \([0-9a-f]{{12}}\))?\n", said)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_command_the_help_is_shown(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    ended = invoke(*arguments)
    assert ended.code == 0
    assert "Exit codes" in ended.out


@pytest.mark.parametrize("command", ["run", "demo", "exec", "ps", "gc", "doctor", "tools"])
def test_every_command_has_help(invoke: Invoke, command: str) -> None:
    ended = invoke(command, "--help")
    assert ended.code == 0
    assert f"ohsandbox {command}" in ended.out


def test_every_documented_flag_is_there(invoke: Invoke) -> None:
    helped = invoke("run", "--help").out
    flags = "--no-tui --autoresume --settings --model --api-key --tool-choice --base-url --workspace --network --keep"
    assert not [flag for flag in [*flags.split(), "--attach", "--image", "--ca-bundle"] if flag not in helped]


def test_help_has_examples_and_every_command_under_a_heading(invoke: Invoke) -> None:
    helped = invoke("--help").out
    assert helped.count("\n    ohsandbox ") + helped.count("\n    ANSWER=$(ohsandbox ") == 3
    assert "\nCommands:\n" not in helped, "a new command needs its place in `panels` of cli/app.py"


@pytest.mark.parametrize(
    "words",
    ["conversations show", "conversations export", "diff", "undo", "redo", "fork", "apply", "confirm", "approvals"],
)
def test_without_an_id_last_is_meant_and_where_there_is_none_the_line_says_so(invoke: Invoke, words: str) -> None:
    ended = invoke(*words.split())
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "ohsandbox run" in ended.err


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("words", ["ps", "gc", "top --json"])
def test_no_command_without_the_flag_is_told_to_use_it(invoke: Invoke, words: str) -> None:
    told = invoke(*words.split()).err
    assert "Start the engine" in told
    assert "--runtime" not in told


@pytest.mark.parametrize("words", ["top", "diff", "undo", "cost", "confirm", "conversations show"])
def test_the_help_leads_to_the_command_that_answers_a_question(invoke: Invoke, words: str) -> None:
    assert f": {words}." in " ".join(invoke("--help").out.split())
    assert invoke(*words.split(), "--help").code == 0


def test_numbers_alone_are_events_of_the_last_conversation(invoke: Invoke) -> None:
    assert "Start one: ohsandbox run TASK" in invoke("diff", "3", "7").err
    assert "No conversation '2026112'" in invoke("diff", "2026112", "7").err


@pytest.mark.parametrize("words", ["conversations list", "conversations ls", "branches list"])
def test_who_asks_a_group_for_its_list_is_told_that_the_group_alone_is_the_list(invoke: Invoke, words: str) -> None:
    ended = invoke(*words.split())
    assert ended.code == 2
    assert f"`ohsandbox {words.split(maxsplit=1)[0]}` alone lists them." in ended.err
