import os
import subprocess
import sys
from pathlib import Path

import pytest

from ohsandbox import errors
from ohsandbox.cli.entrypoint import DEBUG_VARIABLE, Terminated, code_of, exit_code_of, line_of_error
from tests.cli.conftest import Invoke


def _raise(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OhsandboxError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.ConversationOpenError("x"), 3),
        (errors.EngineUnavailable("x"), 4),
        (errors.ImageUnavailable("x"), 4),
        (errors.ModelError("x"), 5),
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
)
def test_each_error_has_the_exit_code_of_the_architecture(error: BaseException, code: int) -> None:
    assert code_of(error) == code
    assert exit_code_of(lambda: _raise(error)) == code


def test_an_error_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(lambda: _raise(errors.UsageError("first\nsecond \x1b[31mred\x07")))
    assert capsys.readouterr().err == "ohsandbox: first second \\u{1b}[31mred\\u{7}\n"


def test_debug_shows_the_traceback_before_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    exit_code_of(lambda: _raise(errors.UsageError("wrong")))
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last)")
    assert err.endswith("ohsandbox: wrong\n")


def test_the_debug_option_works_before_and_behind_the_command(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--debug", "run", "--autoresume"], ["run", "--autoresume", "--debug"]):
        monkeypatch.setenv(DEBUG_VARIABLE, "")
        assert "Traceback" in invoke(*arguments).err


def test_a_fault_of_ours_says_so_and_how_to_see_more() -> None:
    assert line_of_error(ZeroDivisionError("division by zero")) == (
        "ZeroDivisionError: division by zero. This is a fault of ohsandbox; --debug shows where."
    )


def test_a_usage_error_names_the_command_to_ask(invoke: Invoke) -> None:
    ended = invoke("run", "--zzz")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "ohsandbox: No such option: --zzz. Try `ohsandbox run --help`.\n"


def test_an_unknown_command_is_a_usage_error(invoke: Invoke) -> None:
    assert invoke("nonsense").code == 2


def test_the_result_of_a_command_is_its_exit_code() -> None:
    assert exit_code_of(lambda: 7) == 7
    assert exit_code_of(lambda: None) == 0


def test_ctrl_c_is_said_whatever_the_command_was_doing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ohsandbox.cli.commands.run.begin_early", interrupted)
    ended = invoke("run", "x", "--model", "scripted:demo", "--runtime", "cli", "--no-tui")
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "ohsandbox: Interrupted.")


def test_ctrl_c_while_the_command_is_imported_is_said(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-m", "ohsandbox", "run", "x"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "ohsandbox: Interrupted.\n")


LOST = """
import os, pty, subprocess, sys
from ohsandbox.cli.entrypoint import exit_code_of
kind = sys.argv[1]
far, near = pty.openpty() if kind == "terminal" else os.pipe()
os.dup2(near, 1)
os.close(near)
os.close(far)

def command():
    if kind == "process":
        process = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        process.wait()
        os.write(process.stdin.fileno(), b"x")
    print("hello", flush=True)

if kind == "process":
    os.dup2(2, 1)
sys.exit(exit_code_of(command))
"""


@pytest.mark.parametrize(("lost", "code"), [("terminal", 129), ("pipe", 143), ("process", 1)])
def test_output_that_nobody_gets_has_an_exit_code_of_its_own_and_a_process_that_has_ended_has_not(
    lost: str, code: int
) -> None:
    ended = subprocess.run([sys.executable, "-c", LOST, lost], capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("Broken pipe" in ended.stderr) is (lost == "process")


def test_an_error_of_a_disk_is_told_although_the_writer_of_stdin_has_ended() -> None:
    program = (
        "import errno; from ohsandbox.cli import entrypoint\n"
        "def f(): raise OSError(errno.EIO, 'x')\n"
        "raise SystemExit(entrypoint.exit_code_of(f))"
    )
    ended = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert b"ohsandbox: x." in ended.stderr
