"""One server process in a sandbox: its lines in and out, its last output, and its termination."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import secrets
import select
import stat
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable, UsageError
from ohsandbox.mcp.errors import MCPConnectionError
from ohsandbox.mcp.loop import detach
from ohsandbox.mcp.streams import Inbox, Intake, LineFramer, LineTooLongError, Outbox, ProtocolFloodError
from ohsandbox.mcp.text import one_line, visible
from ohsandbox.runtime.channel import Channel, Chunk, Stream
from ohsandbox.runtime.process.invocation import limit_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.base import Runtime

MAX_LINE_BYTES = 16_000_000
"""A message with a 10 MB file in base64 fits; an endless line cannot exhaust the host's memory."""

MAX_UNREAD_BYTES = 2 * MAX_LINE_BYTES
"""Limit of queued messages for a server that does not read its input."""

STDERR_BYTES = 64 * 1024
"""The tail of a server's standard error that we keep."""

LAST_WORDS_CHARS = 2000
"""The part of that tail, and of invalid lines on stdout, that the error message quotes."""

STATUS_BYTES, STATUS_CHARS = 4096, 160
"""The tail of the start-up output that we read, and the length of the line taken from it."""

DIRECT_BYTES = 4096
"""A socket that polls writable accepts this much without blocking (Linux: a third of its buffer is free); such a
message skips the writing thread, which costs 60 microseconds a call."""

GRACE_S = 2.0
"""Time between closing a server's input and SIGKILL: the MCP SDKs use the same."""

LAST_READ_S = 0.2
"""Time to read the rest of an exited process's pipes."""

EXIT_CODE_S = 1.0
"""Time for the engine to report the exit code after the streams have ended."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""A shell's exit codes for a program that does not exist, or cannot be executed (POSIX XCU 2.8.2)."""

_BEGIN = 'ulimit -m %d 2>/dev/null;exec "$@"'
_BEGIN_IN = 'ulimit -m %d 2>/dev/null;cd "$0"&&exec "$@"'
"""For sh. The resident set limit is a second mark: Linux has ignored it since 2.4.30, and children inherit it even with
an empty environment, in their own session, and after their parents have exited."""

_FAMILY = (
    b"ohs_hit=' %d ' ohs_found= ohs_more=yes;while [ $ohs_more ];do ohs_more=;for ohs_d in /proc/[0-9]*;do"
    b' ohs_p=${ohs_d#/proc/};case $ohs_hit in *" $ohs_p "*)continue;;esac;ohs_stat $ohs_p||continue;set -- $ohs_line;'
    b'case $ohs_hit in *" $2 "*)ohs_hit="$ohs_hit$ohs_p " ohs_found="$ohs_found $ohs_p:${20}" ohs_more=yes;;esac;'
    b"done;done;echo $ohs_found"
)
"""Lists the descendants of a process as PID:START. Uses the functions of processes.sh, which every worker has."""

_KILL_FAMILY = (
    b"for ohs_p in %s;do ohs_stat ${ohs_p%%:*}||continue;set -- $ohs_line;"
    b"[ ${20} = ${ohs_p#*:} ]&&kill -9 ${ohs_p%%:*};done 2>/dev/null;:"
)

_SWEEP = (
    b"for ohs_d in $(grep -lse %s -e 'resident set *%d ' /proc/[0-9]*/environ /proc/[0-9]*/limits 2>/dev/null);do"
    b" ohs_p=${ohs_d#/proc/};kill -9 ${ohs_p%%/*} 2>/dev/null&&echo $ohs_p;done;:"
)
"""Kills and lists every process that has one of our marks in its environment or its limits."""
_SWEEPS = 5
"""A process tree that forks during a sweep needs another sweep."""


class Command(NamedTuple):
    """The command to start, and its user."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}
    cwd: str | None = None
    user: str | int | None = None


class ServerProcess:
    """A running server. Its streams belong to the event loop that calls `watch`; all other methods may block."""

    def __init__(self, runtime: Runtime, command: Command) -> None:
        """Start it.

        Raises:
            MCPConnectionError: it cannot be started.
            SandboxUnavailable: the sandbox cannot serve.
        """
        self._runtime, self._command = runtime, command
        self._mark = f"OHSANDBOX_MCP={secrets.token_hex(8)}"
        self._limit_kib = limit_mark()
        self._channel = _open(runtime, command, self._mark, self._limit_kib)
        self._framer = LineFramer(MAX_LINE_BYTES)
        self.intake = Intake()
        self.inbox = Inbox()
        self.outbox = Outbox(self.intake, self._write)
        self._stderr = bytearray()
        self._to_write: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = 0
        self._counting = threading.Lock()
        self._watched: set[int] = set()
        self._silent = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self.fault: str | None = None
        """Why we dropped it, if it did not end by itself."""
        self.exit_code: int | None = None
        self.on_words: Callable[[str], None] | None = None
        """Called on the loop with output that is not a message: the last line of each chunk."""

    @property
    def is_over(self) -> bool:
        """Whether it ended or we dropped it."""
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
        now = set() if self._silent.is_set() else set(self._channel.filenos() or ())
        for fd in self._watched - now:
            self._loop.remove_reader(fd)
        for fd in now - self._watched:
            self._loop.add_reader(fd, self._readable)
        self._watched = now

    def _readable(self) -> None:
        self._receive(lambda: self._channel.read(0))
        self._watch()

    def _receive(self, read: Callable[[], list[Chunk] | None]) -> None:
        try:
            chunks = read()
            for chunk in chunks or ():
                self._take(chunk)
        except (LineTooLongError, ProtocolFloodError) as error:
            self.fault = f"It was stopped because it sent {error}."
            chunks = []
        except (SandboxUnavailable, OSError, ValueError) as error:
            self.fault = f"The connection to it broke: {error}"
            chunks = []
        if chunks == []:
            self._finish()

    def _take(self, chunk: Chunk) -> None:
        if chunk.stream is Stream.STDERR:
            self._stderr += chunk.data
            del self._stderr[:-STDERR_BYTES]
            self._pass_on(chunk.data)
            return
        for line in self._framer.feed(chunk.data):
            if (message := self.intake.take(line)) is not None:
                self.inbox.put(message)
            else:
                self._pass_on(line)

    def _pass_on(self, words: bytes) -> None:
        if self.on_words is not None and (lines := words[-STATUS_BYTES:].replace(b"\r", b"\n").strip().splitlines()):
            self.on_words(one_line(lines[-1].decode("utf-8", "replace"), limit_chars=STATUS_CHARS))

    def _finish(self) -> None:
        if self._silent.is_set():
            return
        with contextlib.suppress(ProtocolFloodError):
            if self.fault is None and (message := self.intake.take(self._framer.rest())) is not None:
                self.inbox.put(message)
        self._silent.set()
        self.inbox.finish()
        if self.fault is not None:  # end it now, not at the next use
            self._close_soon()

    def _write(self, data: bytes) -> None:
        with self._counting:
            self._unread += len(data)
        if self._unread > MAX_UNREAD_BYTES:
            self.fault = f"It was stopped because it does not read its input: {self._unread} bytes wait for it."
            self._finish()
            self._watch()
        if self._silent.is_set():
            raise BrokenPipeError
        if self._unread == len(data) <= DIRECT_BYTES and self._takes_at_once():
            self._unread = 0
            try:
                self._channel.write(data)
            except SandboxUnavailable:
                raise BrokenPipeError from None
        else:
            self._to_write.put(data)

    def _takes_at_once(self) -> bool:
        """Whether the only descriptor is a socket, which also polls for writing, and has room."""
        fds = self._channel.filenos() or ()
        if len(fds) != 1 or not stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
            return False
        poller = select.poll()
        poller.register(fds[0], select.POLLOUT)
        return bool(poller.poll(0))

    # --- in threads ---------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Read a channel without descriptors; each chunk waits until the loop has taken the previous one."""
        assert self._loop is not None  # noqa: S101 - set by watch
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while not self._silent.is_set():
                found: Future[list[Chunk] | None] = Future()
                try:
                    found.set_result(self._channel.read())
                except (SandboxUnavailable, OSError, ValueError) as error:
                    found.set_exception(error)
                asyncio.run_coroutine_threadsafe(self._receive_read(found), self._loop).result()

    async def _receive_read(self, found: Future[list[Chunk] | None]) -> None:
        self._receive(found.result)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError, OhsandboxError):
            while (data := self._to_write.get()) is not None:
                self._channel.write(data)
                with self._counting:
                    self._unread -= len(data)
        self._channel.close_stdin()

    def end(self, grace_s: float = GRACE_S) -> None:
        """Close its input, wait, then kill it and its remaining children. Blocks slightly longer than grace_s."""
        family = self._family()  # first: the children of an exited process lose their parent
        self._to_write.put(None)
        self._silent.wait(0 if self.fault else grace_s)
        with contextlib.suppress(OhsandboxError, TimeoutError):
            self.exit_code = self._channel.wait(0.05)
        with contextlib.suppress(OhsandboxError):
            if self.exit_code is None:
                self._channel.kill()
            self._sweep(family)
        self.learn_exit_code()

    async def aclose(self) -> None:
        """Call `end`, then close the channel; on the loop. Safe to call twice."""
        await asyncio.shield(self._close_soon())

    def _close_soon(self) -> asyncio.Future[None]:
        if self._closing is None:
            self._closing = detach(self._close())
        return self._closing

    async def _close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.end)
        self._finish()
        self._watch()
        self._channel.close()

    async def notice_exit(self) -> None:
        """Drop it if it has exited, even if others hold its streams open; its last output is still read."""
        if self._silent.is_set() or not await asyncio.get_running_loop().run_in_executor(None, self._has_exited):
            return
        await asyncio.sleep(LAST_READ_S)
        self._finish()
        self._watch()

    def _has_exited(self) -> bool:
        try:
            self.exit_code = self._channel.wait(0)
        except (OhsandboxError, TimeoutError):
            return False
        return True

    def _family(self) -> bytes:
        """Its current descendants: after its end, we cannot identify one without our mark."""
        try:
            said = self._runtime.snippet(_FAMILY % self._channel.pid, user=self._command.user).stdout
        except OhsandboxError:
            return b""
        return b" ".join(re.findall(rb"\b\d+:\d+", said))

    def _sweep(self, family: bytes) -> None:
        """Send SIGKILL to the family, and to all processes with one of our marks."""
        if family:
            self._runtime.snippet(_KILL_FAMILY % family, user=self._command.user)
        for _ in range(_SWEEPS):
            body = _SWEEP % (self._mark.encode(), 1024 * self._limit_kib)
            if not self._runtime.snippet(body, user=self._command.user).stdout.strip():
                break

    def learn_exit_code(self) -> None:
        """Set `exit_code`, waiting up to EXIT_CODE_S."""
        if self.exit_code is None:
            with contextlib.suppress(OhsandboxError, TimeoutError):
                self.exit_code = self._channel.wait(EXIT_CODE_S)

    # --- messages --------------------------------------------------------------------------------

    def epitaph(self) -> str:
        """Describe how it ended, with its last output, in sentences."""
        program = self._command.argv[0]
        if self.fault:
            how = self.fault
        elif self.exit_code == NOT_FOUND:
            how = f"The program {program!r} was not found. Install it in the image, or correct `command`."
        elif self.exit_code == NOT_EXECUTABLE:
            how = f"The program {program!r} cannot be executed. Correct its mode, or `command`."
        else:
            how = f"It ended with exit code {'unknown' if self.exit_code is None else self.exit_code}."
        return f"{how}{self._last_words()}"

    def _last_words(self) -> str:
        words = ""
        if said := visible(bytes(self._stderr[-2 * LAST_WORDS_CHARS :]).decode("utf-8", "replace"), limit_chars=10**9):
            words += f" Its stderr ends: {said[-LAST_WORDS_CHARS:]}"
        if self.intake.noise:
            noise = visible("\n".join(self.intake.noise), limit_chars=LAST_WORDS_CHARS)
            words += f" Of stdout, {self.intake.noise_lines} lines were not messages, the last: {noise}"
        return words


def _open(runtime: Runtime, command: Command, mark: str, limit_kib: int) -> Channel:
    script = _BEGIN if command.cwd is None else _BEGIN_IN
    argv = ["/bin/sh", "-c", script % limit_kib, command.cwd or "sh", *command.argv]
    name, _, value = mark.partition("=")
    try:
        return runtime.channel(argv, env={**command.env, name: value}, user=command.user)
    except FileNotFoundError:
        raise MCPConnectionError(
            f"The program {command.argv[0]!r} was not found. Install it, or correct `command`."
        ) from None
    except (OSError, UsageError) as error:
        raise MCPConnectionError(f"The program {command.argv[0]!r} cannot be started: {error}.") from None
