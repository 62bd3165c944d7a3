"""A channel to a process on this host."""

from __future__ import annotations

import atexit
import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from ohsandbox.runtime.channel import Channel, Chunk, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

READ_BYTES = 1 << 18
"""A pipe holds 64 KiB by default; a read never waits to fill this."""

_TAKE_TERMINAL = 'exec <"$0" >"$0" 2>&1; exec "$@"'
"""The leader of a new session that opens a terminal gets it as its controlling one (POSIX.1-2017 11.1.3)."""

_BY_POPEN = {signal.SIGPIPE, signal.SIGXFSZ}
"""Ignored by Python itself; Popen restores them in its children."""
_WITH_DEFAULT_SIGNALS = """
import os, signal, sys
for number in signal.valid_signals():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
    sys.exit(126 if isinstance(error, PermissionError) else 127)
"""
"""What a parent ignores its children ignore, and a shell cannot undo it (POSIX.1-2017 2.11): so before it starts."""

_leaving = threading.Lock()
_left_running: list[subprocess.Popen[bytes]] = []
"""Processes whose channel was closed before they ended; a thread each waits for them, so that none stays a zombie."""


def _default_signals() -> list[str]:
    """The words before a program that gives it every signal's default, where we ourselves ignore one.

    A shell starts its background jobs with SIGINT and SIGQUIT ignored, `nohup` with SIGHUP. It takes 9 ms there and
    0.1 ms elsewhere; `preexec_fn` would fork a process of many threads.
    """
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    return [sys.executable, "-I", "-S", "-c", _WITH_DEFAULT_SIGNALS] if ignored - _BY_POPEN else []


def _outlive(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with _leaving:
            _left_running.append(process)
        threading.Thread(target=_reap, args=(process,), name="ohsandbox-reap", daemon=True).start()


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    with _leaving:
        _left_running.remove(process)


@atexit.register
def _reap_the_last() -> None:
    for process in [*_left_running]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)


class LocalChannel(Channel):
    """A child process, over pipes or a pseudo-terminal."""

    def __init__(self, argv: Sequence[str], *, tty: bool, env: Mapping[str, str], workdir: str) -> None:
        """Start argv in workdir with exactly env.

        Raises:
            OSError: workdir cannot be entered, or argv[0] cannot be executed (exit code 127 where we ignore a signal).
        """
        argv = [*_default_signals(), *argv]
        self._master: int | None = None
        if tty:
            self._master, slave = pty.openpty()
            name = os.ttyname(slave)
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _TAKE_TERMINAL, name, *argv],
                    stdin=slave, stdout=slave, stderr=slave,
                    env=dict(env), cwd=workdir, start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(slave)
            self._streams = {self._master: Stream.STDOUT}
            self._stdin: int | None = self._master
        else:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(env), cwd=workdir, start_new_session=True, bufsize=0,
            )  # fmt: skip
            assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: PT018, S101 - PIPE gives all three
            self._streams = {
                self._process.stdout.fileno(): Stream.STDOUT,
                self._process.stderr.fileno(): Stream.STDERR,
            }
            self._stdin = self._process.stdin.fileno()
        self.pid = self._process.pid
        self._poll = select.poll()
        for fd in self._streams:
            self._poll.register(fd, select.POLLIN)

    def filenos(self) -> list[int]:
        """One descriptor a stream that is still open."""
        return list(self._streams)

    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """See `Channel.read`."""
        while self._streams:
            ready = self._poll.poll(None if timeout_s is None else max(0, timeout_s * 1000))
            if not ready:
                return None
            chunks = [chunk for fd, _ in ready if (chunk := self._read_one(fd))]
            if chunks:
                return chunks
        return []

    def _read_one(self, fd: int) -> Chunk | None:
        stream = self._streams.get(fd)
        if stream is None:  # closed by another thread meanwhile
            return None
        try:
            data = os.read(fd, READ_BYTES)
        except OSError:  # a terminal whose last process ended reads as EIO on Linux
            data = b""
        if data:
            return Chunk(stream, data)
        with contextlib.suppress(KeyError):
            self._poll.unregister(fd)
            del self._streams[fd]
        return None

    def write(self, data: Buffer) -> None:
        """See `Channel.write`."""
        view = memoryview(data)
        while view:
            if (stdin := self._stdin) is None:
                raise BrokenPipeError("stdin is closed")
            try:
                view = view[os.write(stdin, view) :]
            except OSError as error:
                raise BrokenPipeError(str(error)) from error

    def close_stdin(self) -> None:
        """See `Channel.close_stdin`."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._stdin = None

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"Process {self.pid} still runs after {timeout_s} s") from None
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """See `Channel.kill`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """See `Channel.close`."""
        self._stdin = None
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._master is not None:
            os.close(self._master)
            self._master = None
        self._streams = {}
        _outlive(self._process)
