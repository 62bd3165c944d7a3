import pytest

import ohsandbox
from tests.cli.conftest import Invoke


def test_the_version_is_that_of_the_package(invoke: Invoke) -> None:
    assert invoke("--version") == (0, f"ohsandbox {ohsandbox.__version__}\n", "")


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


def test_every_flag_of_the_seed_document_is_there(invoke: Invoke) -> None:
    helped = invoke("run", "--help").out
    flags = "--no-tui --autoresume --settings --model --api-key --tool-choice --base-url --workspace --network --keep"
    assert not [flag for flag in [*flags.split(), "--attach", "--image", "--ca-bundle"] if flag not in helped]
