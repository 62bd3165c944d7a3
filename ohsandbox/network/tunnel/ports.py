"""`Forward` and `ExposedPort`: a sandbox's port on this machine, and this machine's port in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import anyio
import anyio.to_thread

from ohsandbox.arguments import wrong
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.network.loop import run_in_loop
from ohsandbox.network.tunnel.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ohsandbox.network.tunnel.link import ByteChannel
    from ohsandbox.network.tunnel.stream import TunnelTransport

    Connect = Callable[["_End"], Coroutine[Any, Any, None]]

log = logging.getLogger(__name__)

LOOPBACK, LOOPBACK6 = "127.0.0.1", "::1"
FIRST_BYTES_S = 1.0
"""Seconds to wait for the request of a client to whose port nothing listens: HTTP clients send it at once."""
_HTTP_REQUEST = re.compile(rb"[A-Z]{3,10} \S+ HTTP/1\.[01]\r?\n")
_NOBODY = """HTTP/1.1 502 Bad Gateway\r
Content-Type: text/plain; charset=utf-8\r
Content-Length: {length}\r
Cache-Control: no-store\r
Refresh: 2\r
Connection: close\r
\r
"""
"""The head of an answer; `Refresh` makes a browser load again, so that the page appears once its server has started."""
_BACKLOG = 1024
"""Maximum number of connections that wait to be accepted."""


class PortConnection(NamedTuple):
    """One connection through a port, after its end."""

    time: float
    """Start time, in seconds since the epoch."""
    protocol: Literal["forward", "host port"]
    port: int
    """Port in the sandbox."""
    error: str
    """Why the connection failed or was cut off; "" if it ended normally."""
    sent_bytes: int
    """Bytes sent out of the sandbox."""
    received_bytes: int
    """Bytes received by the sandbox."""


class _Port:
    """A listening port that is closed by `close`, at the end of a `with` block, or with the runtime."""

    _end: Callable[[], None]

    def close(self) -> None:
        """Stop listening, and end the connections; idempotent."""
        self._end()

    async def aclose(self) -> None:
        """Await `close`."""
        await anyio.to_thread.run_sync(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Forward(_Port):
    """A server in the sandbox, reachable at a port of 127.0.0.1 on this machine until `close` or the runtime's end."""

    def __init__(self, sandbox_port: int, port: int, end: Callable[[], None]) -> None:
        """Create it; only `Runtime.forward` does so."""
        self.sandbox_port = sandbox_port
        """Port in the sandbox on which the server listens."""
        self.port = port
        """Port of this machine."""
        self._end = end

    @property
    def url(self) -> str:
        """`http://127.0.0.1:` with the port of this machine."""
        return f"http://{LOOPBACK}:{self.port}"

    def __repr__(self) -> str:
        return f"<Forward {self.url} to port {self.sandbox_port} of the sandbox>"


class ExposedPort(_Port):
    """A service on 127.0.0.1 of this machine, at the same port in the sandbox until `close` or the runtime's end."""

    def __init__(self, port: int, end: Callable[[], None]) -> None:
        """Create it; only `Runtime.expose_host` does so."""
        self.port = port
        """Port of this machine, and in the sandbox."""
        self._end = end

    def __repr__(self) -> str:
        return f"<ExposedPort {self.port}>"


class Ports:
    """The tunnel of one sandbox and its ports. Thread-safe."""

    def __init__(
        self, open_channel: Callable[[], ByteChannel], on_connection: Callable[[PortConnection], object] | None = None
    ) -> None:
        """Create it without ports.

        Args:
            open_channel: starts a connector: see `Tunnel`.
            on_connection: called in the network's event loop after the end of each connection; it must not block.
        """
        self._open_channel = open_channel
        self._on_connection = on_connection
        self._tunnel: Tunnel | None = None
        self._owner = os.getpid()
        self._open: set[_Listener | _Exposed] = set()

    @property
    def tunnel(self) -> Tunnel:
        """The tunnel, created at first use; a forked process gets its own."""
        self._leave_those_of_parent()
        if self._tunnel is None:
            self._tunnel = Tunnel(self._open_channel)
        return self._tunnel

    def forward(self, port: int, host_port: int = 0) -> Forward:
        """See `Runtime.forward`."""
        _check_port("port", port)
        _check_port("host_port", host_port, least=0)
        return self._listen(port, host_port, partial(self._connect_inside, port))

    def forward_here(self, port: int, host_port: int = 0) -> Forward:
        """Forward a port of a sandbox that shares this machine's ports; this only listens on another host_port."""
        _check_port("port", port)
        _check_port("host_port", host_port, least=0)
        if host_port in {0, port}:
            return Forward(port, port, lambda: None)
        return self._listen(port, host_port, partial(connect_here, port))

    def expose_host(self, port: int) -> ExposedPort:
        """See `Runtime.expose_host`."""
        _check_port("port", port)
        exposed = _Exposed(self, port)
        try:
            run_in_loop(self.tunnel.answer(port, exposed.serve))
        except OSError as error:
            raise _sandbox_port_error(port, error) from None
        self._open.add(exposed)
        return ExposedPort(port, lambda: self._end(exposed))

    def expose_here(self, port: int) -> ExposedPort:
        """Expose a port to a sandbox that shares this machine's ports: nothing is started."""
        _check_port("port", port)
        return ExposedPort(port, lambda: None)

    @property
    def listening(self) -> frozenset[int]:
        """Ports of the sandbox on which the connector listens."""
        return frozenset() if self._tunnel is None else self._tunnel.listening

    def close(self) -> None:
        """Close all ports and the tunnel; idempotent. New ones can be opened after that."""
        self._leave_those_of_parent()
        for opened in [*self._open]:
            self._end(opened)
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            run_in_loop(tunnel.close())

    def _listen(self, port: int, host_port: int, connect: Connect) -> Forward:
        self._leave_those_of_parent()
        listener = _Listener(self, port, connect)
        try:
            number = run_in_loop(listener.start(host_port))
        except OSError as error:
            raise _host_port_error(host_port, error) from None
        self._open.add(listener)
        return Forward(port, number, lambda: self._end(listener))

    async def _connect_inside(self, port: int, end: _End) -> None:
        (await self.tunnel.dial(port)).attach(end)

    def _leave_those_of_parent(self) -> None:
        """In a forked process, drop the parent's listeners: the event loop that serves them runs in the parent."""
        if self._owner != os.getpid():
            self._tunnel, self._owner, self._open = None, os.getpid(), set()

    def _end(self, opened: _Listener | _Exposed) -> None:
        if opened in self._open:
            self._open.discard(opened)
            run_in_loop(opened.close())

    def report(self, connection: PortConnection) -> None:
        """Report a connection's end to on_connection."""
        if self._on_connection is not None:
            try:
                self._on_connection(connection)
            except Exception:
                log.exception("a listener of connections failed")


class _Forwarder:
    """Carries connections between the sandbox and this machine."""

    protocol: Literal["forward", "host port"]

    def __init__(self, ports: Ports, port: int) -> None:
        self.ports, self.port = ports, port
        self._tasks: set[asyncio.Task[Any]] = set()

    async def carry(self, near: _End, connect: Callable[[_End], Coroutine[Any, Any, None]]) -> None:
        """Connect an accepted connection to the one that connect(end) makes; return after both have ended."""
        task, began, error, far = asyncio.current_task(), time.time(), "", _End(near)
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._tasks.add(task)
        try:
            await connect(far)
            near.begin()
            await asyncio.gather(near.lost, far.lost)
        except ConnectionRefusedError as failure:
            error = str(failure) or type(failure).__name__
            await self.refuse(near)
        except (OSError, OhsandboxError) as failure:
            error = str(failure) or type(failure).__name__
        finally:
            near.abort()
            far.abort()
            self._tasks.discard(task)
            inner, outer = (far, near) if self.protocol == "forward" else (near, far)
            self.ports.report(PortConnection(began, self.protocol, self.port, error, inner.count, outer.count))

    async def refuse(self, near: _End) -> None:
        """Handle a connection to a port on which nothing listens; after this it is reset."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()


class _Listener(_Forwarder):
    """A socket of this machine whose connections lead into the sandbox."""

    protocol = "forward"

    def __init__(self, ports: Ports, port: int, connect: Connect) -> None:
        super().__init__(ports, port)
        self._connect = connect
        self._servers: list[asyncio.Server] = []

    async def start(self, host_port: int) -> int:
        """Listen on 127.0.0.1 and, if possible, on [::1], which `localhost` may mean; return the port."""
        loop = asyncio.get_running_loop()

        def begin() -> _End:
            end = _End()
            end.when_made = lambda: loop.create_task(self._serve(end))
            return end

        self._servers = [await loop.create_server(begin, LOOPBACK, host_port, backlog=_BACKLOG)]
        number: int = self._servers[0].sockets[0].getsockname()[1]
        with contextlib.suppress(OSError):
            self._servers.append(await loop.create_server(begin, LOOPBACK6, number, backlog=_BACKLOG))
        return number

    async def refuse(self, near: _End) -> None:
        """Answer a client that speaks HTTP; other connections are only reset."""
        with contextlib.suppress(OSError, TimeoutError):
            if _HTTP_REQUEST.match(await asyncio.wait_for(near.first, FIRST_BYTES_S)):
                page = f"Nothing listens on port {self.port} of the sandbox yet. This page loads again by itself.\n"
                near.answer(_NOBODY.format(length=len(page)).encode() + page.encode())
                await asyncio.wait_for(near.lost, FIRST_BYTES_S)

    async def _serve(self, end: _End) -> None:
        await self.carry(end, self._connect)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await super().close()


class _Exposed(_Forwarder):
    """A port of the sandbox whose connections lead to the same port of this machine."""

    protocol = "host port"

    async def serve(self, transport: TunnelTransport) -> None:
        end = _End()
        transport.attach(end)
        await self.carry(end, partial(connect_here, self.port))

    async def close(self) -> None:
        await self.ports.tunnel.unlisten(self.port)
        await super().close()


class _End(asyncio.Protocol):
    """One end of a carried connection: it writes received data, and its end, to the other end."""

    def __init__(self, other: _End | None = None) -> None:
        """Create an end. other is the accepted end; an accepted one passes on what it receives from `begin` on."""
        self.transport: asyncio.Transport | None = None
        self.when_made: Callable[[], object] = lambda: None
        self.count = 0
        """Number of bytes received and written to the other end."""
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """The first bytes received before `begin`."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._other = other
        self._early: bytearray | None = bytearray() if other is None else None
        """Bytes received before `begin`."""
        self._has_ended = self._is_lost = self._other_is_full = False
        if other is not None:
            other._other = self  # noqa: SLF001 - its like

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream
        self.transport = transport
        self.when_made()

    def data_received(self, data: bytes) -> None:
        if self._early is None:
            self._pass_on(data)
            return
        self._early += data
        if self.transport is not None:  # not in connection_made: Python 3.11.2 starts to read after it all the same
            self.transport.pause_reading()
        if not self.first.done():
            self.first.set_result(data)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._early is None:
            self._pass_end_on()
        return True

    def _pass_on(self, data: bytes | bytearray) -> None:
        if self._other is not None and self._other.transport is not None:
            self.count += len(data)
            self._other.transport.write(data)

    def _pass_end_on(self) -> None:
        if self._other is None or self._other.transport is None:
            return
        try:
            self._other.transport.write_eof()
        except OSError:  # it was reset, which is not noticed while nothing is read from it
            self._other.abort()
            self.abort()
        if self._other._has_ended and self._other._early is None:  # noqa: SLF001 - its like
            self.close()
            self._other.close()

    def pause_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other._other_is_full = True  # noqa: SLF001 - its like
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other._other_is_full = False  # noqa: SLF001 - its like
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self.lost.done():  # nobody waits for it any more
            return
        if exc is None:
            self.lost.set_result(None)
        else:
            self.lost.set_exception(exc)
            self.lost.exception()
        if self._other is not None:
            self._other.abort() if exc else self._other.close()

    def begin(self) -> None:
        """Pass on what was received so far, and from now on what is received."""
        early, self._early = self._early, None
        if early:
            self._pass_on(early)
        if self._is_lost:
            if self._other is not None:
                self._other.close()
        elif self._has_ended:
            self._pass_end_on()
        elif self.transport is not None and not self._other_is_full:
            self.transport.resume_reading()

    def close(self) -> None:
        """Send the remaining data, then close; idempotent."""
        if self.transport is not None:
            self.transport.close()

    def answer(self, data: bytes) -> None:
        """Write data of our own, and close."""
        if self.transport is not None:
            self.transport.write(data)
            self.transport.close()

    def abort(self) -> None:
        """Reset the connection if it is open; idempotent."""
        if self.transport is not None and not self._is_lost:
            self.transport.abort()


async def connect_here(port: int, end: _End) -> None:
    """Connect an end to a service of this machine."""
    await asyncio.get_running_loop().create_connection(lambda: end, LOOPBACK, port)


def _check_port(name: str, value: object, *, least: int = 1) -> None:
    """Check a port number.

    Raises:
        UsageError: value is not an int from least to 65,535.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 65535:  # noqa: PLR2004 - 16 bits
        raise wrong(name, value, f"Give a number from {least} to 65535.")


def _host_port_error(port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} of this machine is taken. Choose another host_port, or 0 for a free one.")
    if error.errno == errno.EACCES:
        return UsageError(f"Port {port} of this machine needs root. Choose another host_port, from 1024 on.")
    return UsageError(f"Port {port} of this machine cannot be listened on: {error.strerror}. Choose another host_port.")


def _sandbox_port_error(port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} of the sandbox is taken. End the server that listens there.")
    reason = os.strerror(error.errno or 0)
    return UsageError(f"Port {port} of the sandbox cannot be listened on: {reason}. Choose another port.")
