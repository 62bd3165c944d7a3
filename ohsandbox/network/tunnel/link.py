"""`TunnelLink`: one run of the connector, with its streams and the two directions of its channel."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import queue
import threading
from typing import TYPE_CHECKING, Protocol

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.network.loop import in_daemon_thread
from ohsandbox.network.tunnel.frames import (
    ABORTED,
    HALF,
    VERSION,
    WINDOW_BYTES,
    ConnectorError,
    FrameKind,
    FrameReader,
    frame,
)
from ohsandbox.network.tunnel.stream import TunnelTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.network.tunnel.frames import Frame

log = logging.getLogger(__name__)

STDOUT = 1
HELLO_TIMEOUT_S = 60.0
"""Time limit for the first frame: in a sandbox that is short of processor time a process takes 20 s to begin."""
_MOST_QUEUED_BYTES = 2 * HALF * WINDOW_BYTES + 1024 * 1024
"""Maximum number of bytes queued for the connector. Credit limits what streams queue; this limit is for a connector
that reads nothing and keeps requesting answers."""


class ByteChannel(Protocol):
    """The part of a channel to a process that a link uses; see `ohsandbox.runtime.Channel`."""

    def filenos(self) -> list[int] | None: ...  # noqa: D102
    def read(self, timeout_s: float | None = None) -> Sequence[tuple[int, bytes]] | None: ...  # noqa: D102
    def write(self, data: memoryview) -> None: ...  # noqa: D102
    def write_some(self, data: memoryview) -> int: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class TunnelLink:
    """A running connector behind a channel. All methods are called in the network's event loop."""

    def __init__(
        self,
        channel: ByteChannel,
        *,
        accepts: Callable[[TunnelTransport], bool],
        lost: Callable[[TunnelLink], None],
    ) -> None:
        """Create a link. accepts(transport) takes a connection to a listening port; lost(link) is called once."""
        self._channel, self._accepts, self._lost = channel, accepts, lost
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._streams: dict[int, TunnelTransport] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._listened: set[int] = set()
        self._outgoing: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._unsent: list[bytes | memoryview] = []
        self._queued = self._written = 0
        self._has_writer = False
        self._watched: list[int] = []
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self.ended: Exception | None = None
        """Why the link has ended; None while it serves."""

    async def start(self) -> None:
        """Wait for the connector's first frame.

        Raises:
            SandboxUnavailable: the connector ends, or no frame arrives within HELLO_TIMEOUT_S.
            ConnectorError: the first frame is another one.
        """
        if self._channel.filenos() is None:
            threading.Thread(target=self._read_all, name="ohsandbox-network-read", daemon=True).start()
        else:
            self._watch()
        try:
            await asyncio.wait_for(self._hello, HELLO_TIMEOUT_S)
        except TimeoutError:
            self.end(SandboxUnavailable(f"The connector in the sandbox said nothing for {HELLO_TIMEOUT_S:g} s."))
        if self.ended is not None:  # perhaps right after its first frame
            raise self.ended

    def open(self, port: int) -> TunnelTransport:
        """Begin a connection to a port of the sandbox; its future `opened` is done once it is connected.

        Raises:
            OSError: the maximum number of connections is open.
        """
        number = next((number for number in range(HALF) if number not in self._streams), None)
        if number is None:
            raise OSError(f"{HALF} connections into the sandbox are open, the maximum. Close some first.")
        transport = self._add(number, port)
        self._send(frame(FrameKind.OPEN, number, port))
        return transport

    async def listen(self, port: int) -> None:
        """Make the connector listen on 127.0.0.1:port in the sandbox.

        Raises:
            OSError: listening failed, for example because another program listens there.
        """
        future = self._asked[port] = self._loop.create_future()
        self._listened.add(port)
        self._send(frame(FrameKind.LISTEN, value=port))
        await future

    def unlisten(self, port: int) -> None:
        """Make the connector stop listening on the port."""
        self._send(frame(FrameKind.UNLISTEN, value=port))

    def end(self, why: Exception) -> None:
        """Close the channel, which ends the connector, and all streams."""
        if self.ended is not None:
            return
        self.ended = why
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._outgoing.put(None)
        for transport in [*self._streams.values()]:
            transport.lose(ConnectionResetError(ABORTED, str(why)))
        for waiting in (self._hello, *self._asked.values()):
            if not waiting.done():
                waiting.set_exception(why)
                waiting.exception()
        self._streams.clear()
        threading.Thread(target=self._close_channel, name="ohsandbox-network-close", daemon=True).start()
        self._lost(self)

    # --- frames ---

    def _add(self, number: int, port: int) -> TunnelTransport:
        transport = TunnelTransport(self._loop, number, port=port, send=self._send, release=self._forget)
        self._streams[number] = transport
        return transport

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def _handle_frame(self, received: Frame) -> None:
        if received.kind is FrameKind.HELLO or not self._hello.done():
            if received.kind is not FrameKind.HELLO or self._hello.done() or received.value != VERSION:
                raise ConnectorError(f"The connector began with {received.kind.name} {received.value}.")
            self._hello.set_result(None)
        elif received.kind is FrameKind.LISTENING:
            self._handle_listening(received)
        elif received.kind is FrameKind.ACCEPTED:
            self._handle_accepted(received)
        elif (transport := self._streams.get(received.stream)) is not None:
            transport.handle_frame(received.kind, received.value, received.payload)
        else:
            raise ConnectorError(
                f"The connector sent {received.kind.name} for stream {received.stream}, which is not open."
            )

    def _handle_listening(self, received: Frame) -> None:
        future = self._asked.pop(received.stream, None)
        if future is None:
            raise ConnectorError(f"The connector listens on port {received.stream}, which nobody asked for.")
        if received.value:
            self._listened.discard(received.stream)
        if future.done():
            return  # nobody waits for it any more
        if received.value:
            error_number = received.value if received.value in errno.errorcode else errno.EIO
            future.set_exception(OSError(error_number, "The sandbox cannot listen there"))
        else:
            future.set_result(None)

    def _handle_accepted(self, received: Frame) -> None:
        port = received.value
        if received.stream < HALF or received.stream in self._streams or port not in self._listened:
            raise ConnectorError(
                f"The connector says that port {port} accepted a connection, stream {received.stream}."
            )
        transport = self._add(received.stream, port)
        transport.opened.set_result(None)
        if not self._accepts(transport):
            transport.abort()

    # --- the channel ---

    def _send(self, data: bytes | memoryview) -> None:
        if self.ended is not None:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)  # flush once for all writes of this loop iteration
        self._unsent.append(data)

    def _flush(self) -> None:
        """Write as much as the channel accepts at once; a thread writes the rest, since a channel's `write` blocks."""
        data = memoryview(b"".join(self._unsent))
        self._unsent.clear()
        if self.ended is not None:
            return
        if self._queued == self._written:
            try:
                data = data[self._channel.write_some(data) :]
            except (OSError, SandboxUnavailable) as error:
                self.end(_connection_error(error))
                return
        if not data:
            return
        self._queued += len(data)
        if self._queued - self._written > _MOST_QUEUED_BYTES:
            self.end(ConnectorError("The connector reads nothing."))
            return
        self._outgoing.put(data)
        if not self._has_writer:
            self._has_writer = True
            threading.Thread(target=self._write, name="ohsandbox-network-write", daemon=True).start()

    def _write(self) -> None:
        """Write the queue; runs in a thread."""
        while (data := self._outgoing.get()) is not None:
            try:
                self._channel.write(data)
            except (OSError, SandboxUnavailable) as error:
                self._call_soon(self.end, _connection_error(error))
                return
            self._written += len(data)

    def _watch(self) -> None:
        """Make the loop watch the channel's readable descriptors, of which there are fewer once streams have ended."""
        descriptors = self._channel.filenos() or []
        for descriptor in set(self._watched) - set(descriptors):
            self._loop.remove_reader(descriptor)
        for descriptor in set(descriptors) - set(self._watched):
            self._loop.add_reader(descriptor, self._read_some)
        self._watched = descriptors

    def _read_some(self) -> None:
        try:
            chunks = self._channel.read(0)
        except (OSError, SandboxUnavailable) as error:
            self.end(_connection_error(error))
            return
        if chunks is not None:
            self._on_chunks(chunks)
        if self.ended is None:
            self._watch()

    def _read_all(self) -> None:
        """Read a channel that has no descriptors; runs in a thread."""
        while self.ended is None:
            try:
                chunks = self._channel.read() or []
            except (OSError, SandboxUnavailable) as error:
                self._call_soon(self.end, _connection_error(error))
                return
            self._call_soon(self._on_chunks, chunks)
            if not chunks:
                return

    def _call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing awaits it
            self._loop.call_soon_threadsafe(function, *arguments)

    def _on_chunks(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        if not chunks:
            self.end(SandboxUnavailable("The connector in the sandbox ended."))
        for stream, data in chunks:
            if self.ended is not None:
                return
            if stream != STDOUT:
                log.debug("the connector said %r", data[:200])
                continue
            try:
                for received in self._frames.feed(data):
                    self._handle_frame(received)
            except ConnectorError as error:
                log.warning("%s Its connections are closed.", error)
                self.end(error)

    def _close_channel(self) -> None:
        with contextlib.suppress(OSError, SandboxUnavailable):
            if self._queued != self._written:  # only the end of the process wakes a writer that is blocked on a pipe
                self._channel.kill()
        with contextlib.suppress(OSError, SandboxUnavailable):
            self._channel.close()


def _connection_error(error: Exception) -> SandboxUnavailable:
    if isinstance(error, SandboxUnavailable):
        return error
    return SandboxUnavailable(f"The connector in the sandbox ended: {error}")


async def start_link(
    open_channel: Callable[[], ByteChannel],
    *,
    accepts: Callable[[TunnelTransport], bool],
    lost: Callable[[TunnelLink], None],
) -> TunnelLink:
    """Open a channel in a thread, and wait for the connector behind it; raise the errors of either."""
    link = TunnelLink(await in_daemon_thread(open_channel), accepts=accepts, lost=lost)
    try:
        await link.start()
    except BaseException as error:
        link.end(error if isinstance(error, Exception) else SandboxUnavailable("Its start was given up."))
        raise
    return link
