"""Waiting until a command ends, waits for input, prints nothing, matches a pattern, or exceeds its time."""

from __future__ import annotations

import math
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S
from ohsandbox.runtime.shell.terminal import clean

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import regex

    from ohsandbox.runtime.shell.output import OutputRelay
    from ohsandbox.runtime.shell.running import ShellCommand
    from ohsandbox.runtime.shell.session import ShellSession

FIRST_PROBE_S = 0.1
"""Seconds of silence before the processes are probed: most commands end sooner and are never probed."""
SECOND_PROBE_S = 0.1
"""Seconds before the second probe, which confirms the first if there was no output between them."""
PROBE_PERIOD_S = 0.5
"""Seconds between probes of a busy command; a probe costs about 1.5 ms in the sandbox."""
BEGIN_S = 5.0
"""Seconds for a shell to begin a command, which normally takes 1 ms. A shell that stays busy runs something that the
agent set to run before every command, such as a PROMPT_COMMAND that cannot be unset."""
READ_CHARS_PER_S = 256 * 1024
"""Minimum rate at which a shell reads a long command before it runs it: 5 MiB take 0.5 s on an idle machine, but up to
10 s with twelve runnable processes on two processors. While it reads, the shell seems busy."""
_STOPPED_S = 1.0
"""Seconds by which a step takes too long where this process was stopped, as by Ctrl-Z, or its machine slept: that time
does not count, so that what arrived meanwhile is read before a limit applies."""
_CATCH_UP_S = 0.5
"""Seconds for the reader to take what arrived during a slow probe."""
_RECOVER_S = 1.0
"""Seconds for a shell that is asked for a missing report to send it: normally a millisecond. With 0.2 s and six
runnable processes per processor, 1 in 150 shells whose loop was ended by Ctrl-C was replaced."""
_RECOVER_PROBES = 8
"""Minimum number of probes that find the shell idle before it is given up: as many as fit into _RECOVER_S; on a busier
machine they take longer."""
_RECOVER_AGAIN = 3
"""Number of probes after which the shell is asked again: an interrupt that is repeated until it works (ohs_insist) may
discard a question."""
EXPECT_BYTES = 64 * 1024
"""Bytes at the end of the output in which `expect` searches."""
EXPECT_CHARS = 1000
"""Maximum length of `expect`: it may come from a model, and takes time and memory to compile."""
_EXPECT_S = 0.5
"""Time limit in seconds of one search: an ordinary pattern takes about 1 ms for EXPECT_BYTES, but `(x+x+)+y` takes
exponential time."""
EXPECT_PAUSE = 4
"""Pause between searches, in durations of the last one, so that searches use at most a fifth of a processor."""


class WaitOutcome(Enum):
    """The reason why waiting ended."""

    FINISHED = auto()
    LEFT = auto()
    """The shell itself has ended."""
    TIMEOUT = auto()
    CANCELLED = auto()
    IDLE = auto()
    YIELDED = auto()
    """The caller stopped waiting and leaves the command running."""
    EXPECTED = auto()
    INPUT = auto()
    LOST = auto()
    """The shell no longer runs this command and will never report it."""


class WaitOptions(NamedTuple):
    """How long to wait for a command, and for which events."""

    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    expect: str | None = None
    yield_s: float | None = None
    cancel: threading.Event | None = None


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def expectation(pattern: str) -> regex.Pattern[str]:
    """Compile pattern with the module `regex`, which has time limits and lets other threads run; `re` has neither.

    Raises:
        UsageError: the pattern is invalid or longer than EXPECT_CHARS.
    """
    import regex  # noqa: PLC0415 - takes 50 ms and is rarely needed

    if len(pattern) > EXPECT_CHARS:
        raise UsageError(f"expect has {len(pattern)} characters; give a pattern of at most {EXPECT_CHARS}")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UsageError(f"expect={pattern!r} is not a regular expression: {error}. Correct it.") from None


class CommandWait:
    """One wait for one command; each `execute` creates its own."""

    def __init__(
        self,
        shell: ShellSession,
        call: ShellCommand,
        probe: Callable[[], str],
        wait: WaitOptions,
        *,
        ignore_input: bool = False,
        relay: OutputRelay | None = None,
    ) -> None:
        """Store the arguments. probe() returns what the terminal does: 'idle', 'input', 'busy', 'spins' or 'gone'."""
        self._shell, self._call, self._probe = shell, call, probe
        self._cancel, self._relay, self._ignore_input = wait.cancel, relay, ignore_input
        now = time.monotonic()
        self._deadline = now + _or_never(wait.timeout_s)
        self._yield_at = now + _or_never(wait.yield_s)
        self._idle_timeout_s = _or_never(wait.idle_timeout_s)
        self._reads_until = now + len(call.text or call.command) / READ_CHARS_PER_S
        self._begins_until = self._reads_until + BEGIN_S
        self._expect = None if wait.expect is None else expectation(wait.expect)
        self._quiet_since = now
        self._look_at = math.inf
        """Time of the next search for `expect` in new output."""
        self._looked_until = 0.0
        self._size = -1
        self._verdict = ""
        self._due = now
        """When the present step of waiting should have ended."""
        self._caught_up_at = now
        self._lost_at: float | None = None
        self._idle_probes = 0
        self.notice = ""
        """Reason why the search for `expect` was given up; empty if it was not."""

    def outcome(self) -> WaitOutcome:
        """Block until there is an outcome, and return it.

        Raises:
            SandboxUnavailable: the sandbox is gone.
            ListenerFailed: the listener raised an exception.
        """
        while True:
            with self._shell.changed:
                while (outcome := self._seen()) is None:
                    now = time.monotonic()
                    due = max(min(self._look_at, self._next_probe), self._caught_up_at)
                    if now >= due or (self._relay is not None and self._relay.pending):
                        break  # release the lock to search, to probe or to relay: the reader continues meanwhile
                    look = math.inf if self._cancel is None else now + LOOK_EVERY_S
                    until = min(due, self._deadline, self._quiet_since + self._idle_timeout_s, self._yield_at, look)
                    self._due = max(until, now, self._caught_up_at)
                    self._shell.changed.wait(self._due - now)
            if self._relay is not None and self._relay.pending:
                self._relay.hand_on()
                self._due = time.monotonic()  # a slow listener's time counts
            if outcome is None and (began := time.monotonic()) >= min(self._look_at, self._next_probe):
                outcome = self._look() if began >= self._look_at else self._judge(self._probe())
                self._due = time.monotonic()
                if self._due - began > _STOPPED_S:  # its time counts, since an agent can make a probe slow
                    self._caught_up_at = self._due + _CATCH_UP_S
            if outcome is not None:
                return outcome

    def _seen(self) -> WaitOutcome | None:
        if self._call.finished:
            return WaitOutcome.FINISHED
        if not self._shell.alive:
            return WaitOutcome.LEFT
        now = time.monotonic()
        if (stopped_s := now - self._due) > _STOPPED_S:
            self._deadline += stopped_s
            self._yield_at += stopped_s
            self._quiet_since += stopped_s
        self._due = now
        if self._call.capture.size != self._size:
            self._size = self._call.capture.size
            self._quiet_since = now
            self._next_probe = now + FIRST_PROBE_S
            self._verdict = ""
            if self._expect is not None:
                self._look_at = min(self._look_at, max(now, self._looked_until))
        if now >= self._look_at or now < self._caught_up_at:
            return None  # search first, and read what has arrived, before any time limit applies
        cancelled = self._cancel is not None and self._cancel.is_set()
        limits = (
            (self._deadline, WaitOutcome.TIMEOUT),
            (now if cancelled else math.inf, WaitOutcome.CANCELLED),
            (self._yield_at, WaitOutcome.YIELDED),
            (self._quiet_since + self._idle_timeout_s, WaitOutcome.IDLE),
        )
        return next((outcome for at, outcome in limits if now >= at), None)

    def _look(self) -> WaitOutcome | None:
        """Search the output for `expect`."""
        began, self._look_at = time.monotonic(), math.inf
        if (expect := self._expect) is None:
            return None
        with self._shell.changed:
            tail = self._call.capture.last(EXPECT_BYTES)
        try:
            if expect.search(clean(tail), timeout=_EXPECT_S, concurrent=True):
                return WaitOutcome.EXPECTED
        except (TimeoutError, MemoryError):
            self.notice = (
                f"expect={expect.pattern!r} took more than {_EXPECT_S:g} s over the output and was given up; "
                "use one without nested repetition"
            )
            self._expect = None
        now = time.monotonic()
        self._looked_until = now + EXPECT_PAUSE * (now - began)
        return None

    def _judge(self, verdict: str) -> WaitOutcome | None:
        if verdict == "gone":
            self._shell.reap()
        confirmed, self._verdict = verdict == self._verdict, verdict
        self._next_probe = time.monotonic() + (PROBE_PERIOD_S if verdict in ("busy", "spins") else SECOND_PROBE_S)
        if not confirmed:
            return None
        late = verdict == "busy" and time.monotonic() >= self._begins_until
        if not self._call.began and (late or verdict == "input"):
            return WaitOutcome.LOST  # it reads the terminal or does something else instead of reading its command
        if verdict == "spins" and not self._shell.traps_exit and time.monotonic() >= self._reads_until:
            return WaitOutcome.LOST  # a report does not take half a second
        if verdict == "input" and not self._ignore_input:
            return WaitOutcome.INPUT
        if verdict == "idle":
            if self._lost_at is None:
                self._lost_at, self._verdict = time.monotonic() + _RECOVER_S, ""
                self._shell.recover()
            else:
                self._idle_probes += 1
                if self._idle_probes % _RECOVER_AGAIN == 0:
                    self._shell.recover()
                if time.monotonic() >= self._lost_at and self._idle_probes >= _RECOVER_PROBES:
                    return WaitOutcome.LOST
        return None
