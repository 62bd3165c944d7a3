"""Looking at, interrupting and killing what runs in a sandbox: the scripts of processes.sh, through a worker."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Protocol

from ohsandbox.runtime.process.quoting import quote

if TYPE_CHECKING:
    from ohsandbox.runtime.process.worker import CallResult
    from ohsandbox.runtime.shell.session import ShellSession

SWEEPS = 5
"""A tree that forks while it is killed is swept again; a fork bomb is the container's pids limit's business."""


_SECONDS = re.compile(rb"\d{1,12}(?:\.\d{1,9})?")

TICKS_PER_S = 100
"""Of process start times, for user space, on every Linux (proc(5))."""
SLACK_TICKS = 2
"""Start times are cut to a tick, on either side."""


def ticks_at(snippets: RunSnippet, moment: float) -> int:
    """The sandbox's clock, in ticks since its kernel booted, at moment, a time.monotonic() of ours; or a little before.

    Asked for each time: a new worker may take 60 ms until it answers, and an engine may be on another machine.
    """
    said = _SECONDS.match(snippets(b"read -r ohs_up _ </proc/uptime;echo $ohs_up").stdout)
    ago = time.monotonic() - moment
    return int((float(said[0] if said else 0) - ago) * TICKS_PER_S) - SLACK_TICKS


INTERRUPT = b"\x03"
"""VINTR of every terminal that we open."""


class RunSnippet(Protocol):
    """Runs one line of worker shell as the session's user."""

    def __call__(self, body: bytes) -> CallResult:
        """Run body to its end."""


class CommandProcesses:
    """What one command of one session runs, and the signals to it."""

    def __init__(self, snippets: RunSnippet, shell: ShellSession, *, mark: str, limit_kib: int = 0) -> None:
        """Mark is in the environment of all that the session starts; limit_kib is the command's alone, 0 for none."""
        self._snippets, self._shell = snippets, shell
        self._mark, self._limit_kib = mark, limit_kib
        self._began = time.monotonic()
        self._since: int | None = None

    def probe(self) -> str:
        """'idle', 'input', 'busy', 'spins' or 'gone': what the session's terminal is doing."""
        directory = self._shell.directory
        return self._ask(b"ohs_probe %d %s %s" % (self._shell.pid, quote(f"{directory}/tty"), quote(f"{directory}/in")))

    def tidy_terminal(self) -> None:
        """Put the terminal back into the mode in which the session began."""
        self._ask(b"ohs_tidy %s" % quote(f"{self._shell.directory}/tty"))

    def interrupt(self) -> None:
        """SIGINT to the terminal's foreground group, as Ctrl-C does, whatever mode the terminal is in."""
        self._ask(b"ohs_signal INT %d" % self._shell.pid)

    def type_interrupt(self) -> None:
        """Ctrl-C as the terminal makes it of its character, again where it fell between two commands and was lost."""
        front = self._ask(b"ohs_front %d" % self._shell.pid)
        self._shell.type(INTERRUPT)
        if front.isdecimal():
            directory = self._shell.directory
            words = (self._shell.pid, quote(f"{directory}/tty"), quote(f"{directory}/in"), int(front))
            self._ask(b"ohs_insist %d %s %s %d" % words)

    def signal_all(self, signal: str) -> list[int]:
        """Signal to all of the command's processes, and whom it went to."""
        if self._since is None:
            self._since = ticks_at(self._snippets, self._began)
        words = (signal.encode(), self._shell.pid, quote(self._mark), self._since, 1024 * self._limit_kib)
        said = self._ask(b"ohs_kill %s %d %s %d %d" % words)
        return [int(word) for word in said.split() if re.fullmatch(r"\d{1,10}", word)]

    def sweep(self) -> list[int]:
        """SIGKILL until nothing of the command is left, and who that was."""
        killed: list[int] = []
        for _ in range(SWEEPS):
            found = self.signal_all("KILL")
            killed += found
            if not found:
                break
        return killed

    def _ask(self, body: bytes) -> str:
        return self._snippets(body).stdout.decode("utf-8", "replace").strip()
