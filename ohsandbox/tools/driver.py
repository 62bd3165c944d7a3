"""`Driver`: runs a long-lived program inside the sandbox that answers requests.

In both directions a message is four bytes of length (big-endian) and a JSON array `[number, object]`; an answer has
the number of its request. A program's first message has the number 0 and holds its `pid`. Standard output is
reserved for the protocol; standard error holds the program's own output.
"""

from __future__ import annotations

import json
import threading
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.tools.driver_life import MAX_MESSAGE_BYTES, Life

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime

START_TIMEOUT_S = 60.0
"""From the program's start to its first message; IPython takes 0.5 s on an idle machine."""

NO_PROGRAM = 127
"""A shell's exit code for a program that it cannot find (POSIX 2.8.2)."""

_START = 'cd "$1" && shift && exec "$@"'
_BOOT = (
    "import os,sys;"
    "sys.version_info>=(3,8)or sys.exit('Python 3.8 or newer is needed, and this is '+sys.version.split()[0]);"
    "requests=os.fdopen(os.dup(0),'rb');exec(requests.read(%d))"
)
"""Short, because `ps` shows it; standard input carries the rest."""
_INSIDE = files("ohsandbox.tools").joinpath("driver_inside.py")


class ProgramDied(ToolError):  # noqa: N818 - states the event
    """The program has ended, and its memory is lost; the next request starts a new one."""

    def __init__(self, message: str, *, status: int | None = None, tail: str = "", had_started: bool = True) -> None:
        """Status is the exit code if known, tail the end of its standard error."""
        super().__init__(message)
        self.status, self.tail, self.had_started = status, tail, had_started


class RequestTimedOut(ToolError):  # noqa: N818 - states the event
    """No answer in time. The program still works on it: `await_answer`, `interrupt` or `kill`."""


class Driver:
    """One program, started by the first request, and restarted by the first one after its death.

    Requests are answered one at a time; `interrupt`, `kill` and `close` may come from any thread meanwhile.
    """

    def __init__(
        self,
        runtime: Runtime,
        argv: Sequence[str],
        *,
        name: str = "The program",
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | int | None = None,
        preamble: bytes = b"",
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        """Create the driver; this starts nothing.

        Args:
            runtime: runs the program.
            argv: the program and its arguments, found by the sandbox's PATH.
            name: its name in messages.
            env: added to the sandbox's own.
            workdir: None is the runtime's.
            user: None is the sandbox's.
            preamble: written to its standard input before the first request.
            on_stderr: called with its standard error as it arrives, in a thread of the driver.
        """
        self._runtime = runtime
        self._argv = ["/bin/sh", "-c", _START, "sh", workdir or runtime.workdir, *argv]
        self._name, self._user, self._env = name, user, dict(env or {})
        self._preamble = preamble
        self._on_stderr = on_stderr or (lambda _: None)
        self._lock = threading.RLock()
        self._signalling = threading.Lock()
        self._life: Life | None = None
        self._death: ProgramDied | None = None
        self._number = 0
        self._closed = False

    @classmethod
    def python(cls, runtime: Runtime, source: str, *, interpreter: str = "python3", **options: Any) -> Driver:
        """A driver of a program in Python 3.8 or newer, which calls `ready`, `receive` and `send` (driver_inside.py).

        Its standard input is empty, and its prints go to standard error. Options are those of the class.
        """
        inside, program = _INSIDE.read_bytes(), source.encode()
        preamble = inside + len(program).to_bytes(4, "big") + program
        return cls(runtime, [interpreter, "-c", _BOOT % len(inside)], preamble=preamble, **options)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the running program reported at its start; empty while none runs."""
        life = self._life
        return dict(life.facts) if life is not None and life.alive else {}

    def take_death(self) -> ProgramDied | None:
        """A death that no request has raised, as between two requests; returned once.

        Raises:
            SandboxUnavailable: the sandbox died with it and could not be brought back.
        """
        with self._lock:
            self._bury()
            death, self._death = self._death, None
            return death

    # --- requests -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the program unless it runs.

        Raises:
            ProgramDied: it cannot be started, or did not report within START_TIMEOUT_S.
            UsageError: the driver was closed.
            SandboxUnavailable: the sandbox cannot serve.
        """
        with self._lock:
            self._living()

    def request(self, payload: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the program's answer. First awaits and drops an answer that an earlier request did not wait for.

        Raises:
            RequestTimedOut: no answer in timeout_s seconds, counted from when the program runs.
            ProgramDied: it ended meanwhile, could not be started, or broke the protocol and was killed.
            ToolError: the payload is larger than MAX_MESSAGE_BYTES; nothing was sent.
            UsageError: the driver was closed.
            SandboxUnavailable: the sandbox cannot serve and could not be brought back.
        """
        with self._lock:
            self._number += 1
            data = json.dumps([self._number, dict(payload)]).encode()
            if len(data) > MAX_MESSAGE_BYTES:
                raise ToolError(f"The request is {len(data)} bytes large; at most {MAX_MESSAGE_BYTES} can be sent.")
            life = self._living()
            deadline = time.monotonic() + timeout_s
            if life.pending is not None:
                self._answer(life, deadline, timeout_s)
            with self._signalling:  # an interrupt for the earlier request has arrived before this one is sent
                life.expect(self._number)
            life.write(len(data).to_bytes(4, "big") + data, deadline)
            return self._answer(life, deadline, timeout_s)

    def await_answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the answer to the request that timed out.

        Raises:
            RequestTimedOut: not yet.
            ProgramDied: it ended meanwhile, or has been killed.
            UsageError: no request waits for an answer.
            SandboxUnavailable: the sandbox died with it and could not be brought back.
        """
        with self._lock:
            life = self._life
            if life is None:
                raise self._death_of_the_last()
            if not life.owes:
                raise UsageError("No request waits for an answer; make one first")
            return self._answer(life, time.monotonic() + timeout_s, timeout_s)

    def _living(self) -> Life:
        if self._closed:
            raise UsageError(f"{self._name} was closed; make a new one")
        self._bury()
        if self._life is None:
            self._life = life = Life(self._runtime, self._argv, self._env, user=self._user, on_stderr=self._on_stderr)
            deadline = time.monotonic() + START_TIMEOUT_S
            life.write(self._preamble, deadline)
            try:
                life.facts = self._answer(life, deadline, START_TIMEOUT_S)
            except RequestTimedOut:
                self.kill()
                late = f"{self._name} did not start within {START_TIMEOUT_S:.0f} s. {life.last_words()}"
                raise ProgramDied(late.strip(), had_started=False) from None
            if self._closed:  # by another thread, which may have found no program to kill
                self.kill()
        if self._life is None:
            raise self._death_of_the_last()
        return self._life

    def _answer(self, life: Life, deadline: float, timeout_s: float) -> dict[str, Any]:
        answer = life.answer(deadline)
        if answer is not None:
            return answer
        if life.alive:
            raise RequestTimedOut(f"{self._name} gave no answer within {timeout_s:g} s and still works on it.")
        self._bury()
        raise self._death_of_the_last()

    # --- ending it ----------------------------------------------------------------------------

    def interrupt(self, *, group: bool = False) -> bool:
        """Send SIGINT to the program if it works on a request; with group, to its whole process group.

        The signal is sent before this returns, and never affects the next request. Returns whether it was sent.

        Raises:
            SandboxUnavailable: the sandbox cannot serve.
        """
        with self._signalling:
            life = self._life
            pid = life.facts.get("pid") if life is not None and life.alive and life.pending else None
            if not isinstance(pid, int) or pid <= 1:
                return False
            self._runtime.snippet(b"kill -INT %d 2>/dev/null" % (-pid if group else pid), user=self._user)
            return True

    def kill(self) -> None:
        """End the program and all its processes; the next request starts a new one."""
        life, self._life = self._life, None
        if life is not None:
            life.end()

    def close(self) -> None:
        """Kill the program and refuse further requests. Safe to call twice."""
        self._closed = True
        self.kill()

    def _bury(self) -> None:
        """Record the death of a program that ended by itself, and end its remaining processes."""
        life = self._life
        if life is None or life.alive:
            return
        self._life = None
        tail = life.tail.decode("utf-8", "replace")
        if life.fell_with_sandbox():
            life.let_go()
            self._runtime.snippet(b":", user=self._user)
            how = f"{self._name} was lost: the sandbox had ended. It was started again with its files."
        else:
            life.end()
            how = f"{self._name} {life.cause()}. {life.last_words()}"
        self._death = ProgramDied(how.strip(), status=life.status, tail=tail, had_started=bool(life.facts))

    def _death_of_the_last(self) -> ProgramDied:
        death, self._death = self._death, None
        return death or ProgramDied(f"{self._name} was stopped.")
