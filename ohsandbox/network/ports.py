"""`Forward` and `ExposedPort`: a port of the sandbox on this machine, and one of this machine in the sandbox."""

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
from ohsandbox.network.loop import get_loop, run
from ohsandbox.network.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ohsandbox.network.link import ByteChannel

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Connect = Callable[[], Coroutine[Any, Any, Streams]]

log = logging.getLogger(__name__)

LOOPBACK, LOOPBACK6 = "127.0.0.1", "::1"
FIRST_BYTES_S = 1.0
"""How long a client is listened to that cannot be connected: one that speaks HTTP says so at once."""
_HTTP_REQUEST = re.compile(rb"[A-Z]{3,10} \S+ HTTP/1\.[01]\r?\n")
_NOBODY = """HTTP/1.1 502 Bad Gateway\r
Content-Type: text/plain; charset=utf-8\r
Content-Length: {length}\r
Cache-Control: no-store\r
Refresh: 2\r
Connection: close\r
\r
"""
"""`Refresh` has a browser ask again, so that the page of a server that is being started comes by itself."""
READ_BYTES = 128 * 1024


class PortConnection(NamedTuple):
    """One connection through a port, after its end."""

    time: float
    """When it began, in seconds since 1970."""
    protocol: Literal["forward", "host port"]
    port: int
    """Of the sandbox."""
    error: str
    """Why it was not made, or was cut off; empty if it ended by itself."""
    sent_bytes: int
    """Out of the sandbox."""
    received_bytes: int
    """Into the sandbox."""


class _Port:
    """What is closed again: by itself, in a `with` block, or with the runtime."""

    def close(self) -> None:
        """Stop listening, and end the connections; idempotent."""
        raise NotImplementedError

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
    """A port of the sandbox at a port of this machine's loopback address; ends with `close`, or with the runtime."""

    def __init__(self, sandbox_port: int, port: int, end: Callable[[], None]) -> None:
        """Made by `Runtime.forward`."""
        self.sandbox_port = sandbox_port
        """Where the server inside listens."""
        self.port = port
        """Of this machine."""
        self._end = end

    @property
    def url(self) -> str:
        """`http://127.0.0.1:` and the port of this machine."""
        return f"http://{LOOPBACK}:{self.port}"

    def close(self) -> None:
        """Stop listening, and end the connections; idempotent."""
        self._end()

    def __repr__(self) -> str:
        return f"<Forward {self.url} to port {self.sandbox_port} of the sandbox>"


class ExposedPort(_Port):
    """A port of this machine's loopback address at the same port of the sandbox's; ends with `close` or the runtime."""

    def __init__(self, port: int, end: Callable[[], None]) -> None:
        """Made by `Runtime.expose_host`."""
        self.port = port
        """Of this machine, and in the sandbox."""
        self._end = end

    def close(self) -> None:
        """Stop listening, and end the connections; idempotent."""
        self._end()

    def __repr__(self) -> str:
        return f"<ExposedPort {self.port}>"


class Ports:
    """The tunnel of one sandbox, and what goes through it; every method may be called from any thread."""

    on_connection: Callable[[PortConnection], None] | None = None
    """Called in the network's loop after the end of each connection; it must not block."""

    def __init__(self, open_channel: Callable[[], ByteChannel]) -> None:
        """open_channel() starts a connector: see `Tunnel`."""
        self._open_channel = open_channel
        self._tunnel: Tunnel | None = None
        self._owner = os.getpid()
        self._open: set[_Listener | _Exposed] = set()

    @property
    def tunnel(self) -> Tunnel:
        """The tunnel, made at first use; a process that was forked has one of its own."""
        self._leave_those_of_parent()
        if self._tunnel is None:
            self._tunnel = Tunnel(self._open_channel)
        return self._tunnel

    def forward(self, port: int, host_port: int = 0) -> Forward:
        """See `Runtime.forward`."""
        check_port("port", port)
        check_port("host_port", host_port, least=0)
        return self._listen(port, host_port, lambda: self.tunnel.connect(port))

    def forward_here(self, port: int, host_port: int = 0) -> Forward:
        """The same for a sandbox whose ports are this machine's: without another host_port there is nothing to do."""
        check_port("port", port)
        check_port("host_port", host_port, least=0)
        if host_port in {0, port}:
            return Forward(port, port, lambda: None)
        return self._listen(port, host_port, lambda: asyncio.open_connection(LOOPBACK, port, limit=READ_BYTES))

    def expose_host(self, port: int) -> ExposedPort:
        """See `Runtime.expose_host`."""
        check_port("port", port)
        exposed = _Exposed(self, port)
        try:
            run(self.tunnel.listen(port, exposed.serve))
        except OSError as error:
            raise _sandbox_port_error(port, error) from None
        self._open.add(exposed)
        return ExposedPort(port, lambda: self._end(exposed))

    def expose_here(self, port: int) -> ExposedPort:
        """The same for a sandbox whose services are this machine's."""
        check_port("port", port)
        return ExposedPort(port, lambda: None)

    @property
    def listening(self) -> frozenset[int]:
        """The ports of the sandbox on which the connector listens for us."""
        return frozenset() if self._tunnel is None else self._tunnel.listening

    def wake(self) -> None:
        """The sandbox was started again: what listens in it begins anew."""
        self._leave_those_of_parent()
        if self._tunnel is not None:
            asyncio.run_coroutine_threadsafe(self._tunnel.wake(), get_loop())

    def close(self) -> None:
        """End everything; idempotent. It may be used again, as by a runtime that is started again."""
        self._leave_those_of_parent()
        for one in [*self._open]:
            self._end(one)
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            run(tunnel.close())

    def _listen(self, port: int, host_port: int, connect: Connect) -> Forward:
        self._leave_those_of_parent()
        listener = _Listener(self, port, connect)
        try:
            number = run(listener.start(host_port))
        except OSError as error:
            raise _host_port_error(host_port, error) from None
        self._open.add(listener)
        return Forward(port, number, lambda: self._end(listener))

    def _leave_those_of_parent(self) -> None:
        """In a process that was forked: the loop that serves them runs in the other."""
        if self._owner != os.getpid():
            self._tunnel, self._owner, self._open = None, os.getpid(), set()

    def _end(self, one: _Listener | _Exposed) -> None:
        if one in self._open:
            self._open.discard(one)
            run(one.close())

    def tell(self, connection: PortConnection) -> None:
        """Have `on_connection` hear of a connection's end."""
        if self.on_connection is not None:
            try:
                self.on_connection(connection)
            except Exception:
                log.exception("a listener of connections failed")


class _Carrier:
    """Connections that are carried between a stream of the sandbox and one of this machine."""

    protocol: Literal["forward", "host port"]

    def __init__(self, ports: Ports, port: int) -> None:
        self.ports, self.port = ports, port
        self._tasks: set[asyncio.Task[Any]] = set()

    async def carry(self, near: Streams, connect: Connect) -> None:
        """Connect the stream that has come in with the one that connect() makes; the sandbox's bytes are `sent`."""
        task, began, error, counts = asyncio.current_task(), time.time(), "", [0, 0]
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._tasks.add(task)
        try:
            await relay(near, await connect(), counts)
        except ConnectionRefusedError as failure:
            error = str(failure) or type(failure).__name__
            await self.refuse(near)
        except (OSError, OhsandboxError) as failure:
            error = str(failure) or type(failure).__name__
            near[1].transport.abort()
        finally:
            near[1].close()
            self._tasks.discard(task)
            into, out = counts if self.protocol == "forward" else counts[::-1]
            self.ports.tell(PortConnection(began, self.protocol, self.port, error, out, into))

    async def refuse(self, near: Streams) -> None:
        """Nothing listens where the connection leads."""
        near[1].transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()


class _Listener(_Carrier):
    """A socket of this machine whose connections go into the sandbox."""

    protocol = "forward"

    def __init__(self, ports: Ports, port: int, connect: Connect) -> None:
        super().__init__(ports, port)
        self._connect = connect
        self._servers: list[asyncio.Server] = []

    async def start(self, host_port: int) -> int:
        """Listen on 127.0.0.1 and, where this machine has it and it is free, on [::1], which `localhost` may mean."""
        listen = partial(asyncio.start_server, self._serve, limit=READ_BYTES, backlog=1024)
        self._servers = [await listen(LOOPBACK, host_port)]
        number: int = self._servers[0].sockets[0].getsockname()[1]
        with contextlib.suppress(OSError):
            self._servers.append(await listen(LOOPBACK6, number))
        return number

    async def refuse(self, near: Streams) -> None:
        """Tell a client that speaks HTTP; reset the connection of any other."""
        reader, writer = near
        with contextlib.suppress(OSError, TimeoutError):
            head = await asyncio.wait_for(reader.read(READ_BYTES), FIRST_BYTES_S)
            if _HTTP_REQUEST.match(head):
                told = f"Nothing listens on port {self.port} of the sandbox yet. This page loads again by itself.\n"
                writer.write(_NOBODY.format(length=len(told)).encode() + told.encode())
                await writer.drain()
                return
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # by `close`; asyncio 3.11 fails on a cancelled handler
            await self.carry((reader, writer), self._connect)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await super().close()


class _Exposed(_Carrier):
    """A port of the sandbox whose connections go to the same port of this machine."""

    protocol = "host port"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.carry((reader, writer), self._dial)

    async def _dial(self) -> Streams:
        return await asyncio.open_connection(LOOPBACK, self.port, limit=READ_BYTES)

    async def close(self) -> None:
        await self.ports.tunnel.unlisten(self.port)
        await super().close()


async def relay(near: Streams, far: Streams, counts: list[int]) -> None:
    """Carry bytes both ways until both are at their end; counts[0] is near to far, counts[1] far to near.

    An end of one direction is passed on, and the other goes on. Both are closed then, and reset where one was.
    """
    pumps = [
        asyncio.ensure_future(_pump(near[0], far[1], counts, 0)),
        asyncio.ensure_future(_pump(far[0], near[1], counts, 1)),
    ]
    try:
        await asyncio.gather(*pumps)
    except BaseException:
        for pump in pumps:
            pump.cancel()
        for _, writer in (near, far):
            writer.transport.abort()
        raise
    finally:
        far[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: list[int], which: int) -> None:
    while data := await reader.read(READ_BYTES):
        counts[which] += len(data)
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def check_port(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no port number.

    Raises:
        UsageError: it is not an int from least to 65,535.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 65535:  # noqa: PLR2004 - 16 bits
        raise wrong(name, value, f"give a number from {least} to 65535")


def _host_port_error(port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} of this machine is taken. Remedy: another host_port, or 0 for a free one.")
    if error.errno == errno.EACCES:
        return UsageError(f"Port {port} of this machine needs root. Remedy: another host_port, from 1024 on.")
    return UsageError(
        f"Port {port} of this machine cannot be listened on: {error.strerror}. Remedy: another host_port."
    )


def _sandbox_port_error(port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"Port {port} of the sandbox is taken. Remedy: end the server that listens there.")
    why = os.strerror(error.errno or 0)
    return UsageError(f"Port {port} of the sandbox cannot be listened on: {why}. Remedy: choose another port.")
