"""`Driver`: a long-lived program of ours inside the sandbox that answers requests.

Both ways a message is four bytes of length (big-endian) and a JSON array `[number, object]`; an answer carries the
number of its request. A program's first message has the number 0 and holds its `pid`. Standard output is the
protocol's; what comes on standard error is the program's own talk.
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
"""What a shell says of a program that it cannot find (POSIX 2.8.2)."""

_START = 'cd "$1" && shift && exec "$@"'
_BOOT = (
    "import os,sys;"
    "sys.version_info>=(3,8)or sys.exit('Python 3.8 or newer is needed, and this is '+sys.version.split()[0]);"
    "requests=os.fdopen(os.dup(0),'rb');exec(requests.read(%d))"
)
"""Short, because `ps` shows it; the rest comes through standard input."""
_INSIDE = files("ohsandbox.tools").joinpath("driver_inside.py")


class ProgramDied(ToolError):  # noqa: N818 - said as it is
    """The program has ended, and what it held in memory is lost; the next request starts a new one."""

    def __init__(self, message: str, *, status: int | None = None, tail: str = "", had_started: bool = True) -> None:
        """Status is the exit code where it is known, tail the end of its standard error."""
        super().__init__(message)
        self.status, self.tail, self.had_started = status, tail, had_started


class RequestTimedOut(ToolError):  # noqa: N818 - said as it is
    """No answer in time. The program still works on it: `await_answer`, `interrupt` or `kill`."""


class Driver:
    """One program, started by the first request and again by the first one after its death.

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
        """Nothing is started yet.

        Args:
            runtime: where it runs.
            argv: what runs, found by the sandbox's PATH.
            name: what messages call it.
            env: added to the sandbox's own.
            workdir: None is the runtime's.
            user: None is the sandbox's.
            preamble: written to its standard input before the first request.
            on_stderr: told of its standard error as it comes, in a thread of the driver's.
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

        Its standard input is empty, and what it prints is standard error. Options are those of the class.
        """
        inside, program = _INSIDE.read_bytes(), source.encode()
        preamble = inside + len(program).to_bytes(4, "big") + program
        return cls(runtime, [interpreter, "-c", _BOOT % len(inside)], preamble=preamble, **options)

    @property
    def facts(self) -> dict[str, Any]:
        """What the running program said of itself at its start; empty while none runs."""
        life = self._life
        return dict(life.facts) if life is not None and life.alive else {}

    def take_death(self) -> ProgramDied | None:
        """A death that no request has raised, as between two requests; told once.

        Raises:
            SandboxUnavailable: the sandbox died with it and could not be brought back.
        """
        with self._lock:
            self._bury()
            death, self._death = self._death, None
            return death

    # --- requests -----------------------------------------------------------------------------

    def start(self) -> None:
        """Have the program run; it is not started twice.

        Raises:
            ProgramDied: it cannot be started, or did not say in START_TIMEOUT_S that it is there.
            UsageError: the driver was closed.
            SandboxUnavailable: the sandbox cannot serve.
        """
        with self._lock:
            self._living()

    def request(self, payload: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The program's answer. An answer that a former request did not wait for is waited for first, and dropped.

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
            with self._signalling:  # an interrupt meant for the former request has arrived before this one is sent
                life.expect(self._number)
            life.write(len(data).to_bytes(4, "big") + data, deadline)
            return self._answer(life, deadline, timeout_s)

    def await_answer(self, timeout_s: float) -> dict[str, Any]:
        """The answer to the request that timed out.

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
            if self._closed:  # by another thread, which may have seen none to kill
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
        """SIGINT to the program, if a request is being answered; with group to its whole process group.

        The signal is sent when this returns, and never reaches the request after. Returns whether it was sent.

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
        """End the program and all that it started; the next request starts a new one."""
        life, self._life = self._life, None
        if life is not None:
            life.end()

    def close(self) -> None:
        """`kill`, and no more requests. Twice is fine."""
        self._closed = True
        self.kill()

    def _bury(self) -> None:
        """Of a program that has ended by itself: note the death, and end what it left behind."""
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
