"""What only a process of its own can show: signals, pipes, stdin."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Start, WriteScript

ON_HOST = ("--runtime", "cli", "--no-tui")


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        if process.poll() is not None:
            pytest.fail(process.communicate()[0].decode())
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_command_and_all_it_started(
    start: Start, write_script: WriteScript, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    model = write_script(("wait", "echo $$ > pid; sleep 61.25"))
    process = start("run", "hi", "--model", model, "--workspace", str(tmp_path), *ON_HOST)
    _wait_for(tmp_path / "pid", process)
    process.send_signal(number)
    assert process.wait(60) == code
    found = subprocess.run(["pgrep", "-f", "^sleep 61.25"], capture_output=True, check=False)
    assert not found.stdout


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_with_143(start: Start, write_script: WriteScript) -> None:
    model = write_script(*[("on", "sleep 0.2; echo x")] * 20, ("done", None))
    process = start("run", "hi", "--model", model, *ON_HOST)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert process.wait(60) == 143


def test_a_dash_reads_the_task_from_stdin(start: Start, write_script: WriteScript) -> None:
    process = start("run", "-", "--model", write_script(("hello", None)), *ON_HOST, stdin=subprocess.PIPE)
    out, _ = process.communicate(b"what it is\n", timeout=30)
    assert (process.returncode, b"user     what it is" in out) == (0, True)


@pytest.mark.slow
def test_a_dash_with_nothing_behind_it_is_a_usage_error(start: Start) -> None:
    assert start("run", "-", "--model", "scripted:demo", *ON_HOST).wait(60) == 2


def test_without_a_task_each_line_of_stdin_is_a_message(start: Start, write_script: WriteScript) -> None:
    model = write_script(("first answer", None), ("second answer", None), ("never", None))
    process = start("run", "--model", model, *ON_HOST, stdin=subprocess.PIPE)
    out, err = process.communicate(b"one\n\ntwo\n/exit\nthree\n", timeout=30)
    assert process.returncode == 0
    assert out.index(b"first answer") < out.index(b"user     two") < out.index(b"second answer")
    assert b"never" not in out
    assert b"Finished" in out[out.index(b"second answer") :] + err, "/exit finishes the conversation"


def test_the_demo_on_this_host_says_that_it_is_scripted_and_leaves_no_file(start: Start, tmp_path: Path) -> None:
    process = start("demo", *ON_HOST, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"scripted model" in out
    assert b"FAILED (failures=1)" in out
    assert not list(tmp_path.glob("ohsandbox-demo*"))
