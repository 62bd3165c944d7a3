"""`Driver`: runs a long-lived Python program inside the sandbox that answers requests.

In both directions a message is four bytes of length (big-endian) and a JSON array `[number, object]`; an answer has
the number of its request. A program's first message has the number 0 and holds its `pid`. Standard output is
reserved for the protocol; standard error holds the program's own output.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, ToolError, UsageError
from ohsandbox.runtime.channel import KILLED, Chunk, Stream
from ohsandbox.runtime.process.cancellation import SWEEPS, ProcessTree
from ohsandbox.runtime.process.invocation import quote
from ohsandbox.runtime.shell.terminal import clean
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime

_START_TIMEOUT_S = 60.0
"""Limit from the program's start to its first message; IPython takes 0.5 s on an idle machine."""
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Limit of a message: twice the size of eight large images in base64."""
TICK_S = 0.5
"""The delay in noticing a death while a child of the program holds its streams open."""
_SETTLE_S = 2.0
"""Time to wait for the exit code after the end of the streams."""
TAIL_BYTES = 4096
"""The tail of standard error kept for the message about a death."""
LAST_WORDS_CHARS = 500
"""Limit of the last line in that message."""
NO_PROGRAM = 127
"""A shell's exit code for a program that it cannot find (POSIX 2.8.2)."""

_START = (
    'cd "$1" && boot=$2 && shift 2 || exit; for python; do command -v "$python" >/dev/null && exec "$python" -c "$boot"'
    f'; done; echo "$*: not found" >&2; exit {NO_PROGRAM}'
)
_BOOT = (
    "import os,sys;"
    "sys.version_info>=(3,8)or sys.exit('Python 3.8 or newer is needed, and this is '+sys.version.split()[0]);"
    "requests=os.fdopen(os.dup(0),'rb');exec(requests.read(%d))"
)
"""Short, because `ps` shows it; standard input carries the rest."""
_BOOTSTRAP = files("ohsandbox.tools").joinpath("driver_bootstrap.py")
_LENGTH_BYTES = 4
_SIGNALLED = 128
"""Added to the number of the signal that ended a process."""
_OUR_IMPORT = re.compile(r"^from (?:__future__|ohsandbox[\w.]*) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


def join_modules(package: str, *names: str) -> str:
    """The modules as the source of one program; each may import from those before it, and nothing else of ours."""
    parts = [_OUR_IMPORT.sub("", files(package).joinpath(f"{name}.py").read_text("utf-8")) for name in names]
    return "\n".join(["from __future__ import annotations", *parts])


class ProgramDied(ToolError):  # noqa: N818 - states the event
    """The program has ended, and its memory is lost; the next request starts a new one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The program's exit code, if known."""


class RequestTimedOut(ToolError):  # noqa: N818 - states the event
    """No answer in time. The program still works on it: `await_answer`, `interrupt` or `stop`."""


class Driver:
    """One program, started by the first request, and restarted by the first one after its death.

    Requests are answered one at a time; `interrupt`, `stop` and `close` may come from any thread meanwhile.
    """

    def __init__(
        self,
        runtime: Runtime,
        source: str,
        *,
        interpreters: Sequence[str] = ("python3",),
        name: str = "The program",
        env: Mapping[str, str] | None = None,
        on_stderr: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Create the driver; this starts nothing.

        Args:
            runtime: runs the program, in its working directory.
            source: a program in Python 3.8 or newer with the function `main` that driver_bootstrap.py describes. Its
                standard input is empty, and its prints go to standard error.
            interpreters: the first of these that the sandbox's PATH has runs it.
            name: its name in messages.
            env: added to the sandbox's own.
            on_stderr: called with its standard error as it arrives, in a thread of the driver.
        """
        bootstrap, program = _BOOTSTRAP.read_bytes(), source.encode()
        self._preamble = bootstrap + len(program).to_bytes(_LENGTH_BYTES, "big") + program
        self._argv = ["/bin/sh", "-c", _START, "sh", runtime.workdir, _BOOT % len(bootstrap), *interpreters]
        self._runtime, self._name, self._env, self._on_stderr = runtime, name, dict(env or {}), on_stderr
        self._lock = threading.RLock()
        self._signalling = threading.Lock()
        self._process: _Process | None = None
        self._death: ProgramDied | None = None
        self._number = 0
        self._closed = False

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the running program reported at its start; empty while none runs."""
        process = self._process
        return dict(process.facts) if process is not None and process.alive else {}

    # --- requests -----------------------------------------------------------------------------

    def start(self) -> ProgramDied | None:
        """Start the program unless it runs. Returns a death that no request has raised, as between two requests.

        Raises:
            ProgramDied: it cannot be started, or did not report within START_TIMEOUT_S.
            UsageError: the driver was closed.
            SandboxUnavailable: the sandbox cannot serve, or died with the program and could not be brought back.
        """
        with self._lock:
            if self._closed:
                raise UsageError(f"{self._name} was closed. Make a new one.")
            self._record_end()
            death, self._death = self._death, None
            if self._process is None:
                self._launch()
            return death

    def _launch(self) -> None:
        self._process = process = _Process(self._runtime, self._argv, self._env, self._on_stderr)
        deadline = time.monotonic() + _START_TIMEOUT_S
        process.write(self._preamble, deadline)
        try:
            process.facts = self._answer(process, deadline, _START_TIMEOUT_S)
        except RequestTimedOut:
            self.stop()
            late = f"{self._name} did not start within {_START_TIMEOUT_S:.0f} s. {process.last_words()}"
            raise ProgramDied(late.strip()) from None
        if self._closed:  # by another thread, which may have found no program to kill
            self.stop()

    def request(self, payload: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the program's answer. First awaits and drops an answer that an earlier request did not wait for.

        Raises:
            RequestTimedOut: no answer in timeout_s seconds, counted from when the program runs.
            ProgramDied: it ended meanwhile, could not be started, or broke the protocol and was killed.
            ToolError: the payload is larger than MAX_MESSAGE_BYTES; nothing was sent.
            UsageError, SandboxUnavailable: as `start`.
        """
        with self._lock:
            self._number += 1
            data = json.dumps([self._number, dict(payload)]).encode()
            if len(data) > _MAX_MESSAGE_BYTES:
                raise ToolError(f"The request is {len(data)} bytes large; at most {_MAX_MESSAGE_BYTES} can be sent.")
            self._death = self.start()
            process = self._process
            if process is None:
                raise self._pop_death()
            deadline = time.monotonic() + timeout_s
            if process.pending is not None:
                self._answer(process, deadline, timeout_s)
            with self._signalling:  # an interrupt for the earlier request has arrived before this one is sent
                process.expect(self._number)
            process.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data, deadline)
            return self._answer(process, deadline, timeout_s)

    def await_answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the answer to the request that timed out.

        Raises:
            RequestTimedOut: not yet.
            ProgramDied: it ended meanwhile, or has been killed.
            SandboxUnavailable: the sandbox died with it and could not be brought back.
        """
        with self._lock:
            if self._process is None:
                raise self._pop_death()
            return self._answer(self._process, time.monotonic() + timeout_s, timeout_s)

    def _answer(self, process: _Process, deadline: float, timeout_s: float) -> dict[str, Any]:
        answer = process.answer(deadline)
        if answer is not None:
            return answer
        if process.alive:
            raise RequestTimedOut(f"{self._name} gave no answer within {timeout_s:g} s and still works on it.")
        self._record_end()
        raise self._pop_death()

    # --- ending it ----------------------------------------------------------------------------

    def interrupt(self, *, group: bool = False, signal: Literal["INT", "XCPU"] = "INT") -> bool:
        """Send the signal to the program if it works on a request; with group, to its whole process group.

        The signal is sent before this returns, and never affects the next request. Returns whether it was sent.

        Raises:
            SandboxUnavailable: the sandbox cannot serve.
        """
        with self._signalling:
            process = self._process
            pid = process.facts.get("pid") if process is not None and process.alive and process.pending else None
            if not isinstance(pid, int) or pid <= 1:
                return False
            self._runtime.snippet(b"kill -%s %d 2>/dev/null" % (signal.encode(), -pid if group else pid))
            return True

    def stop(self, *, grace_s: float = 0.0) -> None:
        """End the program and all its processes; the next request starts a new one.

        A program that works on nothing may end by itself first, within grace_s seconds.
        """
        process = self._process
        if process is not None and grace_s and self._lock.acquire(blocking=False):
            try:
                process.finish(grace_s)
            finally:
                self._lock.release()
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def close(self, *, grace_s: float = 0.0) -> None:
        """Stop the program and refuse further requests. Safe to call twice."""
        self._closed = True
        self.stop(grace_s=grace_s)

    def _record_end(self) -> None:
        """Record the end of a program that ended by itself, and end its remaining processes."""
        process = self._process
        if process is None or process.alive:
            return
        self._process = None
        if process.fell_with_sandbox():
            process.let_go()
            self._runtime.snippet(b":")
            ending = f"{self._name} was lost: the sandbox had ended. It was started again with its files."
        else:
            process.end()
            ending = f"{self._name} {process.end_description()}. {process.last_words()}"
        self._death = ProgramDied(ending.strip(), status=process.status)

    def _pop_death(self) -> ProgramDied:
        death, self._death = self._death, None
        return death or ProgramDied(f"{self._name} was stopped.")


class _Process:
    """One run of the program, and the thread that reads from it. One thread sends requests; any may call `end`."""

    def __init__(
        self, runtime: Runtime, argv: Sequence[str], env: Mapping[str, str], on_stderr: Callable[[bytes], None]
    ) -> None:
        """Start it.

        Raises:
            SandboxUnavailable: as `Runtime.open_channel`.
        """
        self.facts: dict[str, Any] = {}
        self.pending: int | None = 0
        """The number of the request in progress; 0 is its start."""
        self.alive = True
        self.status: int | None = None
        """The program's exit code, once it has one."""
        self._failure: SandboxUnavailable | None = None
        """The error that broke the connection to it."""
        self._complaint = ""
        """How the program broke the protocol; empty if it did not."""
        self._tail = b""
        self._answered: dict[str, Any] | None = None
        self._runtime, self._on_stderr = runtime, on_stderr
        self._changed = threading.Condition()
        self._inbox = bytearray()
        self._stopping = False
        self._began = time.monotonic()
        token = secrets.token_hex(8)
        self._mark = f"OHSANDBOX_CALL={token}"
        self._channel = runtime.channel(argv, env={**env, "OHSANDBOX_CALL": token})
        self._reader = threading.Thread(target=self._read, name="ohsandbox-driver", daemon=True)
        self._reader.start()

    def expect(self, number: int) -> None:
        """Set the number of the next request."""
        with self._changed:
            self.pending, self._answered = number, None

    def write(self, data: bytes, deadline: float) -> None:
        """Send bytes, until deadline; a program that stops reading is detected by its missing answer."""

        def send() -> None:
            with contextlib.suppress(OSError, SandboxUnavailable):  # the program ended: the reader reports how
                self._channel.write(data)

        writer = threading.Thread(target=send, name="ohsandbox-driver-write", daemon=True)
        writer.start()
        writer.join(max(0.0, deadline - time.monotonic()))

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """Return the answer to the last request; None if deadline passed or the program ended."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            self._changed.wait_for(lambda: self._answered is not None or not self.alive, left_s)
            answered, self._answered = self._answered, None
            return answered

    # --- the reading thread -------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._read_all()
            if not (self._stopping or self._complaint):
                self.status = self._channel.wait(_SETTLE_S)
        except TimeoutError:
            self._complaint = "closed its output"
        except SandboxUnavailable as failure:
            self._failure = failure
        finally:
            with self._changed:
                self.alive = False
                self._changed.notify_all()

    def _read_all(self) -> None:
        """Read until the streams or the process end: a child may hold the streams open for longer."""
        while not (self._stopping or self._complaint):
            chunks = self._channel.read(TICK_S)
            if chunks is None:
                with contextlib.suppress(TimeoutError):
                    if self.pending is not None:
                        self._channel.wait(0)
                        return
                continue
            if not chunks:
                return
            for chunk in chunks:
                self._receive(chunk)

    def _receive(self, chunk: Chunk) -> None:
        if chunk.stream is Stream.STDERR:
            self._tail = (self._tail + chunk.data[-TAIL_BYTES:])[-TAIL_BYTES:]
            self._on_stderr(chunk.data)
            return
        self._inbox += chunk.data
        while not self._complaint and len(self._inbox) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._inbox[:_LENGTH_BYTES], "big")
            if end > _MAX_MESSAGE_BYTES:
                self._complaint = f"sent a message of {end} bytes, over the limit of {_MAX_MESSAGE_BYTES},"
            if len(self._inbox) < end:
                return
            self._deliver(bytes(self._inbox[_LENGTH_BYTES:end]))
            del self._inbox[:end]

    def _deliver(self, data: bytes) -> None:
        try:
            number, answer = load_json(data)
        except (ValueError, TypeError):
            answer = None
        if not isinstance(answer, dict):
            self._complaint = "sent something that is not an answer"
            return
        with self._changed:
            if number == self.pending:
                self._answered, self.pending = answer, None
                self._changed.notify_all()

    # --- the end ------------------------------------------------------------------------------

    def finish(self, grace_s: float) -> None:
        """Let an idle program end by itself, at the end of its requests."""
        if self.pending is not None:
            return
        self.pending = -1  # so that the reader checks for its exit
        with contextlib.suppress(OSError, SandboxUnavailable):
            self._channel.close_stdin()
        with self._changed:
            self._changed.wait_for(lambda: not self.alive, grace_s)

    def fell_with_sandbox(self) -> bool:
        """Whether the sandbox itself ended, which its channel tells at the end of the program."""
        return self._failure is not None

    def end(self) -> None:
        """Kill it and all its processes, as far as the sandbox still responds. Safe to call twice."""
        self._stopping = True
        with contextlib.suppress(OhsandboxError, OSError):
            if self.status is None and self._failure is None:
                # its session, its descendants and the processes with its mark, then itself
                ProcessTree(self._runtime.snippet, self._channel.pid, self._mark, began=self._began).kill()
                self._runtime.snippet(b"kill -KILL %d 2>/dev/null" % self._channel.pid)
            by_mark = (  # its process id may be another's now
                b"ohs_p=$(cd /proc && grep -ls %s [0-9]*/environ | sed s,/.*,,);"
                b'[ -z "$ohs_p" ] || kill -KILL $ohs_p 2>/dev/null; echo $ohs_p' % quote(self._mark)
            )
            for _ in range(SWEEPS):
                if not self._runtime.snippet(by_mark).stdout.strip():
                    break
        self.let_go()

    def let_go(self) -> None:
        """Close the connection."""
        self._stopping = True
        self._reader.join(2 * TICK_S)
        self._channel.close()

    def end_description(self) -> str:
        """Describe how it ended."""
        if self._complaint:
            return f"{self._complaint} and was killed"
        if self.status == KILLED and self._runtime.ran_out_of_memory():
            return "was killed: the sandbox ran out of memory"
        if self.status is not None and self.status > _SIGNALLED:
            return f"was killed by signal {self.status - _SIGNALLED}"
        return f"ended with exit code {self.status}"

    def last_words(self) -> str:
        """The last line of its standard error with an introduction; empty if there is none."""
        lines = clean(self._tail).strip().splitlines()
        return f"It said: {lines[-1][:LAST_WORDS_CHARS]}" if lines else ""
