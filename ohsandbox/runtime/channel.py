"""`Channel`: a duplex byte stream to a process in a sandbox; each backend implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from typing_extensions import Buffer

KILLED = 128 + 9
"""Exit code of a process ended by SIGKILL, which the kernel's OOM killer sends, too."""
FIRST_SIGNAL_CODE = 129
"""A shell reports death by signal N as 128 + N."""


POLL_MS = 1000
"""Maximum time of one poll of a channel's descriptors. poll(2) looks them up by number each time it wakes, so a
descriptor that another thread closed and reused for another file cannot block the poll for ever."""


class Stream(IntEnum):
    """The stream of a chunk; a terminal has only STDOUT."""

    STDOUT = 1
    STDERR = 2


class Chunk(NamedTuple):
    """Bytes of one stream; never empty."""

    stream: Stream
    data: bytes


class Channel(ABC):
    """A running process: write to its stdin, read its output, get its exit code.

    One thread may read while another writes.
    """

    pid: int
    """The process id in the sandbox; the process leads its own session and process group."""

    def filenos(self) -> list[int] | None:
        """Return the descriptors to poll: when one is readable, `read(0)` returns something. Empty after the end.

        None, the default, is for a channel without descriptors (a websocket, an HTTP/2 stream): its reader then blocks
        in `read`, in a thread of its own.
        """
        return None

    @abstractmethod
    def read(self, timeout_s: float | None = None) -> list[Chunk] | None:
        """Wait at most timeout_s seconds (None: without limit) for output, and return it.

        Returns:
            The chunks in order; `[]` at the end of the stream; None if the time has passed.

        The end of the stream is not success: call `wait`.

        Raises:
            SandboxUnavailable: the connection has broken.
        """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Write all of data to the process's stdin or terminal; block until it is taken.

        Raises:
            BrokenPipeError: the process closed its stdin or ended.
            SandboxUnavailable: the connection has broken.
        """

    def write_some(self, data: Buffer) -> int:  # noqa: ARG002 - for those that can
        """Write as much of data as is taken without blocking; no other thread may write.

        Returns:
            The number of bytes written. 0, the default: none, or the channel cannot know; use `write` for them.

        Raises:
            BrokenPipeError, SandboxUnavailable: as for `write`.
        """
        return 0

    @abstractmethod
    def close_stdin(self) -> None:
        """Close the process's stdin, so that it reads end of file; its output continues. Not for terminals."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the exit code; 128 + N if signal N ended the process.

        Raises:
            TimeoutError: the process is still running after timeout_s seconds.
            SandboxUnavailable: the sandbox is gone, so the exit code is unknown.
        """

    def resize(self, columns: int, rows: int) -> bool:  # noqa: ARG002 - for those that can
        """Set the size of the process's terminal; its foreground process gets SIGWINCH if the size has changed.

        columns and rows are 1 to 65,535.

        Returns:
            Whether the terminal has this size now. False, the default: the backend cannot set it, the process has no
            terminal, or it has ended.

        Raises:
            SandboxUnavailable: the connection has broken.
        """
        return False

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the process and its process group, without waiting for their end."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; idempotent. A running process is not killed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
