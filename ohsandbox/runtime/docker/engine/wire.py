"""The hijacked connection under a channel: one interface for Unix, TCP and TLS sockets, and its framing."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.runtime.channel import POLL_MS, Chunk, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORD_BYTES = 16 * 1024


class Wire:
    """The raw bytes of a Unix or TCP socket in both directions. `readable`, `recv_into` and `sendall` may block."""

    def __init__(self, sock: Any, *, holders: tuple[Any, ...] = ()) -> None:
        self._sock = sock
        self._holders = holders  # docker-py's reader and HTTP response: the socket stays open until each is closed
        sock.settimeout(None)  # the HTTP timeout of the request is still set on it

    def fileno(self) -> int:
        """Return a descriptor that polls as readable when bytes arrive."""
        return int(self._sock.fileno())

    def pending(self) -> bool:
        """Whether decoded bytes are buffered, which polling the descriptor does not show."""
        return False

    def readable(self, deadline: float | None) -> bool:
        """Wait until `recv_into` would not block; return False if deadline, a time of time.monotonic(), comes first."""
        while not self.pending():
            wait_ms = POLL_MS if deadline is None else max(0, min(POLL_MS, round((deadline - time.monotonic()) * 1000)))
            if self._wait(select.POLLIN | select.POLLPRI, wait_ms):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def _wait(self, event: int, timeout_ms: int = POLL_MS) -> bool:
        poller = select.poll()
        poller.register(self.fileno(), event)
        return bool(poller.poll(timeout_ms))

    def recv_into(self, view: memoryview) -> int:
        """Read at least one byte into view; return the number of bytes, 0 at the end of the stream."""
        return int(self._sock.recv_into(view))

    def sendall(self, data: memoryview, stalled: Callable[[], None] | None = None) -> None:
        """Send all of data, without a time limit; stalled is called each second without progress, and may raise."""
        while data:
            try:
                data = data[self._sock.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT) and stalled is not None:
                    stalled()

    def send_some(self, data: memoryview) -> int:
        """Send what the kernel accepts at once; return the number of bytes."""
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < len(data):
                sent += self._sock.send(data[sent:], socket.MSG_DONTWAIT)
        return sent

    def half_close(self) -> None:
        """Send end of file; the peer may continue to write."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wake blocked readers and writers, then close."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for holder in (*self._holders, self._sock):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                holder.close()


class _TlsWire(Wire):
    """A TLS socket that never blocks inside OpenSSL: one thread may read while another writes."""

    def __init__(self, sock: ssl.SSLSocket, *, holders: tuple[Any, ...]) -> None:
        super().__init__(sock, holders=holders)
        sock.settimeout(0)
        self._arrived = bytearray()
        self._broken: ssl.SSLError | None = None
        self._one_at_a_time = threading.Lock()  # Python before 3.13 lets several threads enter one SSL object at once

    def pending(self) -> bool:
        return bool(self._arrived) or self._sock.pending() > 0

    def recv_into(self, view: memoryview) -> int:
        while True:
            try:
                with self._one_at_a_time:
                    if count := min(len(view), len(self._arrived)):
                        view[:count] = self._arrived[:count]
                        del self._arrived[:count]
                        return count
                    if self._broken is not None:
                        raise self._broken
                    return int(self._sock.recv_into(view))
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLZeroReturnError:
                return 0

    def sendall(self, data: memoryview, stalled: Callable[[], None] | None = None) -> None:
        while data:
            try:
                with self._one_at_a_time:
                    sent = self._sock.send(data)
                data = data[sent:]
            except ssl.SSLWantWriteError:
                if not self._wait(select.POLLOUT) and stalled is not None:
                    stalled()
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)

    def send_some(self, data: memoryview) -> int:  # noqa: ARG002 - a record is sent whole or not at all
        return 0

    def half_close(self) -> None:
        """Send close_notify, which Go's TLS server reads as end of file, and keep reading.

        A non-blocking unwrap() writes the alert and then reads the peer's: SSLWantReadError means success. OpenSSL
        fails the connection if it finds data there instead, so data that has arrived is read first; if more arrives in
        those microseconds, the next read raises an error.
        """
        with self._one_at_a_time:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while data := self._sock.recv(_RECORD_BYTES):
                    self._arrived += data
            try:
                self._sock.unwrap()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._broken = error


def wrap(raw: Any) -> Wire:
    """Return the wire for the result of exec_start(socket=True), a SocketIO or an SSLSocket."""
    response = getattr(raw, "_response", None)
    body = getattr(response, "raw", None)  # closing `response` itself would put the dead connection back into the pool
    holders = (body, getattr(getattr(body, "_fp", None), "fp", None), raw)
    sock = getattr(raw, "_sock", raw)
    return (_TlsWire if isinstance(sock, ssl.SSLSocket) else Wire)(sock, holders=holders)


def buffered_bytes(raw: Any) -> bytes:
    """Return bytes that docker-py's HTTP reader buffered after the header. Call it only after the stream's end."""
    try:
        reader = raw._response.raw._fp.fp  # noqa: SLF001 - docker-py stores it nowhere else
        return bytes(reader.read1(65536)) if reader.peek(1) else b""
    except (AttributeError, OSError, ValueError):
        return b""


_HEADER = struct.Struct(">BxxxL")
"""Header of a frame: stream and length. A terminal's stream has no frames."""


class Demultiplexer:
    """Splits framed bytes into chunks; frames may arrive in parts. It copies each run of frames of one stream once."""

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
                view = self._read_header(view)
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

    def _read_header(self, view: memoryview) -> memoryview:
        need = _HEADER.size - len(self._partial)
        self._partial += bytes(view[:need])
        if len(self._partial) == _HEADER.size:
            number, self._left = _HEADER.unpack(self._partial)
            self._stream = Stream.STDERR if number == Stream.STDERR else Stream.STDOUT
            self._partial = b""
        return view[need:]


class Passthrough:
    """Decoder for a terminal's stream, which has no frames."""

    def feed(self, view: memoryview) -> list[Chunk]:
        """Return all bytes as standard output."""
        return [Chunk(Stream.STDOUT, bytes(view))] if view else []
