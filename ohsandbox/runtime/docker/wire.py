"""The hijacked connection under a channel: one interface for Unix, TCP, TLS and SSH sockets."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from ohsandbox.runtime.channel import Chunk, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Stalled = Callable[[], None]

POLL_MS = 1000
_RECORD_BYTES = 16 * 1024


def _patient() -> None:
    """Do nothing: wait without a limit."""


class Wire(ABC):
    """Raw bytes in both directions. Every call except `close` may block."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor that polls as readable when bytes arrive."""

    @abstractmethod
    def pending(self) -> bool:
        """Whether decoded bytes are buffered, which polling the descriptor does not show."""

    @abstractmethod
    def recv_into(self, view: memoryview) -> int:
        """Read at least one byte into view; return 0 at the end of the stream."""

    @abstractmethod
    def sendall(self, data: memoryview, stalled: Stalled = _patient) -> None:
        """Send all of data, without a time limit; stalled is called each second without progress, and may raise."""

    @abstractmethod
    def half_close(self) -> None:
        """Send end of file; the peer may go on writing."""

    @abstractmethod
    def close(self) -> None:
        """Wake blocked readers and writers, then close."""

    def readable(self, deadline: float | None) -> bool:
        """Wait until `recv_into` would not block; return False when time.monotonic() passes deadline first."""
        if self.pending():
            return True
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN | select.POLLPRI)
        while True:
            left = POLL_MS if deadline is None else max(0, round((deadline - time.monotonic()) * 1000))
            if poller.poll(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False


class SocketWire(Wire):
    """A Unix or TCP socket."""

    def __init__(self, sock: socket.socket, *, holders: Sequence[Any]) -> None:
        self._sock = sock
        self._holders = holders  # docker-py's reader and HTTP response: the socket lives until each is closed
        sock.settimeout(None)  # docker-py sets its 60 s HTTP timeout on it

    def fileno(self) -> int:
        """See `Wire.fileno`."""
        return self._sock.fileno()

    def pending(self) -> bool:
        """See `Wire.pending`."""
        return False

    def recv_into(self, view: memoryview) -> int:
        """See `Wire.recv_into`."""
        return self._sock.recv_into(view)

    def sendall(self, data: memoryview, stalled: Stalled = _patient) -> None:
        """See `Wire.sendall`."""
        while data:
            try:
                data = data[self._sock.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT):
                    stalled()

    def half_close(self) -> None:
        """See `Wire.half_close`."""
        self._sock.shutdown(socket.SHUT_WR)

    def _wait(self, event: int) -> bool:
        poller = select.poll()
        poller.register(self._sock.fileno(), event)
        return bool(poller.poll(POLL_MS))

    def close(self) -> None:
        """See `Wire.close`."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for holder in (*self._holders, self._sock):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                holder.close()


class TlsWire(SocketWire):
    """A TLS socket that never blocks inside OpenSSL: one thread may read while another writes."""

    _sock: ssl.SSLSocket

    def __init__(self, sock: ssl.SSLSocket, *, holders: Sequence[Any]) -> None:
        super().__init__(sock, holders=holders)
        sock.settimeout(0)
        self._arrived = bytearray()
        self._broken: ssl.SSLError | None = None
        self._one_at_a_time = threading.Lock()  # Python before 3.13 lets several threads enter one SSL object at once

    def pending(self) -> bool:
        """See `Wire.pending`."""
        return bool(self._arrived) or self._sock.pending() > 0

    def recv_into(self, view: memoryview) -> int:
        """See `Wire.recv_into`."""
        while True:
            try:
                with self._one_at_a_time:
                    return self._from_arrived(view) or self._receive(view)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLZeroReturnError:
                return 0

    def sendall(self, data: memoryview, stalled: Stalled = _patient) -> None:
        """See `Wire.sendall`."""
        while data:
            try:
                with self._one_at_a_time:
                    sent = self._sock.send(data)
                data = data[sent:]
            except ssl.SSLWantWriteError:
                if not self._wait(select.POLLOUT):
                    stalled()
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)

    def half_close(self) -> None:
        """Send close_notify, which Go's TLS server reads as end of file, and keep reading.

        A non-blocking unwrap() writes the alert and then reads the peer's: SSLWantReadError means success. OpenSSL
        fails the connection if it finds data there instead, so data that has arrived is read first; if more arrives in
        those microseconds, the next read raises an error.
        """
        with self._one_at_a_time:
            self._take_arrived()
            try:
                self._sock.unwrap()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._broken = error

    def _from_arrived(self, view: memoryview) -> int:
        count = min(len(view), len(self._arrived))
        view[:count] = self._arrived[:count]
        del self._arrived[:count]
        return count

    def _receive(self, view: memoryview) -> int:
        if self._broken is not None:
            raise self._broken
        return self._sock.recv_into(view)

    def _take_arrived(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while data := self._sock.recv(_RECORD_BYTES):
                self._arrived += data


class ParamikoChannel(Protocol):
    """The methods of paramiko's Channel that we call."""

    def fileno(self) -> int: ...  # noqa: D102
    def recv_ready(self) -> bool: ...  # noqa: D102
    def recv(self, size: int) -> bytes: ...  # noqa: D102
    def sendall(self, data: bytes) -> None: ...  # noqa: D102
    def shutdown_write(self) -> None: ...  # noqa: D102
    def settimeout(self, seconds: float | None) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class SshWire(Wire):
    """A paramiko channel to `docker system dial-stdio`."""

    CHUNK_BYTES = 32 * 1024
    """The largest amount an SSH window takes at once, and the copy size of dial-stdio."""

    def __init__(self, channel: ParamikoChannel, *, holders: Sequence[Any]) -> None:
        self._channel = channel
        self._holders = holders
        channel.settimeout(None)

    def fileno(self) -> int:
        """See `Wire.fileno`."""
        return self._channel.fileno()

    def pending(self) -> bool:
        """See `Wire.pending`."""
        return self._channel.recv_ready()

    def recv_into(self, view: memoryview) -> int:
        """See `Wire.recv_into`."""
        data = self._channel.recv(len(view))
        view[: len(data)] = data
        return len(data)

    def sendall(self, data: memoryview, stalled: Stalled = _patient) -> None:  # noqa: ARG002 - paramiko blocks itself
        """See `Wire.sendall`."""
        for start in range(0, len(data), self.CHUNK_BYTES):
            self._channel.sendall(bytes(data[start : start + self.CHUNK_BYTES]))

    def half_close(self) -> None:
        """See `Wire.half_close`."""
        self._channel.shutdown_write()

    def close(self) -> None:
        """See `Wire.close`."""
        with contextlib.suppress(Exception):
            self._channel.close()


def wrap(raw: Any) -> Wire:
    """Return the wire for the result of exec_start(socket=True): a SocketIO, an SSLSocket or a paramiko channel."""
    response = getattr(raw, "_response", None)
    body = getattr(response, "raw", None)  # closing `response` itself would put the dead connection back into the pool
    holders = (body, getattr(getattr(body, "_fp", None), "fp", None), raw)
    if hasattr(raw, "recv_ready"):
        return SshWire(raw, holders=holders)
    sock = getattr(raw, "_sock", raw)
    if isinstance(sock, ssl.SSLSocket):
        return TlsWire(sock, holders=holders)
    return SocketWire(sock, holders=holders)


def swallowed(raw: Any) -> bytes:
    """Return bytes that docker-py's HTTP reader buffered after the header. Only after the stream's end."""
    response: Any = getattr(raw, "_response", None)
    try:
        reader = response.raw._fp.fp  # noqa: SLF001 - docker-py stores it nowhere else
        return bytes(reader.read1(65536)) if reader.peek(1) else b""
    except (AttributeError, OSError, ValueError):
        return b""


# --- framing: 8 bytes of header (stream, 0, 0, 0, length), then data; a terminal's stream has no frames ---

_HEADER = struct.Struct(">BxxxL")


class Demultiplexer:
    """Splits framed bytes into chunks; frames may be split anywhere. No work per byte, one copy per run of frames."""

    def __init__(self) -> None:
        self._partial = b""
        self._left = 0
        self._stream = Stream.STDOUT

    def feed(self, view: memoryview) -> list[Chunk]:
        """Return the chunks that view completes or continues; adjacent bytes of one stream are one chunk."""
        chunks: list[Chunk] = []
        run: list[memoryview] = []
        run_stream = self._stream
        while view:
            if not self._left:
                view = self._take_header(view)
                continue
            if run and self._stream is not run_stream:
                chunks.append(Chunk(run_stream, b"".join(run)))
                run = []
            run_stream = self._stream
            run.append(view[: self._left])
            taken = len(run[-1])
            self._left -= taken
            view = view[taken:]
        if run:
            chunks.append(Chunk(run_stream, b"".join(run)))
        return chunks

    def _take_header(self, view: memoryview) -> memoryview:
        need = _HEADER.size - len(self._partial)
        self._partial += bytes(view[:need])
        if len(self._partial) == _HEADER.size:
            number, self._left = _HEADER.unpack(self._partial)
            self._stream = Stream.STDERR if number == Stream.STDERR else Stream.STDOUT
            self._partial = b""
        return view[need:]


class Passthrough:
    """Decoder of a terminal's stream, which has no frames."""

    def feed(self, view: memoryview) -> list[Chunk]:
        """Return all bytes as standard output."""
        return [Chunk(Stream.STDOUT, bytes(view))] if view else []
