"""`Life`: one process of a driver's program, from its start to its end."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.runtime.backend import LOSS_SETTLES_S
from ohsandbox.runtime.channel import KILLED, Chunk, Stream
from ohsandbox.runtime.process.quoting import quote
from ohsandbox.runtime.shell.process_control import SWEEPS, ticks_at
from ohsandbox.runtime.shell.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.process.worker import CallResult

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Twice the size of eight large images in base64."""

TICK_S = 0.5
"""The delay in noticing a death while a child of the program holds its streams open."""

SETTLE_S = 2.0
"""Time for the exit code, after the end of the streams."""

TAIL_BYTES = 4096
"""The tail of standard error kept for the message about a death."""

LAST_WORDS_CHARS = 500
"""Limit of the last line in that message."""

INLINE_WRITE_BYTES = 32 * 1024
"""A pipe takes 64 KiB without a reader (pipe(7)); a thread writes more, so that no program can block us."""

_LENGTH_BYTES = 4
_FIRST_SIGNAL_CODE = 129


class Life:
    """The process, and the thread that reads from it. One thread at a time may send requests; any may call `end`."""

    def __init__(
        self,
        runtime: Runtime,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        user: str | int | None,
        on_stderr: Callable[[bytes], None],
    ) -> None:
        """Start it.

        Raises:
            SandboxUnavailable, UnknownUserError: as `Runtime.open_channel`.
        """
        self.facts: dict[str, Any] = {}
        """The facts that it reported at its start."""
        self.pending: int | None = 0
        """The number of the request in progress; 0 is its start."""
        self.alive = True
        self.status: int | None = None
        """Its exit code, once it has one."""
        self.failure: SandboxUnavailable | None = None
        """Why the connection to it broke."""
        self.tail = b""
        self._complaint = ""
        self._answered: dict[str, Any] | None = None
        self._runtime, self._user, self._on_stderr = runtime, user, on_stderr
        self._changed = threading.Condition()
        self._inbox = bytearray()
        self._stopping = False
        self._began = time.monotonic()
        token = secrets.token_hex(8)
        self._mark = f"OHSANDBOX_CALL={token}"
        self._channel = runtime.channel(argv, env={**env, "OHSANDBOX_CALL": token}, user=user)
        self._reader = threading.Thread(target=self._read, name="ohsandbox-driver", daemon=True)
        self._reader.start()

    # --- requests -----------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether an answer is unread or still to come."""
        return self.pending is not None or self._answered is not None

    def expect(self, number: int) -> None:
        """Set the number of the next request."""
        with self._changed:
            self.pending, self._answered = number, None

    def write(self, data: bytes, deadline: float) -> None:
        """Send bytes, until deadline; a program that stops reading is detected by its missing answer."""
        if len(data) <= INLINE_WRITE_BYTES:
            self._write(data)
            return
        writer = threading.Thread(target=self._write, args=(data,), name="ohsandbox-driver-write", daemon=True)
        writer.start()
        writer.join(max(0.0, deadline - time.monotonic()))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, SandboxUnavailable):  # it ended: the reader reports how
            self._channel.write(data)

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """Return the answer to the last request; None if deadline passed or the program ended."""
        with self._changed:
            while self._answered is None and self.alive:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            answered, self._answered = self._answered, None
            return answered

    # --- the reading thread -------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._read_all()
            if not (self._stopping or self._complaint):
                self.status = self._channel.wait(SETTLE_S)
        except TimeoutError:
            self._complaint = "closed its output"
        except SandboxUnavailable as failure:
            self.failure = failure
        finally:
            with self._changed:
                self.alive = False
                self._changed.notify_all()

    def _read_all(self) -> None:
        """Read until the streams or the process end: a child may hold the streams open for longer."""
        while not (self._stopping or self._complaint):
            chunks = self._channel.read(TICK_S)
            if chunks is None:
                if self.pending is not None and self._has_exited():
                    return
                continue
            if not chunks:
                return
            for chunk in chunks:
                self._take(chunk)

    def _has_exited(self) -> bool:
        try:
            self._channel.wait(0)
        except TimeoutError:
            return False
        return True

    def _take(self, chunk: Chunk) -> None:
        if chunk.stream is Stream.STDERR:
            self.tail = (self.tail + chunk.data[-TAIL_BYTES:])[-TAIL_BYTES:]
            self._on_stderr(chunk.data)
            return
        self._inbox += chunk.data
        while not self._complaint and len(self._inbox) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._inbox[:_LENGTH_BYTES], "big")
            if end > MAX_MESSAGE_BYTES:
                self._complaint = f"sent a message of {end} bytes, over the limit of {MAX_MESSAGE_BYTES},"
            if len(self._inbox) < end:
                return
            self._deliver(bytes(self._inbox[_LENGTH_BYTES:end]))
            del self._inbox[:end]

    def _deliver(self, data: bytes) -> None:
        try:
            number, answer = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            self._complaint = "sent something that is no answer"
            return
        with self._changed:
            if number == self.pending:
                self._answered, self.pending = answer, None
                self._changed.notify_all()

    # --- the end ------------------------------------------------------------------------------

    def fell_with_sandbox(self) -> bool:
        """Whether the sandbox itself ended. Call this first: any other request to the sandbox restarts it."""
        deadline = time.monotonic() + LOSS_SETTLES_S
        while self.status == KILLED and time.monotonic() < deadline:
            if not self._runtime.is_alive():
                return True
            time.sleep(TICK_S / 20)
        return self.failure is not None

    def end(self) -> None:
        """Kill it and all its processes, as far as the sandbox still responds. Safe to call twice."""
        self._stopping = True
        with contextlib.suppress(OhsandboxError, OSError):
            if self.status is None and self.failure is None:
                self._kill_tree()
            self._sweep()
        self.let_go()

    def let_go(self) -> None:
        """Close the connection."""
        self._stopping = True
        self._reader.join(2 * TICK_S)
        self._channel.close()

    def _ask(self, body: bytes) -> CallResult:
        return self._runtime.snippet(body, user=self._user)

    def _kill_tree(self) -> None:
        """Kill its session, its descendants, the processes with its mark, and itself."""
        words = (self._channel.pid, quote(self._mark), ticks_at(self._ask, self._began))
        for _ in range(SWEEPS):
            if not self._ask(b"ohs_kill KILL %d %s %d 0" % words).stdout.strip():
                break
        self._ask(b"kill -KILL %d 2>/dev/null" % self._channel.pid)

    def _sweep(self) -> None:
        """Kill surviving processes with its mark: `ohs_kill` finds nothing after the leader's end."""
        body = (
            b"ohs_p=$(cd /proc && grep -ls %s [0-9]*/environ | sed s,/.*,,);"
            b'[ -z "$ohs_p" ] || kill -KILL $ohs_p 2>/dev/null; echo $ohs_p'
        )
        for _ in range(SWEEPS):
            if not self._ask(body % quote(self._mark)).stdout.strip():
                break

    def cause(self) -> str:
        """Describe how it ended."""
        if self._complaint:
            return f"{self._complaint} and was killed"
        if self.status == KILLED and self._runtime.ran_out_of_memory():
            return "was killed: the sandbox ran out of memory"
        if self.status is not None and self.status >= _FIRST_SIGNAL_CODE:
            return f"was killed by signal {self.status - _FIRST_SIGNAL_CODE + 1}"
        return f"ended with exit code {self.status}"

    def last_words(self) -> str:
        """The last line of its standard error with an introduction; empty if there is none."""
        lines = clean(self.tail).strip().splitlines()
        return f"It said: {lines[-1][:LAST_WORDS_CHARS]}" if lines else ""
