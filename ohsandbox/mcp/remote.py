"""Servers behind a URL, reached by FastMCP's transports with limits: from the host, or from inside the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
from fastmcp.client.transports import ClientTransport, SSETransport, StreamableHttpTransport

from ohsandbox.mcp.process import MAX_LINE_BYTES
from ohsandbox.mcp.relay import ConnectionRelay, SandboxNetwork
from ohsandbox.mcp.streams import MAX_PARTS, has_too_many_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp import ClientSession

    from ohsandbox.mcp.config import ServerConfig
    from ohsandbox.runtime.base import Runtime

CONNECT_S = 30.0
READ_S = 300.0
"""Limit between two reads of a response; a call's own timeout ends it earlier."""


MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS, IDLE_S = 100, 20, 5.0
"""httpx's defaults."""

DRAIN_S = 0.05
DRAIN_BYTES = 64 * 1024
"""A server sends little after the awaited message."""


class _Reached(ClientTransport):
    """Common part of both transports: the relay out of the sandbox, and the last transport error."""

    url: str
    runtime: Runtime | None = None
    """Its sandbox makes the connections; None: the host makes them."""
    relay: ConnectionRelay | None = None
    trouble: str = ""
    """The last transport error: the SDK only reports that the connection closed."""

    @contextlib.asynccontextmanager
    async def connect_session(self, **options: Any) -> AsyncIterator[ClientSession]:
        """See `ClientTransport`; the relay's processes end with the session."""
        if self.runtime is None:
            async with super().connect_session(**options) as session:
                yield session
            return
        self.relay = ConnectionRelay(self.runtime)
        try:
            async with super().connect_session(**options) as session:
                yield session
        finally:
            closing = asyncio.get_running_loop().run_in_executor(None, self.relay.close)
            await asyncio.shield(closing)

    def remember(self, error: Exception) -> None:
        """Record the error's cause; the relay's own reason takes precedence over a closed socket."""
        self.trouble = (self.relay.trouble if self.relay else "") or str(error) or type(error).__name__


class _Http(_Reached, StreamableHttpTransport):
    """Streamable HTTP."""


class _Sse(_Reached, SSETransport):
    """Server-sent events."""


def remote_transport(server: ServerConfig, runtime: Runtime | None = None) -> _Http | _Sse:
    """The transport for a server's `url`: SSE if `transport` or the path says so, else streamable HTTP.

    With a runtime the connections are made inside its sandbox: `localhost` is the sandbox's own.
    """
    assert server.url is not None  # noqa: S101 - only such servers come here
    url = httpx2.URL(server.url)
    kind = server.transport or ("sse" if url.path.rstrip("/").endswith("/sse") else "http")
    made = (_Sse if kind == "sse" else _Http)(server.url, headers=dict(server.headers))
    made.runtime = runtime
    made.httpx_client_factory = partial(_client, made)
    return made


def _client(
    memory: _Reached,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **_: Any,
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout or httpx2.Timeout(CONNECT_S, read=READ_S),
        auth=auth,
        transport=_BoundedTransport(memory),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Rejects a response with a message longer than the stdio line limit, and a redirect to another host."""

    def __init__(self, memory: _Reached) -> None:
        relay = memory.relay
        super().__init__(proxy=None if relay else _proxy_for(httpx2.URL(memory.url)))
        if relay is not None:  # httpx has no parameter for this
            tls = httpx2.create_ssl_context()
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=tls,
                network_backend=SandboxNetwork(relay),
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_S,
            )
        self._memory = memory

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        try:
            response = await super().handle_async_request(request)
            await _check(request, response)
        except httpx2.TransportError as error:
            self._memory.remember(error)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
        message = _Message(is_events=response.headers.get("content-type", "").lower().startswith("text/event-stream"))
        response.stream = _BoundedStream(response.stream, self._memory, message, is_answer=request.method == "POST")
        return response


_HERE = ("localhost", "127.0.0.1", "::1")


def _proxy_for(url: httpx2.URL) -> str | None:
    """The proxy from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY: httpx ignores them with a custom transport."""
    if url.host in _HERE or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


async def _check(request: httpx2.Request, response: httpx2.Response) -> None:
    try:
        _refuse_elsewhere(request, response)
        _refuse_compressed(response)
    except httpx2.TransportError:
        await response.aclose()
        raise


def _refuse_elsewhere(request: httpx2.Request, response: httpx2.Response) -> None:
    """Reject a redirect to another host: the headers hold keys for the configured one."""
    if not response.has_redirect_location:
        return
    target = request.url.join(response.headers["location"])
    if (target.scheme, target.host, target.port) != (request.url.scheme, request.url.host, request.url.port):
        raise httpx2.ReadError(f"It redirects to another host, {target.host!r}. If that is right, write it into `url`")


def _refuse_compressed(response: httpx2.Response) -> None:
    """Reject a compressed response: a few bytes could expand to gigabytes, and we did not accept compression."""
    if (coding := response.headers.get("content-encoding", "identity")) != "identity":
        raise httpx2.ReadError(f"It compresses its answers ({coding!r}) though asked not to")


class _BoundedStream(httpx2.AsyncByteStream):
    """Rejects a message that would exhaust the host's memory."""

    def __init__(self, stream: httpx2.AsyncByteStream, memory: _Reached, message: _Message, *, is_answer: bool) -> None:
        self._stream, self._memory, self._message, self._is_answer = stream, memory, message, is_answer
        self._chunks: AsyncIterator[bytes] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._stream)
        async for chunk in self._chunks:
            self._raise(self._message.refusal_of(chunk))
            yield chunk
        self._raise(self._message.refusal_of_the_end())

    def _raise(self, why: str) -> None:
        if why:
            self._memory.trouble = why
            raise httpx2.ReadError(why)

    async def aclose(self) -> None:
        """See `httpx2.AsyncByteStream`."""
        try:
            if self._is_answer and self._chunks is not None:
                await self._drain(self._chunks)
        finally:
            await self._stream.aclose()

    async def _drain(self, chunks: AsyncIterator[bytes]) -> None:
        """Read to the end after the SDK has its message, so that the connection can be reused."""
        left = DRAIN_BYTES
        with contextlib.suppress(httpx2.TransportError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                async for chunk in chunks:
                    if (left := left - len(chunk)) < 0:
                        return


class _Message:
    """The received part of a message: the whole response, or the SSE event since the last blank line."""

    def __init__(self, *, is_events: bool) -> None:
        self._is_events = is_events
        self._begin()

    def _begin(self, chunk: bytes = b"") -> None:
        self._chunks, self._length, self._look_at = [chunk], len(chunk), MAX_PARTS

    def refusal_of(self, chunk: bytes) -> str:
        """Add a chunk; return an error sentence if the message is now too large."""
        joined = self._chunks[-1][-3:] + chunk
        end = max(joined.rfind(b"\n\n"), joined.rfind(b"\r\n\r\n")) if self._is_events else -1
        self._chunks.append(chunk)
        self._length += len(chunk)
        if self._length > MAX_LINE_BYTES and end < 0:
            return f"It sent a message of more than {MAX_LINE_BYTES} bytes"
        if self._length > self._look_at or end >= 0:
            if why := self.refusal_of_the_end():
                return why
            self._look_at = 2 * self._length  # rescans at doubled lengths keep the total linear
        if end >= 0:
            self._begin(joined[end:])
        return ""

    def refusal_of_the_end(self) -> str:
        """As `refusal_of`, for the complete message."""
        if self._length <= MAX_PARTS or not has_too_many_parts(b"".join(self._chunks)):
            return ""
        return f"It sent a message of more than {MAX_PARTS} JSON values"
