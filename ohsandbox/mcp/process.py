"""A stdio server in a sandbox: its process, its lines in and out, its termination, and the transport on top."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import re
import secrets
import select
import stat
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import anyio
from fastmcp.client.transports import ClientTransport
from mcp.shared.message import SessionMessage

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.mcp.content import visible_excerpt, visible_line
from ohsandbox.mcp.errors import MCPConnectionError
from ohsandbox.mcp.loop import detach
from ohsandbox.mcp.streams import MAX_LINE_BYTES, FloodError, GuardedSession, Intake, LineFramer, Outbox
from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.process.invocation import limit_mark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from fastmcp.client.transports.base import SessionKwargs, TransportOptions
    from mcp import ClientSession
    from mcp_types import JSONRPCMessage
    from typing_extensions import Unpack

    from ohsandbox.runtime.base import Runtime

MAX_UNREAD_BYTES = 2 * MAX_LINE_BYTES
"""Maximum size of queued messages for a server that does not read its input."""

STDERR_BYTES = 64 * 1024
"""Size of the end of a server's standard error that is kept."""

LAST_WORDS_CHARS = 2000
"""Length of the end of it, and of invalid lines on stdout, that an error message quotes."""

STATUS_BYTES, STATUS_CHARS = 4096, 160
"""Size of the end of start-up output that is read, and maximum length of the line taken from it."""

_DIRECT_BYTES = 4096
"""A socket that polls writable accepts this much without blocking (Linux: a third of its buffer is free). Such a
message skips the writing thread, which takes 60 microseconds per call."""

GRACE_S = 2.0
"""Seconds between closing a server's input and SIGKILL, as in the MCP SDKs."""

_LAST_READ_S = 0.2
"""Seconds to read the rest of an exited process's pipes."""

_EXIT_CODE_S = 1.0
"""Seconds for the engine to report the exit code after the streams have ended."""

LOOK_EVERY_S = 2.0
"""Seconds between checks that the server runs. A check asks the engine, which takes a millisecond; most calls end
before the first one."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell for a program that does not exist, or cannot be executed (POSIX XCU 2.8.2)."""

_BEGIN = 'ulimit -m %d 2>/dev/null;exec "$@"'
_BEGIN_IN = 'ulimit -m %d 2>/dev/null;cd "$0"&&exec "$@"'
"""Shell code that starts a server. The limit on the resident set is a second mark: Linux has ignored it since 2.4.30,
and children inherit it even with an empty environment, in another session, and after their parents have exited."""

_FAMILY = (
    b"ohs_hit=' %d ' ohs_found= ohs_more=yes;while [ $ohs_more ];do ohs_more=;for ohs_d in /proc/[0-9]*;do"
    b' ohs_p=${ohs_d#/proc/};case $ohs_hit in *" $ohs_p "*)continue;;esac;ohs_stat $ohs_p||continue;set -- $ohs_line;'
    b'case $ohs_hit in *" $2 "*)ohs_hit="$ohs_hit$ohs_p " ohs_found="$ohs_found $ohs_p:${20}" ohs_more=yes;;esac;'
    b"done;done;echo $ohs_found"
)
"""Lists the descendants of a process as PID:START, by the functions of processes.sh, which each worker has."""

_KILL_FAMILY = (
    b"for ohs_p in %s;do ohs_stat ${ohs_p%%:*}||continue;set -- $ohs_line;"
    b"[ ${20} = ${ohs_p#*:} ]&&kill -9 ${ohs_p%%:*};done 2>/dev/null;:"
)

_SWEEP = (
    b"for ohs_d in $(grep -lse %s -e 'resident set *%d ' /proc/[0-9]*/environ /proc/[0-9]*/limits 2>/dev/null);do"
    b" ohs_p=${ohs_d#/proc/};kill -9 ${ohs_p%%/*} 2>/dev/null&&echo $ohs_p;done;:"
)
"""Kills and lists all processes that have one of the marks in their environment or limits."""
_SWEEPS = 5
"""Maximum number of sweeps: a process tree that forks during one needs another."""


class Command(NamedTuple):
    """The command to start, and its user."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}
    cwd: str | None = None
    user: str | int | None = None


class ServerProcess:
    """A running server. The event loop that calls `watch` handles its streams; all other methods may block."""

    def __init__(self, runtime: Runtime, command: Command) -> None:
        """Start the server.

        Raises:
            MCPConnectionError: the server cannot be started.
            SandboxUnavailable: the sandbox is unavailable.
        """
        self._runtime, self._command = runtime, command
        self._mark = f"OHSANDBOX_MCP={secrets.token_hex(8)}"
        self._limit_kib = limit_mark()
        script = (_BEGIN if command.cwd is None else _BEGIN_IN) % self._limit_kib
        argv = ["/bin/sh", "-c", script, command.cwd or "sh", *command.argv]
        name, _, value = self._mark.partition("=")
        try:
            self._channel = runtime.channel(argv, env={**command.env, name: value}, user=command.user)
        except FileNotFoundError:
            raise MCPConnectionError(
                f"The program {command.argv[0]!r} was not found. Install it, or correct `command`."
            ) from None
        except (OSError, UsageError) as error:
            raise MCPConnectionError(f"The program {command.argv[0]!r} cannot be started: {error}.") from None
        self._framer = LineFramer(MAX_LINE_BYTES)
        self._intake = Intake()
        self._received, self.inbox = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self.outbox = Outbox(self._intake, self._write)
        self._stderr = bytearray()
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = 0
        self._counting = threading.Lock()
        self._watched: set[int] = set()
        self._silent = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self.fault: str | None = None
        """Why we ended the server; None if it ended by itself."""
        self.exit_code: int | None = None
        self.on_words: Callable[[str], None] | None = None
        """Called on the loop with output that is no message: the last line of each chunk."""

    @property
    def is_over(self) -> bool:
        """Whether the server has ended."""
        return self._silent.is_set()

    # --- on the loop --------------------------------------------------------------------------

    def watch(self) -> None:
        """Start reading and writing."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._write_all, name="ohsandbox-mcp-write", daemon=True).start()
        if self._channel.filenos() is None:
            threading.Thread(target=self._read_all, name="ohsandbox-mcp-read", daemon=True).start()
        else:
            self._watch()

    def _watch(self) -> None:
        assert self._loop is not None  # noqa: S101 - set by watch
        current = set() if self._silent.is_set() else set(self._channel.filenos() or ())
        for fd in self._watched - current:
            self._loop.remove_reader(fd)
        for fd in current - self._watched:
            self._loop.add_reader(fd, self._readable)
        self._watched = current

    def _readable(self) -> None:
        self._receive(lambda: self._channel.read(0))
        self._watch()

    def _receive(self, read: Callable[[], list[Chunk] | None]) -> None:
        try:
            chunks = read()
            for chunk in chunks or ():
                self._on_chunk(chunk)
        except FloodError as error:
            self.fault = f"It was stopped because it sent {error}."
            chunks = []
        except (SandboxUnavailable, OSError, ValueError) as error:
            self.fault = f"The connection to it broke: {error}"
            chunks = []
        if chunks == []:
            self._finish()

    def _on_chunk(self, chunk: Chunk) -> None:
        if chunk.stream is Stream.STDERR:
            self._stderr += chunk.data
            del self._stderr[:-STDERR_BYTES]
            self._pass_on(chunk.data)
            return
        for line in self._framer.feed(chunk.data):
            if (message := self._intake.parse(line)) is not None:
                self._put(message)
            else:
                self._pass_on(line)

    def _put(self, message: JSONRPCMessage) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session or it has ended
            self._received.send_nowait(SessionMessage(message))

    def _pass_on(self, words: bytes) -> None:
        if self.on_words is not None and (lines := words[-STATUS_BYTES:].replace(b"\r", b"\n").strip().splitlines()):
            self.on_words(visible_line(lines[-1].decode("utf-8", "replace"), limit_chars=STATUS_CHARS))

    def _finish(self) -> None:
        if self._silent.is_set():
            return
        with contextlib.suppress(FloodError):
            if self.fault is None and (message := self._intake.parse(self._framer.rest())) is not None:
                self._put(message)
        self._silent.set()
        self._received.close()
        self._watch()
        if self.fault is not None:  # end it now, not at the next use
            self._close_soon()

    def _write(self, data: bytes) -> None:
        with self._counting:
            self._unread += len(data)
        if self._unread > MAX_UNREAD_BYTES:
            self.fault = f"It was stopped because it does not read its input: {self._unread} bytes wait for it."
            self._finish()
        if self._silent.is_set():
            raise BrokenPipeError
        if self._unread == len(data) <= _DIRECT_BYTES and self._is_writable():
            self._unread = 0
            try:
                self._channel.write(data)
            except SandboxUnavailable:
                raise BrokenPipeError from None
        else:
            self._to_write.put(data)

    def _is_writable(self) -> bool:
        """Whether the only descriptor is a socket, for which `poll` also tells if it can be written, and has room."""
        fds = self._channel.filenos() or ()
        if len(fds) != 1 or not stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
            return False
        poller = select.poll()
        poller.register(fds[0], select.POLLOUT)
        return bool(poller.poll(0))

    # --- in threads ---------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Read a channel without descriptors, in a thread; each chunk waits until the loop has handled the last one."""
        assert self._loop is not None  # noqa: S101 - set by watch
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while not self._silent.is_set():
                chunks: Future[list[Chunk] | None] = Future()
                try:
                    chunks.set_result(self._channel.read())
                except (SandboxUnavailable, OSError, ValueError) as error:
                    chunks.set_exception(error)
                asyncio.run_coroutine_threadsafe(self._receive_read(chunks), self._loop).result()

    async def _receive_read(self, chunks: Future[list[Chunk] | None]) -> None:
        self._receive(chunks.result)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError, OhsandboxError):
            while (data := self._to_write.get()) is not None:
                self._channel.write(data)
                with self._counting:
                    self._unread -= len(data)
        self._channel.close_stdin()

    def end(self) -> None:
        """Close the server's input, wait, kill it and its children. Blocks a little longer than GRACE_S."""
        family = b""
        with contextlib.suppress(OhsandboxError):  # first: an orphan without the marks cannot be identified later
            output = self._runtime.snippet(_FAMILY % self._channel.pid, user=self._command.user).stdout
            family = b" ".join(re.findall(rb"\b\d+:\d+", output))
        self._to_write.put(None)
        self._silent.wait(0 if self.fault else GRACE_S)
        has_exited = self.learn_exit_code(0.05)
        with contextlib.suppress(OhsandboxError):
            if not has_exited:
                self._channel.kill()
            if family:
                self._runtime.snippet(_KILL_FAMILY % family, user=self._command.user)
            for _ in range(_SWEEPS):
                body = _SWEEP % (self._mark.encode(), 1024 * self._limit_kib)
                if not self._runtime.snippet(body, user=self._command.user).stdout.strip():
                    break
        self.learn_exit_code()

    def learn_exit_code(self, timeout_s: float = _EXIT_CODE_S) -> bool:
        """Set `exit_code` if the process ends within timeout_s seconds; return whether it is known."""
        if self.exit_code is None:
            with contextlib.suppress(OhsandboxError, TimeoutError):
                self.exit_code = self._channel.wait(timeout_s)
        return self.exit_code is not None

    async def aclose(self) -> None:
        """Call `end`, then close the channel, on the loop; idempotent."""
        await asyncio.shield(self._close_soon())

    def _close_soon(self) -> asyncio.Future[None]:
        if self._closing is None:
            self._closing = detach(self._close())
        return self._closing

    async def _close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.end)
        self._finish()
        self.inbox.close()
        self._channel.close()

    async def notice_exit(self) -> None:
        """Read the last output of a server that has exited, and end its streams, which others may hold open."""
        loop = asyncio.get_running_loop()
        if not self._silent.is_set() and await loop.run_in_executor(None, self.learn_exit_code, 0):
            await asyncio.sleep(_LAST_READ_S)
            self._finish()

    def exit_description(self) -> str:
        """Return how the server ended, with its last output, in sentences."""
        program = self._command.argv[0]
        if self.fault:
            ending = self.fault
        elif self.exit_code == NOT_FOUND:
            ending = f"The program {program!r} was not found. Install it in the image, or correct `command`."
        elif self.exit_code == NOT_EXECUTABLE:
            ending = f"The program {program!r} cannot be executed. Correct its mode, or `command`."
        else:
            ending = f"It ended with exit code {'unknown' if self.exit_code is None else self.exit_code}."
        if stderr := visible_excerpt(
            bytes(self._stderr[-2 * LAST_WORDS_CHARS :]).decode("utf-8", "replace"), limit_chars=10**9
        ):
            ending += f" Its stderr ends: {stderr[-LAST_WORDS_CHARS:]}"
        if self._intake.noise:
            noise = visible_excerpt("\n".join(self._intake.noise), limit_chars=LAST_WORDS_CHARS)
            ending += f" Of stdout, {self._intake.noise_lines} lines were not messages, the last: {noise}"
        return ending


class SandboxTransport(ClientTransport):
    """Starts a stdio server by `Runtime.channel`: without an engine client, full duplex, and with limited lines."""

    def __init__(self, runtime: Runtime, command: Command) -> None:
        self._runtime, self._command = runtime, command
        self.process: ServerProcess | None = None
        """The server of the last connection."""
        self.on_words: Callable[[str], None] | None = None
        """The callback `on_words` of the next server."""

    def __repr__(self) -> str:
        return f"<SandboxTransport({self._command.argv[0]!r})>"

    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        """Start the server and yield a session that is not initialized; end the server after that.

        Raises:
            MCPConnectionError: the server cannot be started.
            SandboxUnavailable: the sandbox is unavailable.
        """
        session_class = transport_options.session_class if transport_options else GuardedSession
        starting = asyncio.get_running_loop().run_in_executor(None, ServerProcess, self._runtime, self._command)
        try:
            self.process = process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            detach(_end_late(starting))
            raise
        try:
            process.on_words = self.on_words
            process.watch()
            async with session_class(process.inbox, process.outbox, **session_kwargs) as session:
                yield session
        finally:
            await asyncio.shield(detach(process.aclose()))

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Check regularly in the block that the server runs: a child may hold a dead server's streams open."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if self.process is not None:
                detach(self.process.notice_exit())
            timer = loop.call_later(LOOK_EVERY_S, look)

        timer = loop.call_later(LOOK_EVERY_S, look)
        try:
            yield
        finally:
            timer.cancel()

    async def exit_description(self) -> str | None:
        """Return how the server ended, with its last output; None while it runs."""
        process = self.process
        if process is None or not process.is_over:
            return None
        if process.fault is None:
            await asyncio.get_running_loop().run_in_executor(None, process.learn_exit_code)
        return process.exit_description()


async def _end_late(starting: asyncio.Future[ServerProcess]) -> None:
    process = await starting
    process.watch()
    await process.aclose()
