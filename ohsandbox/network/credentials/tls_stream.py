"""TLS over a pair of asyncio streams: also for streams that are not sockets, or of which data has been read."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

T = TypeVar("T")

READ_BYTES = 64 * 1024


class TlsStream:
    """One TLS connection: a client if `server_hostname` is given, else a server.

    One task may read while another writes. `asyncio.StreamWriter.start_tls` would not do: it takes its side from
    how the streams were created, and loses data that their reader has buffered.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )

    async def handshake(self) -> None:
        """Perform the handshake.

        Raises:
            ssl.SSLError: the handshake failed; the other side has been sent an alert.
            ConnectionError: the connection has broken.
        """
        await self._until_done(self._tls.do_handshake)
        await self._writer.drain()

    async def read(self) -> bytes:
        """Return up to READ_BYTES bytes; b"" at the end. Cancelling loses no data.

        Raises:
            OSError: the connection has broken, or the data is not TLS.
        """
        try:
            return await self._until_done(lambda: self._tls.read(READ_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        """Send data; wait while the other side is slow.

        Raises:
            OSError: the connection has broken.
        """
        view = memoryview(data)
        for start in range(0, len(view), READ_BYTES):
            self._tls.write(view[start : start + READ_BYTES])
            self._flush()
            await self._writer.drain()

    def close(self) -> None:
        """Send close_notify and close the streams."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        with contextlib.suppress(OSError, RuntimeError):
            self._flush()
        self._writer.close()

    async def _until_done(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._flush()  # handshake messages, or an alert with the reason for a failure
            if data := await self._reader.read(READ_BYTES):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._writer.write(data)
