"""Servers behind a URL, connected from the host by FastMCP's own transports, with bounds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
from fastmcp.client.transports import SSETransport, StreamableHttpTransport

from ohsandbox.mcp.process import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ohsandbox.mcp.config import ServerConfig

CONNECT_S = 30.0
READ_S = 300.0
"""Between two bytes of an answer; a call's own timeout ends it earlier."""


class _Remembers:
    """What went wrong on the wire last: the SDK only says that the connection closed."""

    trouble: str = ""


class _Http(StreamableHttpTransport, _Remembers):
    """Streamable HTTP."""


class _Sse(SSETransport, _Remembers):
    """Server-sent events."""


def remote_transport(server: ServerConfig) -> _Http | _Sse:
    """The transport for a server's `url`: SSE where `transport` or the path says so, else streamable HTTP."""
    assert server.url is not None  # noqa: S101 - only such servers come here
    kind = server.transport or ("sse" if httpx2.URL(server.url).path.rstrip("/").endswith("/sse") else "http")
    made = (_Sse if kind == "sse" else _Http)(server.url, headers=dict(server.headers))
    made.httpx_client_factory = partial(_client, made)
    return made


def _client(
    memory: _Remembers,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **_: Any,
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers=headers,
        timeout=timeout or httpx2.Timeout(CONNECT_S, read=READ_S),
        auth=auth,
        transport=_BoundedTransport(memory),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Ends an answer in which one message grows past what a line over stdio may have, and a redirect elsewhere."""

    def __init__(self, memory: _Remembers) -> None:
        super().__init__()
        self._memory = memory

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One request."""
        try:
            response = await super().handle_async_request(request)
            _refuse_elsewhere(request, response)
        except httpx2.TransportError as error:
            self._memory.trouble = str(error) or type(error).__name__
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
        response.stream = _BoundedStream(response.stream, self._memory)
        return response


def _refuse_elsewhere(request: httpx2.Request, response: httpx2.Response) -> None:
    """The headers hold keys, which are for the configured host; a redirect within it is fine."""
    if not response.has_redirect_location:
        return
    target = request.url.join(response.headers["location"])
    if (target.scheme, target.host, target.port) != (request.url.scheme, request.url.host, request.url.port):
        raise httpx2.ReadError(f"It redirects to another host, {target.host!r}. If that is right, write it into `url`")


class _BoundedStream(httpx2.AsyncByteStream):
    """Counts bytes since the last blank line, which is where one event of SSE ends and the next begins."""

    def __init__(self, stream: httpx2.AsyncByteStream, memory: _Remembers) -> None:
        self._stream, self._memory = stream, memory

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length, last = 0, b""
        async for chunk in self._stream:
            joined = last + chunk
            end = max(joined.rfind(b"\n\n"), joined.rfind(b"\r\n\r\n"))
            length = len(joined) - end if end >= 0 else length + len(chunk)
            last = chunk[-3:]
            if length > MAX_LINE_BYTES:
                self._memory.trouble = f"It sent a message of more than {MAX_LINE_BYTES} bytes"
                raise httpx2.ReadError(self._memory.trouble)
            yield chunk

    async def aclose(self) -> None:
        """See `httpx2.AsyncByteStream`."""
        await self._stream.aclose()
