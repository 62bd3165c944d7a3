"""The sandbox's network for httpcore: HTTP and TLS are spoken here, so keys in headers stay on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpcore2

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable, Iterator

    from ohsandbox.mcp.relay import Relay


class SandboxNetwork(httpcore2.AsyncNetworkBackend):
    """Connects by a relay, from inside the sandbox."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,  # noqa: ARG002 - as above
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - as above
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to host:port as the sandbox names and reaches it.

        Raises:
            httpcore2.ConnectError: see `Relay.connect`.
            httpcore2.ConnectTimeout: not within timeout seconds.
        """
        connecting = asyncio.get_running_loop().run_in_executor(None, self._relay.connect, host, port)
        try:
            async with asyncio.timeout(timeout):
                near = await asyncio.shield(connecting)
        except ConnectionError as error:
            raise httpcore2.ConnectError(str(error)) from None
        except BaseException as error:
            connecting.add_done_callback(_close_late)
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout(f"{host}:{port} was not reached within {timeout:g} s") from None
            raise
        return _Connection(*await asyncio.open_connection(sock=near))

    async def sleep(self, seconds: float) -> None:
        """Between attempts."""
        await asyncio.sleep(seconds)


def _close_late(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class _Connection(httpcore2.AsyncNetworkStream):
    """httpcore's stream over asyncio's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        """Some bytes; empty at the end."""
        with _translated(httpcore2.ReadTimeout, httpcore2.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        """All of buffer."""
        with _translated(httpcore2.WriteTimeout, httpcore2.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        """Let go, without a wait for the other end."""
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        """The same connection, encrypted from here on."""
        try:
            with _translated(httpcore2.ConnectTimeout, httpcore2.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._writer.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """`is_readable` (an idle connection that is has ended), and what asyncio's transport knows."""
        return self._reader.at_eof() if info == "is_readable" else self._writer.get_extra_info(info)


@contextlib.contextmanager
def _translated(late: type[Exception], broken: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from None
    except OSError as error:  # ssl.SSLError is one
        raise broken(str(error)) from None
