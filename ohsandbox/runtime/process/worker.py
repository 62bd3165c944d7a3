"""Processes without an exec each: `run` and the file operations use shells that stay open.

One `docker exec` costs 44 ms (engine 20.10, docker-py 7); a fork in a running shell costs about 1 ms. A worker serves
one call at a time; a pool keeps a few ready for each user. A worker whose streams are still held by a background child
is retired, so that late output is never taken for the next call's output.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime.aio import AT_ONCE_BYTES, Signal, is_short, when_readable
from ohsandbox.runtime.channel import FIRST_SIGNAL_CODE, KILLED, Channel, Stream
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S
from ohsandbox.runtime.process.invocation import NEWLINE, quote, script_on_stdin

if TYPE_CHECKING:
    from ohsandbox.runtime.channel import Chunk

OnBytes = Callable[[str, bytes], object]
"""A callback that receives 'stdout' or 'stderr' and the bytes that arrived on that stream."""

_SCRIPTS = files("ohsandbox.runtime").joinpath("scripts")
SCRIPT = "\n".join(
    [
        NEWLINE,
        *(_SCRIPTS.joinpath(f"{name}.sh").read_text("utf-8") for name in ("worker", "processes", "files", "serve")),
    ]
)

DEFAULT_LIMIT_BYTES = 100 * 1024 * 1024
"""Default limit of a stream in bytes: larger than any source file, small enough for a host's memory."""

_INLINE_STDIN_BYTES = 64 * 1024
"""Bytes of stdin up to which it goes through the worker's own stream, counted; larger stdin gets its own worker and end
of file. 64 KiB never block the writer: the socket alone buffers 208 KiB (net.core.wmem_default)."""

_SPARE_WORKERS = 32
"""Idle workers kept for each user; each concurrent call beyond them costs an exec. A worker is a shell, and 1 MiB here.
"""

_NO_FORK = 254
"""Exit code of bash as /bin/sh if it cannot fork a pipeline; other shells exit."""

INPUT_LEFT = 96
"""Exit code of a worker, without an end mark, if a call's stdin was not read from its stream."""

_TAIL_BYTES = 160
"""Bytes kept of a stream's end, more than any end mark has."""

_COMPLAINT_BYTES = 4096
"""Bytes of a shell's message about a program that it cannot execute, unless the program's path is longer."""

_READ_NOTHING = "The sandbox's worker was killed before it read a call."

UNCOUNTED = "uncounted"
"""The status of a call that was not started because the sandbox lacks `dd`, which separates the stdin of two calls."""

_END = re.compile(rb":(\d{1,3}|missing|file|denied|%s):(free|held)\n" % UNCOUNTED.encode())
"""The text after a call's mark: its exit code, or the reason why nothing ran. Compiled once: a pattern with each call's
own mark took 0.3 ms of a call's 0.6 ms."""


class WorkerCall(NamedTuple):
    """A call for a worker: a line of worker shell, its input, its limits, and the receiver of its output."""

    body: bytes
    workdir: str = "/"
    stdin: bytes = b""
    takes_stdin: bool = False
    """Whether body itself reads exactly the bytes of stdin."""
    to_end: bool = False
    """Whether nothing follows stdin, so that it is not counted; the worker then serves no further call."""
    timeout_s: float | None = None
    stall_s: float | None = None
    """Seconds without output after which the call has stalled."""
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    """Bytes of each stream that are kept."""
    on_output: OnBytes | None = None
    """Receives all output, in the caller's thread; nothing is read meanwhile. Its exceptions are raised."""
    cancel: threading.Event | None = None
    user: str | int | None = None
    mark: str = ""
    """Text in the environment of the call's processes, which are killed when the call is given up; empty: none are."""
    limit_kib: int = 0
    """The soft limit that marks the processes, see `ProcessTree`."""
    is_program: bool = False
    """Whether the call runs a program for the caller, which may need the network; our internal calls do not."""


class CallResult(NamedTuple):
    """The outcome of a call as the worker reports it."""

    status: str
    """An exit code; UNCOUNTED; or 'missing', 'file' or 'denied' if the working directory could not be entered."""
    stdout: bytes
    stderr: bytes
    truncated: bool
    complaint: str = ""
    """The shell's own message if it could not execute the program, else empty."""


class CallInterrupted(Exception):  # noqa: N818 - control flow inside the runtime, never seen outside
    """The call ended early, for example as the worker was killed (`kill -9 -1`); `outcome` holds the output so far."""

    def __init__(self, outcome: CallResult) -> None:
        super().__init__()
        self.outcome = outcome


class CallTimedOut(CallInterrupted):
    """The call exceeded its time limit; its processes still run."""


class CallCancelled(CallInterrupted):
    """The caller has set the call's `cancel`; its processes still run."""


class CallStalled(CallTimedOut):
    """The call printed nothing for stall_s; its processes still run."""


class WorkerUnusable(SandboxUnavailable):
    """A new worker ended before it served its first call, so nothing of the call has run."""


class Exchange:
    """A call that a worker runs: its mark, its output so far, and its time limit."""

    def __init__(self, worker: Worker, call: WorkerCall) -> None:
        self.worker, self.call = worker, call
        self.mark = secrets.token_hex(16)
        self.streams = {stream: _Collector(self.mark, call.limit_bytes) for stream in Stream}
        self.began = time.monotonic()
        self.deadline = math.inf if call.timeout_s is None else self.began + call.timeout_s

    @property
    def ended(self) -> bool:
        """Whether the end marks of both streams have arrived."""
        return all(stream.ended for stream in self.streams.values())


class Worker:
    """A shell that stays open and runs one call at a time. Owned by one thread at a time."""

    def __init__(self, channel: Channel, secret: str) -> None:
        self.channel = channel
        self.retired = False
        """Whether it takes no further calls: a background process holds its streams, or its stdin was closed."""
        self.calls = 0
        self.read_nothing = False
        """Whether it had ended before its last call was written, so that nothing of that has run."""
        self.generation = 0
        """Its pool's generation when it was opened."""
        self._complaint = f"{secret}: ".encode()
        self._feeder: threading.Thread | None = None

    def finish(self, exchange: Exchange) -> CallResult:
        """Wait for the end of a call that was sent.

        Raises:
            CallCancelled, CallTimedOut, CallStalled: with the output so far. The processes still run.
            CallInterrupted: the worker ended; with the output so far.
            SandboxUnavailable: the connection broke.
        """
        call, streams = exchange.call, exchange.streams
        relay = None if call.on_output is None else _OutputRelay(call.on_output, exchange.mark, self._complaint)
        stall_s = math.inf if call.stall_s is None else call.stall_s
        while not exchange.ended:
            left_s = exchange.deadline - time.monotonic()
            chunks = self._read(min(stall_s, left_s), call.cancel)
            if not chunks:
                self.retired = True
                if relay:
                    relay.finish(streams)
                raise _why_ended(chunks, call.cancel, stalls=stall_s < left_s)(self._outcome(streams))
            for chunk in chunks:
                streams[chunk.stream].feed(chunk.data)
                if relay:
                    relay.feed(chunk)
        outcome = self._outcome(streams)
        if relay and not outcome.complaint:
            relay.finish(streams)
        if call.stdin and outcome.status != "0":  # a part of it may be unread
            unread = call.takes_stdin or outcome.status.isalpha() or outcome.status == str(_NO_FORK)
            self.retired = self.retired or unread
        return outcome

    async def ended(self, exchange: Exchange, signal: Signal) -> bool:
        """Read a call's output in an event loop; return whether it has ended, so that `finish` does not block.

        False if it takes longer than AT_ONCE_S, prints more than AT_ONCE_BYTES, was killed or is UNCOUNTED, or its
        worker broke.
        """
        size = 0

        def is_over() -> bool:
            """Read once; return whether nothing more is to be read in the event loop."""
            nonlocal size
            try:
                chunks = self.channel.read(0)
            except (SandboxUnavailable, OSError):
                return True  # `finish` reads, and raises, it again
            for chunk in chunks or ():
                exchange.streams[chunk.stream].feed(chunk.data)
                size += len(chunk.data)
            return not chunks or size > AT_ONCE_BYTES or exchange.ended

        await when_readable((self.channel.filenos() or [-1])[0], is_over, signal)
        return exchange.ended and exchange.streams[Stream.STDOUT].status not in (UNCOUNTED, str(KILLED))

    def send(self, exchange: Exchange) -> None:
        """Write the call's line, and its stdin if that is small and counted; otherwise a thread writes stdin.

        Raises:
            WorkerUnusable: the worker had ended before the call, so nothing of it has run.
        """
        call, mark = exchange.call, exchange.mark.encode()
        self.calls += 1
        to_end = call.to_end or len(call.stdin) > _INLINE_STDIN_BYTES
        if to_end:
            fed = b"{ %s; }" % call.body
        elif call.takes_stdin:
            fed = b"ohs_counts&&{ %s; }" % call.body if call.stdin else call.body
        elif not call.stdin:
            fed = b"{ %s; } </dev/null" % call.body
        else:  # dd reads exactly one full block from a pipe; busybox's head -c reads ahead, into the next call
            fed = b"ohs_counts&&dd bs=%d count=1 iflag=fullblock 2>/dev/null|{ %s; }" % (len(call.stdin), call.body)
        word = b"" if to_end or not call.stdin else secrets.token_hex(8).encode()
        kind = b"%s %s" % (word, b"own" if call.takes_stdin else b"fed") if word else b""
        words = (b"yes" if to_end else b"", quote(call.workdir), fed, mark, kind)
        line = b"ohs_to_end=%s;ohs_begin;ohs_enter %s&&%s;ohs_end %s $? %s\n" % words
        self.retired = self.retired or to_end
        try:
            self.channel.write(line + call.stdin + word + b"\n" if word else line)
        except BrokenPipeError:
            self.read_nothing = not call.stdin
            if self.calls > 1 and self.read_nothing:
                raise WorkerUnusable(_READ_NOTHING) from None
            return  # `finish` reports how the worker ended
        if to_end:
            self._feeder = threading.Thread(target=self._feed, args=(call.stdin,), name="ohsandbox-stdin", daemon=True)
            self._feeder.start()

    def _feed(self, stdin: bytes) -> None:
        with contextlib.suppress(OSError, SandboxUnavailable):  # the process may end before it read all of it
            self.channel.write(stdin)
            self.channel.close_stdin()

    def _read(self, wait_s: float, cancel: threading.Event | None) -> list[Chunk] | None:
        """Return `Channel.read`'s chunks; None also soon after cancel is set."""
        if cancel is None:
            return self.channel.read(None if wait_s == math.inf else wait_s) if wait_s > 0 else None
        until = time.monotonic() + wait_s
        while not cancel.is_set() and (left_s := min(LOOK_EVERY_S, until - time.monotonic())) > 0:
            if (chunks := self.channel.read(left_s)) is not None:
                return chunks
        return None

    def has_shell_error(self, stderr: bytes) -> bool:
        """Whether stderr begins with a message of this shell, as when it cannot fork; no program knows its name."""
        return stderr.startswith(self._complaint)

    def not_served(self, code: int, outcome: CallResult) -> SandboxUnavailable:
        """Return the error for a worker that ended by itself: a call without its end mark never succeeded."""
        if code == INPUT_LEFT:
            return SandboxUnavailable(
                "A call was cut off: the sandbox's `dd` did not pass its input on, so its effects are unknown.",
                remedy="Check the sandbox's `dd`, go back with `ohsandbox undo`, or make a new sandbox.",
            )
        if code >= FIRST_SIGNAL_CODE:
            return WorkerUnusable(_READ_NOTHING)
        words = " ".join((outcome.stderr or outcome.stdout).decode("utf-8", "replace").split())[:200]
        ending = f"its shell ended with exit code {code}" + (f": {words}" if words else "")
        if not outcome.stdout and (self.calls == 1 or self.has_shell_error(outcome.stderr)):
            return WorkerUnusable(f"The sandbox could not start a process ({ending}).")
        return SandboxUnavailable(
            f"A call was cut off ({ending}), so its effects are unknown.", remedy="Check them before you call again."
        )

    def _outcome(self, streams: dict[Stream, _Collector]) -> CallResult:
        out, err = streams[Stream.STDOUT], streams[Stream.STDERR]
        self.retired = self.retired or "held" in (out.reply, err.reply)
        stderr, complaint = err.payload(), ""
        stdout = out.payload()
        if out.status in ("126", "127") and self.has_shell_error(stderr or stdout):
            said = stderr or stdout  # standard output where the two are merged
            complaint = said.removeprefix(self._complaint).decode("utf-8", "replace").strip()
            stdout, stderr = (b"" if said is stdout else stdout), b""
        return CallResult(out.status, stdout, stderr, out.truncated or err.truncated, complaint)

    def drain(self) -> None:
        """Read and drop what background processes still print on a retired worker's streams, until the streams end."""
        with contextlib.suppress(SandboxUnavailable, OSError):
            if self._feeder is None:  # else the feeder closes it: closed here, the descriptor might be reused
                self.channel.close_stdin()
            while self.channel.read():
                pass
        if self._feeder is not None:
            self._feeder.join()
        self.channel.close()


def _why_ended(chunks: list[Chunk] | None, cancel: threading.Event | None, *, stalls: bool) -> type[CallInterrupted]:
    """Return the reason why a read gave no output: the stream ended, or a cancel, silence or the time limit."""
    if chunks is not None:
        return CallInterrupted
    if cancel is not None and cancel.is_set():
        return CallCancelled
    return CallStalled if stalls else CallTimedOut


class _Collector:
    """One stream of one call: its first bytes, its size, and whether its end mark has arrived."""

    def __init__(self, mark: str, limit_bytes: int) -> None:
        self._mark = mark.encode()
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._kept = self._total = self.mark_bytes = 0
        self._tail = b""
        self.ended = False
        self.status = self.reply = ""

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        if self._kept <= self._limit_bytes + _TAIL_BYTES:
            self._parts.append(data)
            self._kept += len(data)
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        at = self._tail.rfind(self._mark) if self._tail.endswith(b"\n") else -1
        if at >= 0 and (match := _END.fullmatch(self._tail, at + len(self._mark))):
            self.ended = True
            self.status, self.reply = match[1].decode(), match[2].decode()
            self.mark_bytes = len(self._mark) + len(match[0])
            self._total -= self.mark_bytes

    @property
    def truncated(self) -> bool:
        return self._total > self._limit_bytes

    def payload(self) -> bytes:
        """Return the call's own bytes. The surplus is dropped first: 100 MB are joined once and never sliced."""
        surplus = self._kept - min(self._total, self._limit_bytes)
        while surplus > 0:
            last = self._parts.pop()
            if len(last) > surplus:
                self._parts.append(last[:-surplus])
            self._kept -= min(surplus, len(last))
            surplus -= len(last)
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)


class _OutputRelay:
    """Relays a call's output as it arrives, without end marks and the shell's message about a failed exec."""

    def __init__(self, on_output: OnBytes, mark: str, complaint: bytes) -> None:
        self._on_output, self._mark, self._complaint = on_output, mark.encode(), complaint
        self._held = dict.fromkeys(Stream, b"")
        self._begun = dict.fromkeys(Stream, False)

    def feed(self, chunk: Chunk) -> None:
        """Add a chunk of one stream; bytes that may begin a mark or a complaint are held back."""
        buffered = self._held[chunk.stream] + chunk.data
        self._held[chunk.stream] = buffered
        may_complain = (
            not self._begun[chunk.stream] and buffered[: len(self._complaint)] == self._complaint[: len(buffered)]
        )
        if not may_complain or len(buffered) > _COMPLAINT_BYTES:
            self._give(chunk.stream, self._mark_at(buffered))

    def finish(self, streams: dict[Stream, _Collector]) -> None:
        """Relay the bytes held back, without the end marks, when the call is over."""
        for stream, collector in streams.items():
            self._give(stream, len(self._held[stream]) - collector.mark_bytes)

    def _mark_at(self, buffered: bytes) -> int:
        """Return the offset at which the mark is or may begin; the end of held if there is none."""
        at = buffered.rfind(self._mark)
        if at >= 0 and len(buffered) - at <= _TAIL_BYTES:
            return at
        first = max(0, len(buffered) - len(self._mark) + 1)
        return next((at for at in range(first, len(buffered)) if self._mark.startswith(buffered[at:])), len(buffered))

    def _give(self, stream: Stream, count: int) -> None:
        data, self._held[stream] = self._held[stream][:count], self._held[stream][count:]
        if data:
            self._begun[stream] = True
            self._on_output(stream.name.lower(), data)


class WorkerPool:
    """Ready workers, a few for each user."""

    def __init__(self, open_channel: Callable[[list[str], str | int | None], Channel]) -> None:
        """Store open_channel(argv, user), which opens a channel without a terminal."""
        self._open_channel = open_channel
        self._idle: dict[str | int | None, list[Worker]] = defaultdict(list)
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._closed = False
        self._generation = 0
        """Counts the calls of `discard_all`: a worker in use meanwhile is not used again."""

    def acquire(self, user: str | int | None = None, *, wait_s: float = 0.0) -> Worker:
        """Take an idle worker, or start a new one; first wait up to wait_s seconds for one to be given back.

        Raises:
            SandboxUnavailable: none can be started.
            UnknownUserError: user does not exist in the sandbox.
        """
        until = time.monotonic() + wait_s
        while (idle := self.acquire_idle(user)) is None and (left_s := until - time.monotonic()) > 0:
            with self._returned:
                self._returned.wait_for(lambda: self._idle[user], left_s)
        if idle is not None:
            return idle
        secret = f"ohs-{secrets.token_hex(8)}"
        argv, script = script_on_stdin(SCRIPT, secret)
        generation = self._generation
        channel = self._open_channel(argv, user)
        with contextlib.suppress(BrokenPipeError):  # its first call reports how it ended
            channel.write(script)
        worker = Worker(channel, secret)
        worker.generation = generation
        return worker

    def begin(self, call: WorkerCall) -> Exchange | None:
        """Send call to an idle worker; return None, with nothing sent, if that might block."""
        if is_short(call.timeout_s) or (worker := self.acquire_idle(call.user)) is None:
            return None
        if len(worker.channel.filenos() or ()) != 1:  # with none it may block, and one alone can be awaited
            self.give_back(worker, call.user)
            return None
        exchange = Exchange(worker, call)
        try:
            worker.send(exchange)
        except BaseException as error:
            worker.retired = True
            self.give_back(worker, call.user)
            if isinstance(error, WorkerUnusable):
                return None
            raise
        return exchange

    def acquire_idle(self, user: str | int | None) -> Worker | None:
        """Take an idle worker without blocking; None if there is none."""
        while True:
            with self._lock:
                idle = self._idle[user].pop() if self._idle[user] else None
            if idle is None or idle.channel.read(0) is None:  # silent and open: it is alive
                return idle
            idle.channel.close()

    def give_back(self, worker: Worker, user: str | int | None = None) -> None:
        """Return a worker to the pool; a retired one is read until the holders of its streams end."""
        if worker.retired:
            threading.Thread(target=worker.drain, name="ohsandbox-drain", daemon=True).start()
            return
        with self._lock:
            is_current = not self._closed and worker.generation == self._generation
            if is_current and len(self._idle[user]) < _SPARE_WORKERS:
                self._idle[user].append(worker)
                self._returned.notify_all()
                return
        worker.channel.close()

    def discard_all(self) -> None:
        """Close every idle worker, and later those in use: the sandbox or its environment has changed or ends."""
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, defaultdict(list)
        for worker in (worker for workers in idle.values() for worker in workers):
            worker.channel.close()

    def close(self) -> None:
        """Close every idle worker; those in use close when they are given back."""
        self._closed = True
        self.discard_all()
