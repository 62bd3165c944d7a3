"""What goes on in a sandbox whose host process was killed: nothing that somebody waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAYS, ENDS = f"sleep 71{os.getpid()}", f"sleep 72{os.getpid()}"
"""Of this run of the tests alone: a container's processes are seen among the machine's."""

HOST = f"""
import sys
from ohsandbox import CLIRuntime, DockerRuntime
image, command = sys.argv[1:]
runtime = CLIRuntime(bubblewrap=False, quiet=True) if image == "cli" else DockerRuntime(image, keep=True)
runtime.start()
print(runtime.id, flush=True)
runtime.execute("{STAYS} >/dev/null 2>&1 &")
runtime.execute(command)
"""
BUSY = {
    "a loop": f"while :; do {ENDS}; done",
    "ignores HUP": f"trap '' HUP; {ENDS} | cat",
    "a stubborn program": f"sh -c \"trap '' HUP INT TERM; while :; do {ENDS}; done\"",
}
CASES = [("cli", "a loop")]  # on a person's machine what ignores the end of its terminal outlives it, as everywhere
CASES += [(f"ohsandbox-base:{image}", busy) for image in ("debian", "busybox") for busy in BUSY]
QUICK = (CASES[0], ("ohsandbox-base:debian", "a stubborn program"))


class Host(NamedTuple):
    """A process that holds a sandbox and waits for a command."""

    process: subprocess.Popen[str]
    sandbox: str


@pytest.fixture
def begin() -> Iterator[Callable[[str, str], Host]]:
    """`begin(place, command)` starts one; what it leaves behind is ended."""
    begun: list[Host] = []

    def start(place: str, command: str) -> Host:
        process = subprocess.Popen([sys.executable, "-c", HOST, place, command], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        begun.append(Host(process, process.stdout.readline().strip()))
        return begun[-1]

    yield start
    for host in begun:
        host.process.kill()
        host.process.communicate()
        if not host.sandbox.startswith("cli"):
            subprocess.run(["docker", "rm", "-f", host.sandbox], check=True, capture_output=True)
    for pid in _pids(STAYS) + _pids(ENDS):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("place", "busy"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_what_runs_in_the_foreground_ends_with_its_host(
    begin: Callable[[str, str], Host], place: str, busy: str
) -> None:
    host = begin(place, BUSY[busy])
    _until(lambda: bool(_pids(ENDS)))
    host.process.send_signal(signal.SIGKILL)
    _until(lambda: not _pids(ENDS))
    if place != "cli":  # where the terminal hangs up, too, as that of a window that is closed
        assert len(_pids(STAYS)) == 1  # put into the background to stay


def _until(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.1)
    pytest.fail("it did not come to that")


def _pids(command: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ") == command.encode():
                found.append(int(entry.name))
    return found
