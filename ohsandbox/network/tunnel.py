"""`Tunnel`: TCP connections into and out of a sandbox, through one process that runs in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NoReturn

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.network.link import start_link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ohsandbox.network.link import ByteChannel, TunnelLink
    from ohsandbox.network.stream import TunnelTransport

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
"""Between two starts of a connector that ends at once, as where something inside kills it again and again."""
STEADY_S = 10.0
"""A connector that has run for this long begins again without a pause."""

LAST_BYTES_S = 30.0
"""How long the sandbox may take what was written to a connection before it is given up."""


class Tunnel:
    """Connections of one sandbox. The connector starts at first use, and again after its death where it listens.

    Its coroutines run in the network's loop (`loop.run`). Readers and writers are ordinary ones of asyncio; what a
    slow one holds is bounded, and holds up no other.
    """

    def __init__(self, open_channel: Callable[[], ByteChannel]) -> None:
        """open_channel() starts a connector and returns the channel to it; it may block, and raises OhsandboxError."""
        self._open_channel = open_channel
        self._link: TunnelLink | None = None
        self._handlers: dict[int, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reviver: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._pause_s = 0.0
        self._started_at = self._not_before = 0.0
        self._is_closed = False
        self._awake = asyncio.Event()

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to 127.0.0.1:port in the sandbox, or to [::1]:port where that refuses.

        Raises:
            OSError: nothing listens there (ConnectionRefusedError), or 256 connections are open.
            SandboxUnavailable: the connector cannot be started.
        """
        link = await self._running()
        transport = link.open(port)
        try:
            await transport.opened
        except asyncio.CancelledError:
            transport.abort()
            raise
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport.attach(protocol)
        return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())

    async def listen(self, port: int, handler: Handler) -> None:
        """Have connections to 127.0.0.1:port in the sandbox be served by handler(reader, writer), until `unlisten`.

        The writer is closed when handler returns. At most 256 run at once.

        Raises:
            OSError: it cannot listen there, as where another program does; EADDRINUSE if we do already.
            SandboxUnavailable: the connector cannot be started.
        """
        if port in self._handlers:
            raise OSError(98, f"Port {port} of the sandbox is listened on already")
        link = await self._running()
        self._handlers[port] = handler
        try:
            await link.listen(port)
        except BaseException:
            self._handlers.pop(port, None)
            raise

    @property
    def listening(self) -> frozenset[int]:
        """The ports of the sandbox that are listened on, or will be once the connector runs again; from any thread."""
        return frozenset(self._handlers)

    async def unlisten(self, port: int) -> None:
        """Listen there no more; connections that are open stay."""
        if self._handlers.pop(port, None) is not None and self._link is not None:
            self._link.unlisten(port)

    async def wake(self) -> None:
        """The sandbox was started again: begin anew without a pause, if anything listens."""
        self._pause_s = self._not_before = 0.0
        self._awake.set()

    async def close(self) -> None:
        """End the connector and every connection; idempotent."""
        self._is_closed = True
        self._handlers.clear()
        if self._reviver is not None:
            self._reviver.cancel()
        if self._link is not None:
            self._link.end(SandboxUnavailable("The sandbox's connections were closed."))
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the connector's life ---

    async def _running(self) -> TunnelLink:
        """The link of a connector that runs; started where there is none, after the pause that is due."""
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
            return  # its start failed
        if asyncio.get_running_loop().time() - self._started_at > STEADY_S:
            self._pause_s = 0.0
        self._count_failure()
        if self._reviver is not None:
            self._reviver.cancel()
        if self._handlers and not self._is_closed:
            self._reviver = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """Listen again on every port, until that has worked."""
        waiting = {*self._handlers}
        link: TunnelLink | None = None
        while waiting and not self._is_closed and (link is None or link is self._link):
            try:
                link = await self._running()
                for port in sorted(waiting & {*self._handlers}):
                    await link.listen(port)
                    waiting.discard(port)
                waiting &= {*self._handlers}
            except (OhsandboxError, OSError) as error:
                log.info("the sandbox's ports %s are not served again yet: %s", sorted(waiting), error)
                if link is not None and link.ended is not None:
                    return  # its loss has begun another one
                self._count_failure()
                await self._pause()

    # --- connections from inside ---

    def _accept(self, transport: TunnelTransport) -> bool:
        handler = self._handlers.get(transport.port)
        if handler is None:  # listened on until a moment ago
            return False
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(self._serve(handler, transport, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        protocol = asyncio.StreamReaderProtocol(reader, begin)
        transport.waits_for_owner = True
        transport.attach(protocol)
        return True

    async def _serve(
        self, handler: Handler, transport: TunnelTransport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await handler(reader, writer)
        except (OSError, EOFError, OhsandboxError) as error:
            log.debug("a connection of the sandbox to port %d ended: %s", transport.port, error)
        except Exception:
            log.exception("a connection of the sandbox to port %d failed", transport.port)
        finally:
            writer.close()
            try:  # a TLS layer sends its last record
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(writer.wait_closed(), LAST_BYTES_S)
            finally:
                transport.give_back()


def _refuse_closed() -> NoReturn:
    raise SandboxUnavailable("The sandbox's connections are closed. Remedy: start the sandbox.")
