"""`Channel`: a duplex byte stream to one process of a sandbox. Every backend implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from typing_extensions import Buffer

KILLED = 128 + 9
"""Exit code of a process that SIGKILL ended; the kernel's OOM killer sends SIGKILL too."""


POLL_MS = 1000
"""The longest poll of a channel's descriptors. poll(2) looks them up by number each time it wakes, so a descriptor that
another thread closed and reused for another file cannot block the poll for ever."""


class Stream(IntEnum):
    """Which of the process's streams a chunk came from; a terminal has STDOUT only."""

    STDOUT = 1
    STDERR = 2


class Chunk(NamedTuple):
    """Some bytes of one stream, never empty."""

    stream: Stream
    data: bytes


class Channel(ABC):
    """A running process: write to its stdin, read its output, get its exit code.

    One thread may read while another writes. Closing twice is fine.
    """

    pid: int
    """The process's id as the sandbox sees it; it leads its own session and process group."""

    def filenos(self) -> list[int] | None:
        """File descriptors to poll: once one is readable, `read(0)` returns something. Empty after the end of stream.

        None, the default, for a channel without descriptors (a websocket, an HTTP/2 stream): its reader then blocks in
        `read` in a thread of its own, at the cost of one thread per channel.
        """
        return None

    @abstractmethod
    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """Return the chunks that arrived; wait at most timeout_s seconds (None: for ever) for the first byte.

        Returns:
            The chunks in order; `[]` at the end of the stream; None if the time ran out.

        End of stream is not success: ask `wait`.

        Raises:
            SandboxUnavailable: the connection broke.
        """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Write all of data to the process's stdin or terminal, blocking as long as it takes.

        Raises:
            BrokenPipeError: the process closed its stdin or ended.
            SandboxUnavailable: the connection broke.
        """

    def write_some(self, data: Buffer) -> int:  # noqa: ARG002 - for those that can
        """Write as much of data as is taken without blocking; while no other thread writes.

        Returns:
            How many bytes were written. 0, the default: none now, or the channel cannot know; `write` takes them.

        Raises:
            BrokenPipeError, SandboxUnavailable: as `write`.
        """
        return 0

    @abstractmethod
    def close_stdin(self) -> None:
        """Half-close: the process reads end of file. Output still flows. Not for terminals."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the exit code; 128 + N if signal N ended the process.

        Raises:
            TimeoutError: it still runs after timeout_s seconds.
            SandboxUnavailable: the sandbox is gone, so the exit code is unknown.
        """

    def resize(self, columns: int, rows: int) -> bool:  # noqa: ARG002 - for those that can
        """Set the size of the process's terminal; what runs in its foreground gets SIGWINCH if that changed it.

        columns and rows are 1 to 65,535.

        Returns:
            Whether it has this size now. False, the default: the backend cannot, the process has no terminal, or it
            has ended.

        Raises:
            SandboxUnavailable: the connection broke.
        """
        return False

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL the process and its process group; returns when the signal is sent."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. A process that still runs is not killed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
