"""CLIRuntime's processes, whatever its own process was started as."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime import local
from ohsandbox.runtime.local import LocalChannel, remove_left_directories

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
import sys
from ohsandbox import CLIRuntime
with CLIRuntime(sys.argv[1], bubblewrap=False, quiet=True) as runtime:
    for signal in ("INT", "QUIT", "HUP"):
        print(runtime.execute(f"sh -c 'kill -{signal} $$; echo lives'").exit_code)
    print(runtime.run(["sh", "-c", "kill -INT $$; echo lives"]).cause)
    runtime.execute("sleep 60", idle_timeout_s=0.3)
    print(runtime.execute("C-c", is_input=True, timeout_s=10).exit_code)
    print(runtime.run(["no-such-program"]).exit_code)
"""


@pytest.mark.parametrize("started", ["trap '' INT QUIT HUP; exec", "exec"])
def test_ctrl_c_ends_a_command_though_the_host_program_ignores_it(tmp_path: Path, started: str) -> None:
    words = ["sh", "-c", f'{started} "$@"', "sh", sys.executable, "-c", PROGRAM, str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout.splitlines() == ["130", "131", "129", "signal 2", "130", "127"], told.stderr


def test_a_reader_ends_with_its_channel_though_other_files_take_the_descriptors() -> None:
    channel = LocalChannel(["sleep", "60"], tty=False, env={"PATH": os.environ["PATH"]}, workdir="/")
    reader = threading.Thread(target=channel.read, daemon=True)
    reader.start()
    time.sleep(0.2)
    channel.close()
    taken = [os.pipe() for _ in range(4)]
    channel.kill()
    reader.join(60)
    for pair in taken:
        os.close(pair[0])
        os.close(pair[1])
    assert not reader.is_alive()


def test_close_ends_what_another_thread_runs_with_all_that_it_started(tmp_path: Path) -> None:
    runtime, said = CLIRuntime(tmp_path, bubblewrap=False, quiet=True).start(), queue.SimpleQueue[bytes]()
    words = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    with ThreadPoolExecutor() as pool:
        call = pool.submit(runtime.run, words, on_output=lambda _, data: said.put(data))
        child = Path("/proc", said.get(timeout=30).decode().strip())
        runtime.close()
        with pytest.raises(SandboxUnavailable, match="was closed while the process ran"):
            call.result(60)
    assert not child.exists() or "zombie" in (child / "status").read_text()


AFTER_MAIN = """
import sys, threading
from ohsandbox import CLIRuntime
def work():
    threading.main_thread().join()
    with CLIRuntime(sys.argv[1], bubblewrap=False, quiet=True) as runtime:
        print(runtime.execute("echo lives").output, end="")
threading.Thread(target=work).start()
"""


def test_a_thread_that_outlives_the_main_one_can_still_start_a_shell(tmp_path: Path) -> None:
    words = [sys.executable, "-c", AFTER_MAIN, str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == "lives\n", told.stderr


def zombies() -> set[str]:
    """Children of ours that have ended and that nobody has waited for."""
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(os.getpid())], capture_output=True, check=False)
    return {line.split()[0] for line in listed.stdout.decode().splitlines() if line.split()[1].startswith("Z")}


@pytest.mark.slow
def test_no_shell_or_worker_that_ended_stays_a_zombie(tmp_path: Path) -> None:
    before = zombies()
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        runtime.execute("exit 3")
        runtime.execute("kill -9 $$")
        runtime.execute("sleep 9", timeout_s=0.3)
        runtime.run(["sh", "-c", "sleep 0.5 &"])
        runtime.run(["sleep", "9"], timeout_s=0.3)
        runtime.execute("true", session="closed")
        runtime.close_session("closed")
        deadline = time.monotonic() + 60
        while zombies() - before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert zombies() <= before
    deadline = time.monotonic() + 60
    while zombies() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert zombies() <= before


KILLED_HOST = """
import os, signal, sys
from ohsandbox import CLIRuntime
runtime = CLIRuntime(sys.argv[1], bubblewrap=False, quiet=True).start()
print(runtime.execute("seq 600000").output_path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_whole_outputs_go_with_their_runtime_or_after_a_kill_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as alive:
        kept = alive.execute("seq 600000").output_path
        assert kept is not None
        environment = {**os.environ, "TMPDIR": str(place)}
        ended = subprocess.run(
            [sys.executable, "-c", KILLED_HOST, str(tmp_path)], env=environment, capture_output=True, check=False
        )
        left = Path(ended.stdout.decode().strip())
        assert (ended.returncode, left.parent.parent, Path(kept).parent.parent) == (-9, place, place)
        assert remove_left_directories(dry_run=True) == [left.parent]
        with CLIRuntime(tmp_path, bubblewrap=False, quiet=True):
            assert not left.parent.exists()
        assert alive.read_bytes(kept).endswith(b"\n600000\n")
    assert list(place.iterdir()) == []


REMOVED_HOST = """
import os, shutil, signal, sys
from ohsandbox import CLIRuntime
runtime = CLIRuntime(sys.argv[1], bubblewrap=False, quiet=True).start()
assert runtime.execute("exec 7>pipe").exit_code == 0
shutil.rmtree(runtime.state_dir)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_shell_that_ends_after_its_host_makes_no_directory_again(tmp_path: Path) -> None:
    """As after a kill, if the next runtime removes what is left before the shell has noticed it."""
    place = tmp_path / "tmp"
    place.mkdir()
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "pipe", "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as pipe:
        environment = {**os.environ, "TMPDIR": str(place)}
        ended = subprocess.run([sys.executable, "-c", REMOVED_HOST, str(tmp_path)], env=environment, check=False)
        assert ended.returncode == -9
        os.set_blocking(pipe.fileno(), True)
        assert pipe.read() == b"", "the shell has ended"
    assert list(place.iterdir()) == []


def test_a_directory_that_another_process_removes_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    open_ = os.open

    def open_late(path: Any, flags: int, *more: int, **options: Any) -> int:
        if Path(path).name.startswith(local._STATE_PREFIX) and path not in made:
            made.append(path)
            if len(made) == 1:
                Path(path).rmdir()
        return open_(path, flags, *more, **options)

    monkeypatch.setattr(local, "remove_left_directories", list)
    monkeypatch.setattr(os, "open", open_late)
    with CLIRuntime(quiet=True) as runtime:
        assert [str(path) for path in made[1:]] == [runtime.state_dir]


@pytest.mark.parametrize(
    "use",
    [lambda host: host.execute("true"), lambda host: host.run(["true"]), lambda host: host.read_bytes("/etc/passwd")],
    ids=["execute", "run", "read_bytes"],
)
def test_a_runtime_that_was_not_started_says_what_to_do(use: Callable[[CLIRuntime], object]) -> None:
    with pytest.raises(SandboxUnavailable, match=r"not started; call start\(\) or use `with`"):
        use(CLIRuntime())


def test_no_start_up_or_history_file_of_the_user_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.runtime.shell.session.START_S", 1.0)
    names = (".bashrc", ".bash_profile", ".profile", ".bash_history", ".inputrc")
    for name in names:
        os.mkfifo(tmp_path / name)  # who opens it waits for ever
    home = {"HOME": str(tmp_path), "ENV": str(tmp_path / ".profile"), "BASH_ENV": str(tmp_path / ".bashrc")}
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True, env=home) as runtime:
        told = runtime.execute("echo ${HISTFILE-unset}; exit 3", timeout_s=10)
        assert (told.output, told.exit_code) == ("unset\n", 3)
        assert runtime.execute("env | grep HIST", timeout_s=10).output == ""


def test_a_shell_that_starts_slowly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.runtime.shell.session.START_S", 0.0)
    open_channel = CLIRuntime.open_channel

    def open_late(self: CLIRuntime, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.1)
        return open_channel(self, *arguments, **options)

    monkeypatch.setattr(CLIRuntime, "open_channel", open_late)
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        assert runtime.execute("echo ok").output == "ok\n"


def test_an_empty_path_is_named_at_the_first_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.runtime.shell.session.START_S", 1.0)
    with (
        CLIRuntime(tmp_path, bubblewrap=False, quiet=True, env={"PATH": ""}) as runtime,
        pytest.raises(SandboxUnavailable, match=r"PATH, .* is empty\. Use an image that sets a PATH"),
    ):
        runtime.execute("echo ok")


def test_a_shell_that_died_with_a_sandbox_that_is_back_already_is_told_as_restarted(tmp_path: Path) -> None:
    with CLIRuntime(tmp_path, bubblewrap=False, quiet=True) as runtime:
        runtime.execute("true")
        runtime._forget()  # as another thread does that brings the sandbox back
        told = runtime.execute("kill -9 $$")
        assert told.exit_code is None
        assert "The sandbox was restarted" in str(told.notice)
        assert runtime.execute("kill -9 $$").exit_code == 137
