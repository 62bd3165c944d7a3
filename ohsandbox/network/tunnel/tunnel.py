"""`Tunnel`: TCP connections into and out of a sandbox, through the connector, one process that runs in it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.network.tunnel.link import start_link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from ohsandbox.network.tunnel.link import ByteChannel, TunnelLink
    from ohsandbox.network.tunnel.stream import TunnelTransport

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
"""Maximum pause before a connector that ends soon after its start is restarted; a process in the sandbox may keep
killing it."""
_STEADY_S = 10.0
"""After a connector has run for this long, the next pause is FIRST_PAUSE_S again."""

_LAST_BYTES_S = 30.0
"""Seconds that the sandbox has to accept the last data of a connection; after that the data is dropped."""


class Tunnel:
    """Connections of one sandbox. The connector starts at first use, and is restarted if it dies while it listens.

    Its coroutines run in the network's event loop (`run_in_loop`). Readers and writers are asyncio's; a slow one holds
    a limited number of bytes and does not delay others.
    """

    def __init__(self, open_channel: Callable[[], ByteChannel]) -> None:
        """Store the function that starts a connector and returns its channel; it may block and raise OhsandboxError."""
        self._open_channel = open_channel
        self._link: TunnelLink | None = None
        self._servers: dict[int, Callable[[TunnelTransport], Coroutine[Any, Any, None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reviver: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._pause_s = 0.0
        self._started_at = self._not_before = 0.0
        self._is_closed = False
        self._awake = asyncio.Event()

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to 127.0.0.1:port in the sandbox, or to [::1]:port if that refuses.

        Raises:
            OSError: nothing listens there (ConnectionRefusedError), or 256 connections are open.
            SandboxUnavailable, ConnectorError: the connector cannot be started.
        """
        return _streams(await self.dial(port))

    async def dial(self, port: int) -> TunnelTransport:
        """Connect as `connect` does; return the transport, to which `TunnelTransport.attach` attaches a protocol."""
        link = await self._running()
        transport = link.open(port)
        try:
            await transport.opened
        except asyncio.CancelledError:
            transport.abort()
            raise
        return transport

    async def listen(self, port: int, handler: Handler) -> None:
        """Serve connections to 127.0.0.1:port in the sandbox by handler(reader, writer), until `unlisten`.

        The writer is closed when handler returns. At most 256 handlers run at once.

        Raises:
            OSError: listening failed, for example since another program listens there; EADDRINUSE if this tunnel does.
            SandboxUnavailable, ConnectorError: the connector cannot be started.
        """
        await self.answer(port, partial(_with_streams, handler))

    async def answer(self, port: int, serve: Callable[[TunnelTransport], Coroutine[Any, Any, None]]) -> None:
        """Serve connections as `listen` does; serve(transport) attaches a protocol and returns at its end."""
        if port in self._servers:
            raise OSError(errno.EADDRINUSE, f"Port {port} of the sandbox is listened on already")
        link = await self._running()
        self._servers[port] = serve
        try:
            await link.listen(port)
        except BaseException:
            self._servers.pop(port, None)
            raise

    @property
    def listening(self) -> frozenset[int]:
        """Ports in the sandbox that have listeners, or will have them after a restart. Thread-safe."""
        return frozenset(self._servers)

    async def unlisten(self, port: int) -> None:
        """Stop listening on a port; open connections remain."""
        if self._servers.pop(port, None) is not None and self._link is not None:
            self._link.unlisten(port)

    async def restart(self) -> None:
        """End a running connector; return when one listens on its ports. Failed starts are retried until `close`."""
        if self._link is None:
            return
        self._link.end(SandboxUnavailable("The sandbox's processes were ended."))
        self._pause_s = self._not_before = 0.0
        self._awake.set()
        if self._reviver is not None:
            await asyncio.wait({self._reviver})

    async def close(self) -> None:
        """End the connector and every connection; idempotent."""
        self._is_closed = True
        self._servers.clear()
        if self._reviver is not None:
            self._reviver.cancel()
        if self._link is not None:
            self._link.end(SandboxUnavailable("The sandbox's connections were closed."))
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the connector's life ---

    async def _running(self) -> TunnelLink:
        """Return the link of the running connector; if there is none, start one, perhaps after a pause."""
        async with self._starting:
            if self._link is not None and self._link.ended is None:
                return self._link
            if self._is_closed:
                _refuse_closed()
            await self._pause()
            try:
                link = await start_link(self._open_channel, accepts=self._accept, lost=self._lost)
            except BaseException:
                self._count_failure()
                raise
            if self._is_closed:
                link.end(SandboxUnavailable("The sandbox's connections were closed."))
                _refuse_closed()
            self._link, self._started_at = link, asyncio.get_running_loop().time()
        return link

    async def _pause(self) -> None:
        self._awake.clear()
        delay_s = self._not_before - asyncio.get_running_loop().time()
        if delay_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), delay_s)

    def _count_failure(self) -> None:
        now = asyncio.get_running_loop().time()
        self._pause_s = min(max(FIRST_PAUSE_S, self._pause_s * 2), LONGEST_PAUSE_S)
        self._not_before = now + self._pause_s

    def _lost(self, link: TunnelLink) -> None:
        if link is not self._link:
            return  # the connector could not be started
        if asyncio.get_running_loop().time() - self._started_at > _STEADY_S:
            self._pause_s = 0.0
        self._count_failure()
        if self._reviver is not None:
            self._reviver.cancel()
        if self._servers and not self._is_closed:
            self._reviver = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """Listen on all ports again; retry until that succeeds."""
        waiting = {*self._servers}
        link: TunnelLink | None = None
        while waiting and not self._is_closed and (link is None or link is self._link):
            try:
                link = await self._running()
                for port in sorted(waiting & {*self._servers}):
                    await link.listen(port)
                    waiting.discard(port)
                waiting &= {*self._servers}
            except (OhsandboxError, OSError) as error:
                log.info("the sandbox's ports %s are not served again yet: %s", sorted(waiting), error)
                if link is not None and link.ended is not None:
                    return  # its loss has already started another revival
                self._count_failure()
                await self._pause()

    # --- connections from inside ---

    def _accept(self, transport: TunnelTransport) -> bool:
        serve = self._servers.get(transport.port)
        if serve is None:  # its listener was removed a moment ago
            return False
        transport.waits_for_owner = True
        task = asyncio.get_running_loop().create_task(self._serve(serve, transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _serve(
        self, serve: Callable[[TunnelTransport], Coroutine[Any, Any, None]], transport: TunnelTransport
    ) -> None:
        try:
            await serve(transport)
        except (OSError, EOFError, OhsandboxError) as error:
            log.debug("a connection of the sandbox to port %d ended: %s", transport.port, error)
        except Exception:
            log.exception("a connection of the sandbox to port %d failed", transport.port)
        finally:
            transport.give_back()


async def _with_streams(handler: Handler, transport: TunnelTransport) -> None:
    """Serve a connection by a handler of streams; after it, the sandbox can still accept the last data."""
    reader, writer = _streams(transport)
    try:
        await handler(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), _LAST_BYTES_S)


def _streams(transport: TunnelTransport) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport.attach(protocol)
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())


def _refuse_closed() -> NoReturn:
    raise SandboxUnavailable("The sandbox's connections are closed. Start the sandbox.")
