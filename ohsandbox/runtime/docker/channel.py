"""`DockerChannel`: one exec of the engine as a duplex byte channel."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.runtime.channel import Channel

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ohsandbox.runtime.channel import Chunk
    from ohsandbox.runtime.docker.exec import Exec

BUFFER_BYTES = 1024 * 1024
"""Size of one read: the engine sends frames of up to 32 KiB, so up to 32 frames a call."""
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1


class DockerChannel(Channel):
    """An exec that has completed its handshake. The constructor starts the process.

    Raises:
        UsageError: an argument cannot be passed, or the user or the working directory does not exist.
        SandboxUnavailable: the sandbox or the engine cannot start it.
    """

    def __init__(self, exec_: Exec) -> None:
        self._exec = exec_
        begun = exec_.begin()
        self.pid = begun.hello.pid
        self.facts = begun.hello.facts
        self._wire = begun.wire
        self._buffer: memoryview | None = None
        self._closed = threading.Event()
        self._ended = False

    def filenos(self) -> list[int]:
        """See `Channel.filenos`."""
        return [] if self._ended or self._closed.is_set() else [self._wire.fileno()]

    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """See `Channel.read`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._ended or self._closed.is_set()):
            chunks = self._read_once(deadline)
            if chunks or chunks is None:
                return chunks
        return []

    def _read_once(self, deadline: float | None) -> list[Chunk] | None:
        """Receive once: None when deadline passed, [] at the end of the stream or for a read without payload."""
        if self._buffer is None:  # a channel that only waits needs no buffer
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        try:
            if not self._wire.readable(deadline):
                return None
            count = self._wire.recv_into(self._buffer)
        except ConnectionResetError:  # Linux resets a Unix socket whose peer closed with our input unread
            count = 0
        except (OSError, ValueError) as error:
            if not self._closed.is_set():
                raise self._exec.lost(f"reading failed: {error}") from error
            count = 0
        self._ended = not count
        return self._exec.frames.feed(self._buffer[:count])

    def write(self, data: Buffer) -> None:
        """See `Channel.write`."""
        try:
            self._wire.sendall(memoryview(data).cast("B"), self._refuse_ended)
        except (BrokenPipeError, ConnectionResetError):
            raise BrokenPipeError("The process closed its input or ended.") from None
        except (OSError, ValueError) as error:
            if self._closed.is_set():
                raise BrokenPipeError("The channel is closed.") from None
            raise self._exec.lost(f"writing failed: {error}") from error

    def _refuse_ended(self) -> None:
        """The engine may leave the connection of an ended process open with 10 MB of input unread (observed)."""
        if self._exec.exit_code() is not None:
            raise BrokenPipeError

    def close_stdin(self) -> None:
        """See `Channel.close_stdin`."""
        try:
            self._wire.half_close()
        except (OSError, ValueError):
            return  # the peer is gone already; `wait` reports how the process ended

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Channel.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while (code := self._exec.exit_code()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"The process still runs after {timeout_s:g} s.")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        return code

    def kill(self) -> None:
        """See `Channel.kill`."""
        if self._exec.exit_code() is None:
            self._exec.kill(self.pid)

    def close(self) -> None:
        """See `Channel.close`."""
        self._closed.set()
        self._wire.close()
