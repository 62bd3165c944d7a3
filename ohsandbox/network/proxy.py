"""The HTTP proxy of a sandbox, on the host: CONNECT and plain HTTP to the hosts that the policy allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable


class Interceptor(Protocol):
    """Ends the TLS of some hosts in this process, to add a credential to their requests."""

    def wants(self, host: str, port: int) -> bool:
        """Whether connections to a normalized host and port are served here; plain HTTP to it is refused then."""
        ...

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
    ) -> None:
        """Serve one connection of the sandbox, after the 200 to its CONNECT, until it ends.

        Args:
            reader: what the sandbox sends, from the first byte of its ClientHello on.
            writer: to the sandbox.
            host: what the policy allowed; the name in the ClientHello must be this one, which is checked here.
            port: likewise.
            connect: gives a connection to a vetted address of host, without TLS, whose bytes are counted; may be
                called again. Raises `upstream.UpstreamError`.
        """
        ...
