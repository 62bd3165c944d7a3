"""Inspect, interrupt and kill the processes of a sandbox: the functions of processes.sh, run by a worker."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Protocol

from ohsandbox.runtime.process.quoting import quote

if TYPE_CHECKING:
    from ohsandbox.runtime.process.worker import CallResult
    from ohsandbox.runtime.shell.session import ShellSession

SWEEPS = 5
"""Passes over a process tree that forks while it is killed; the container's pids limit stops a fork bomb."""


_SECONDS = re.compile(rb"\d{1,12}(?:\.\d{1,9})?")

TICKS_PER_S = 100
"""The unit of process start times in user space, on every Linux (proc(5))."""
SLACK_TICKS = 2
"""Start times are truncated to a tick, on both sides of the comparison."""


def ticks_at(snippets: RunSnippet, moment: float) -> int:
    """The sandbox's clock, in ticks since its kernel booted, at moment (our time.monotonic()) or slightly before.

    The sandbox is asked each time: a new worker may take 60 ms to answer, and an engine may be on another machine.
    """
    said = _SECONDS.match(snippets(b"read -r ohs_up _ </proc/uptime;echo $ohs_up").stdout)
    ago = time.monotonic() - moment
    return int((float(said[0] if said else 0) - ago) * TICKS_PER_S) - SLACK_TICKS


INTERRUPT = b"\x03"
"""The INTR character of every terminal that we open."""


class RunSnippet(Protocol):
    """Runs one line of worker shell as the session's user."""

    def __call__(self, body: bytes) -> CallResult:
        """Run body to its end."""


class CommandProcesses:
    """The processes of one command of a session, and the signals to them."""

    def __init__(self, snippets: RunSnippet, shell: ShellSession, *, mark: str, limit_kib: int = 0) -> None:
        """Mark is in the environment of the session's processes; limit_kib is the command's soft limit, 0 for none."""
        self._snippets, self._shell = snippets, shell
        self._mark, self._limit_kib = mark, limit_kib
        self._began = time.monotonic()
        self._since: int | None = None

    def probe(self) -> str:
        """Return what the session's terminal is doing: 'idle', 'input', 'busy', 'spins' or 'gone'."""
        directory = self._shell.directory
        return self._ask(b"ohs_probe %d %s %s" % (self._shell.pid, quote(f"{directory}/tty"), quote(f"{directory}/in")))

    def tidy_terminal(self) -> None:
        """Restore the terminal mode in which the session began."""
        self._ask(b"ohs_tidy %s" % quote(f"{self._shell.directory}/tty"))

    def interrupt(self) -> None:
        """Send SIGINT to the terminal's foreground process group, as Ctrl-C does, in any terminal mode."""
        self._ask(b"ohs_signal INT %d" % self._shell.pid)

    def type_interrupt(self) -> None:
        """Type the terminal's INTR character, and again if its signal fell between two commands and was lost."""
        front = self._ask(b"ohs_front %d" % self._shell.pid)
        self._shell.type(INTERRUPT)
        if front.isdecimal():
            directory = self._shell.directory
            words = (self._shell.pid, quote(f"{directory}/tty"), quote(f"{directory}/in"), int(front))
            self._ask(b"ohs_insist %d %s %s %d" % words)

    def signal_all(self, signal: str) -> list[int]:
        """Send signal to all processes of the command; return the ids of the processes it was sent to."""
        if self._since is None:
            self._since = ticks_at(self._snippets, self._began)
        words = (signal.encode(), self._shell.pid, quote(self._mark), self._since, 1024 * self._limit_kib)
        said = self._ask(b"ohs_kill %s %d %s %d %d" % words)
        return [int(word) for word in said.split() if re.fullmatch(r"\d{1,10}", word)]

    def sweep(self) -> list[int]:
        """Send SIGKILL until no process of the command is left; return the ids of the processes it was sent to."""
        killed: list[int] = []
        for _ in range(SWEEPS):
            found = self.signal_all("KILL")
            killed += found
            if not found:
                break
        return killed

    def _ask(self, body: bytes) -> str:
        return self._snippets(body).stdout.decode("utf-8", "replace").strip()
