"""One server process in a sandbox: its lines in and out, its last words, and its end."""

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
"""A message with a 10 MB file in base64 fits; no endless line fills the host."""

MAX_UNREAD_BYTES = 2 * MAX_LINE_BYTES
"""Messages that wait for a server which does not read its input."""

STDERR_BYTES = 64 * 1024
"""Kept of what a server writes to standard error, from the end."""

LAST_WORDS_CHARS = 2000
"""Of that, and of noise on stdout, this much is told when it ends."""

STATUS_BYTES, STATUS_CHARS = 4096, 160
"""Of what it prints while it starts, the end, and of that a line."""

DIRECT_BYTES = 4096
"""A socket that polls writable takes so much without blocking (Linux: a third of its buffer is free); such a message
skips the writing thread, which costs 60 microseconds a call."""

GRACE_S = 2.0
"""From the end of a server's input to SIGKILL: the MCP SDKs wait as long."""

LAST_READ_S = 0.2
"""For what a process that has exited left in its pipes."""

EXIT_CODE_S = 1.0
"""For the engine to say how a process ended whose streams are over."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell reports for a program that is not there, or cannot be executed (POSIX XCU 2.8.2)."""

_BEGIN = 'ulimit -m %d 2>/dev/null;exec "$@"'
_BEGIN_IN = 'ulimit -m %d 2>/dev/null;cd "$0"&&exec "$@"'
"""In sh. The limit of the resident set is a second mark: Linux has not heeded it since 2.4.30, and children inherit it
even with an empty environment, in a session of their own, and when their parents are gone."""

_FAMILY = (
    b"ohs_hit=' %d ' ohs_found= ohs_more=yes;while [ $ohs_more ];do ohs_more=;for ohs_d in /proc/[0-9]*;do"
    b' ohs_p=${ohs_d#/proc/};case $ohs_hit in *" $ohs_p "*)continue;;esac;ohs_stat $ohs_p||continue;set -- $ohs_line;'
    b'case $ohs_hit in *" $2 "*)ohs_hit="$ohs_hit$ohs_p " ohs_found="$ohs_found $ohs_p:${20}" ohs_more=yes;;esac;'
    b"done;done;echo $ohs_found"
)
"""Lists what descends from a process, as PID:START. With the functions of processes.sh, which every worker has."""

_KILL_FAMILY = (
    b"for ohs_p in %s;do ohs_stat ${ohs_p%%:*}||continue;set -- $ohs_line;"
    b"[ ${20} = ${ohs_p#*:} ]&&kill -9 ${ohs_p%%:*};done 2>/dev/null;:"
)

_SWEEP = (
    b"for ohs_d in $(grep -lse %s -e 'resident set *%d ' /proc/[0-9]*/environ /proc/[0-9]*/limits 2>/dev/null);do"
    b" ohs_p=${ohs_d#/proc/};kill -9 ${ohs_p%%/*} 2>/dev/null&&echo $ohs_p;done;:"
)
"""Kills whatever has one of our marks, in its environment or its limits, and lists it."""
_SWEEPS = 5
"""A tree that forks while it is killed is swept again."""


class Command(NamedTuple):
    """What to start, and as whom."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}
    cwd: str | None = None
    user: str | int | None = None


class ServerProcess:
    """A server that runs. Its streams live on the event loop that `watch` is called on; all else may block."""

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
        """Why we let go of it, where it was not its own end."""
        self.exit_code: int | None = None
        self.on_words: Callable[[str], None] | None = None
        """Called on the loop with what it prints that is not a message: the last line of each piece."""

    @property
    def is_over(self) -> bool:
        """It ended, or we let go of it."""
        return self._silent.is_set()

    # --- on the loop --------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to read and write."""
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
        if self.fault is not None:  # it may not run on until somebody asks for it
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
        """Whether the one descriptor is a socket, so that it tells of writing too, and has room."""
        fds = self._channel.filenos() or ()
        if len(fds) != 1 or not stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
            return False
        poller = select.poll()
        poller.register(fds[0], select.POLLOUT)
        return bool(poller.poll(0))

    # --- in threads ---------------------------------------------------------------------------

    def _read_all(self) -> None:
        """Read a channel without descriptors; each piece waits until the loop has taken the one before."""
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
        """Close its input, wait, and kill what is left of it and its children. Blocks for grace_s and a little."""
        family = self._family()  # first: children of one that has gone are nobody's any more
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
        """`end`, then let go of the channel; on the loop. Twice is fine."""
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
        """Let go of it where it has exited, whoever holds its streams open; what it wrote last is still read."""
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
        """Its descendants now: once it has ended, one without our mark is a stranger."""
        try:
            said = self._runtime.snippet(_FAMILY % self._channel.pid, user=self._command.user).stdout
        except OhsandboxError:
            return b""
        return b" ".join(re.findall(rb"\b\d+:\d+", said))

    def _sweep(self, family: bytes) -> None:
        """SIGKILL to the family, and to all with one of our marks."""
        if family:
            self._runtime.snippet(_KILL_FAMILY % family, user=self._command.user)
        for _ in range(_SWEEPS):
            body = _SWEEP % (self._mark.encode(), 1024 * self._limit_kib)
            if not self._runtime.snippet(body, user=self._command.user).stdout.strip():
                break

    def learn_exit_code(self) -> None:
        """Ask for `exit_code`, waiting a little."""
        if self.exit_code is None:
            with contextlib.suppress(OhsandboxError, TimeoutError):
                self.exit_code = self._channel.wait(EXIT_CODE_S)

    # --- words --------------------------------------------------------------------------------

    def epitaph(self) -> str:
        """How it ended, and its last words: sentences."""
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
