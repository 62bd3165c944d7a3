"""Waiting for a command: until it ends, waits for input, falls silent, matches, or runs out of time."""

from __future__ import annotations

import re
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.runtime.shell.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.shell.session import Call, ShellSession

FIRST_PROBE_S = 0.1
"""Silence before we look at what the processes do: most commands end sooner and are never looked at."""
SECOND_PROBE_S = 0.1
"""A verdict counts when a second look finds the same, without output between."""
PROBE_PERIOD_S = 0.5
"""Between looks at a command that is busy; a look costs about 1.5 ms in the sandbox."""
EXPECT_BYTES = 64 * 1024
"""How far back `expect` looks."""


class Outcome(Enum):
    """Why the waiting ended."""

    FINISHED = auto()
    LEFT = auto()
    """The shell itself has ended."""
    TIMEOUT = auto()
    IDLE = auto()
    EXPECTED = auto()
    INPUT = auto()
    LOST = auto()
    """The shell is through with this command and will never report it."""


class Wait(NamedTuple):
    """How long, and for what."""

    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    expect: str | None = None


class Watch:
    """One wait. Made anew for each `execute`."""

    def __init__(
        self,
        shell: ShellSession,
        call: Call,
        probe: Callable[[], str],
        wait: Wait,
        *,
        ignore_input: bool = False,
    ) -> None:
        """probe() says what the terminal's foreground does: 'idle', 'input', 'busy', 'spins' or 'gone'."""
        self._shell, self._call, self._probe = shell, call, probe
        self._deadline = None if wait.timeout_s is None else time.monotonic() + wait.timeout_s
        self._idle_timeout_s = wait.idle_timeout_s
        self._expect = re.compile(wait.expect) if wait.expect is not None else None
        self._ignore_input = ignore_input
        self._size = -1
        self._verdict = ""
        self._recovered = False

    def outcome(self) -> Outcome:
        """Block until one of the outcomes.

        Raises:
            SandboxUnavailable: the sandbox went away.
        """
        while True:
            outcome = self._until_probe()
            if outcome is None:
                outcome = self._judge(self._probe())
            if outcome is not None:
                return outcome

    def _until_probe(self) -> Outcome | None:
        with self._shell.changed:
            while (outcome := self._seen()) is None:
                now = time.monotonic()
                if now >= self._next_probe:
                    return None
                self._shell.changed.wait(max(0.0, min(self._next_probe, self._limit()) - now))
            return outcome

    def _seen(self) -> Outcome | None:
        if self._call.finished:
            return Outcome.FINISHED
        if not self._shell.alive:
            return Outcome.LEFT
        now = time.monotonic()
        if self._call.capture.size != self._size:
            self._size = self._call.capture.size
            self._quiet_since = now
            self._next_probe = now + FIRST_PROBE_S
            self._verdict = ""
            if self._matches():
                return Outcome.EXPECTED
        if self._deadline is not None and now >= self._deadline:
            return Outcome.TIMEOUT
        if self._idle_timeout_s is not None and now >= self._quiet_since + self._idle_timeout_s:
            return Outcome.IDLE
        return None

    def _limit(self) -> float:
        idle = self._quiet_since + self._idle_timeout_s if self._idle_timeout_s is not None else None
        return min(limit for limit in (self._deadline, idle, self._next_probe) if limit is not None)

    def _matches(self) -> bool:
        if self._expect is None:
            return False
        return bool(self._expect.search(clean(self._call.capture.last(EXPECT_BYTES))))

    def _judge(self, verdict: str) -> Outcome | None:
        if verdict == "gone":
            self._shell.reap()
        confirmed, self._verdict = verdict == self._verdict, verdict
        self._next_probe = time.monotonic() + (PROBE_PERIOD_S if verdict in ("busy", "spins") else SECOND_PROBE_S)
        if not confirmed:
            return None
        if verdict == "input" and not self._call.began:
            return Outcome.LOST  # it reads the terminal instead of its commands
        if verdict == "spins" and not self._shell.traps_exit:
            return Outcome.LOST  # half a second is long for a report
        if verdict == "input" and not self._ignore_input:
            return Outcome.INPUT
        if verdict == "idle":
            if self._recovered:
                return Outcome.LOST
            self._recovered, self._verdict = True, ""
            self._shell.recover()
        return None
