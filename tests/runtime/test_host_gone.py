"""What goes on in a sandbox whose host process was killed: nothing that somebody waited for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = """
import sys
from ohsandbox import CLIRuntime, DockerRuntime
image, command = sys.argv[1:]
runtime = CLIRuntime(bubblewrap=False, quiet=True) if image == "cli" else DockerRuntime(image, keep=True)
runtime.start()
print(runtime.id, flush=True)
runtime.execute("sleep 7101 >/dev/null 2>&1 &")
runtime.execute(command)
"""
BUSY = (
    "while :; do sleep 7102; done",
    "trap '' HUP; sleep 7102 | cat",
    "sh -c \"trap '' HUP INT TERM; while :; do sleep 7102; done\"",
)
PLACES = ("cli", *(pytest.param(f"ohsandbox-base:{name}", marks=pytest.mark.docker) for name in ("debian", "busybox")))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _containers()
    yield request.param
    if ours := _containers() - before:
        subprocess.run(["docker", "rm", "-f", *ours], check=True, capture_output=True)
    for pid in _pids("sleep 7101") + _pids("sleep 7102"):
        subprocess.run(["kill", "-9", pid], check=False)


@pytest.mark.parametrize("command", BUSY)
def test_what_runs_in_the_foreground_ends_with_its_host(place: str, command: str) -> None:
    if place == "cli" and "trap" in command:
        pytest.skip("what ignores the end of its terminal outlives it on this machine, as it does everywhere")
    host = subprocess.Popen([sys.executable, "-c", HOST, place, command], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    host.stdout.readline()
    _until(lambda: bool(_pids("sleep 7102")))
    host.send_signal(signal.SIGKILL)
    host.communicate()
    _until(lambda: not _pids("sleep 7102"))
    if place != "cli":  # where the terminal hangs up, too, as that of a window that is closed
        assert len(_pids("sleep 7101")) == 1  # put into the background to stay


def _until(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.1)
    pytest.fail("it did not come to that")


def _pids(command: str) -> list[str]:
    """A container's processes are the host's, too."""
    listed = subprocess.run(["pgrep", "-fx", command], capture_output=True, text=True, check=False)
    return listed.stdout.split()


def _containers() -> set[str]:
    try:
        listed = subprocess.run(["docker", "ps", "-aq"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return set()
    return set(listed.stdout.split())
