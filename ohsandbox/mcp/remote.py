"""Servers behind a URL, reached by FastMCP's transports, with limits, from the host or from inside the sandbox.

From inside, a process there relays each connection, below httpcore: HTTP, TLS and keys stay on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2
from fastmcp.client.transports import ClientTransport, SSETransport, StreamableHttpTransport

from ohsandbox.mcp.relay import CONNECT_S, ConnectionRelay, SandboxNetwork
from ohsandbox.mcp.streams import MAX_LINE_BYTES, MAX_PARTS, has_too_many_parts
from ohsandbox.network.tls import client_context
from ohsandbox.network.user_proxies import proxy_fault, proxy_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp import ClientSession

    from ohsandbox.mcp.config import ServerConfig
    from ohsandbox.runtime.base import Runtime

_READ_S = 300.0
"""Maximum time between two reads of a response; a call's own timeout may end it earlier."""

MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS, IDLE_S = 100, 20, 5.0
"""httpx's defaults."""

DRAIN_S, DRAIN_BYTES = 0.05, 64 * 1024
"""Limits for reading on after the awaited message; little is left by then."""


class _Reached(ClientTransport):
    """The common part of both transports: the relay out of the sandbox, and the last transport error."""

    url: str
    runtime: Runtime | None = None
    """The runtime whose sandbox makes the connections; None if the host makes them."""
    relay: ConnectionRelay | None = None
    trouble: str = ""
    """The last transport error, since the SDK reports only that the connection was closed."""

    @contextlib.asynccontextmanager
    async def connect_session(self, **options: Any) -> AsyncIterator[ClientSession]:
        """See `ClientTransport`; the relay's processes end with the session."""
        self.relay = None if self.runtime is None else ConnectionRelay(self.runtime)
        try:
            async with super().connect_session(**options) as session:
                yield session
        finally:
            if self.relay is not None:
                await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.relay.close))


class _Http(_Reached, StreamableHttpTransport):
    pass


class _Sse(_Reached, SSETransport):
    pass


def remote_transport(server: ServerConfig, runtime: Runtime | None = None) -> _Http | _Sse:
    """Return the transport for a server's `url`: SSE if `transport` or the path says so, else streamable HTTP.

    With a runtime, the connections are made inside its sandbox, and `localhost` is the sandbox.
    """
    assert server.url is not None  # noqa: S101 - only such servers come here
    url = httpx2.URL(server.url)
    kind = server.transport or ("sse" if url.path.rstrip("/").endswith("/sse") else "http")
    transport = (_Sse if kind == "sse" else _Http)(server.url, headers=dict(server.headers))
    transport.runtime = runtime
    transport.httpx_client_factory = partial(_client, transport)
    return transport


def _client(
    memory: _Reached,
    *,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **_: Any,
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={**(headers or {}), "Accept-Encoding": "identity"},
        timeout=timeout or httpx2.Timeout(CONNECT_S, read=_READ_S),
        auth=auth,
        transport=_BoundedTransport(memory),
    )


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Refuses a response with a message over the limit for lines of stdio, and a redirect to another host."""

    def __init__(self, memory: _Reached) -> None:
        relay = memory.relay
        url = httpx2.URL(memory.url)
        proxy = None if relay else proxy_url(url.scheme, url.host)
        tls = url.scheme == "https" or (proxy or "").startswith("https:")
        context = client_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # an empty one trusts nobody
        of_proxy = context if (proxy or "").startswith("https:") else None
        try:
            super().__init__(verify=context, proxy=proxy and httpx2.Proxy(proxy, ssl_context=of_proxy))
        except (ValueError, httpx2.InvalidURL, ImportError) as error:
            raise proxy_fault(proxy or "", error) from None
        if relay is not None:  # httpx has no parameter for this
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=context, network_backend=SandboxNetwork(relay),
                max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_S,
            )  # fmt: skip
        self._memory = memory

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        try:
            response = await super().handle_async_request(request)
            if reason := _refusal(request, response):
                await response.aclose()
                raise httpx2.ReadError(reason)
        except httpx2.TransportError as error:
            relayed = self._memory.relay.trouble if self._memory.relay else ""  # says more than a closed socket
            self._memory.trouble = relayed or str(error) or type(error).__name__
            raise
        response.stream = _BoundedStream(request, response, self._memory)
        return response


def _refusal(request: httpx2.Request, response: httpx2.Response) -> str:
    """Return why a response is refused before its body; "" if it is not.

    Headers of the request have keys for the configured host. A few compressed bytes could expand to gigabytes.
    """
    if response.has_redirect_location:
        target = request.url.join(response.headers["location"])
        if (target.scheme, target.host, target.port) != (request.url.scheme, request.url.host, request.url.port):
            return f"It redirects to another host, {target.host!r}. If that is right, write it into `url`"
    if (coding := response.headers.get("content-encoding", "identity")) != "identity":
        return f"It compresses its answers ({coding!r}), although that was not accepted"
    return ""


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response; it refuses a message that would exhaust the host's memory.

    A message is the whole body, or an event of `text/event-stream`, which ends with a blank line.
    """

    def __init__(self, request: httpx2.Request, response: httpx2.Response, memory: _Reached) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
        self._stream, self._memory = response.stream, memory
        self._is_answer = request.method == "POST"
        self._has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._chunks: AsyncIterator[bytes] | None = None
        self._begin(b"")

    def _begin(self, chunk: bytes) -> None:
        self._message, self._length, self._count_at = [chunk], len(chunk), MAX_PARTS

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._stream)
        async for chunk in self._chunks:
            self._feed(chunk)
            yield chunk
        self._check_parts()

    def _feed(self, chunk: bytes) -> None:
        joined = self._message[-1][-3:] + chunk
        end = max(joined.rfind(b"\n\n"), joined.rfind(b"\r\n\r\n")) if self._has_events else -1
        self._message.append(chunk)
        self._length += len(chunk)
        if self._length > MAX_LINE_BYTES and end < 0:
            self._refuse(f"It sent a message of more than {MAX_LINE_BYTES} bytes")
        if self._length > self._count_at or end >= 0:
            self._check_parts()
            self._count_at = 2 * self._length  # counts at doubled lengths keep the total linear
        if end >= 0:
            self._begin(joined[end:])

    def _check_parts(self) -> None:
        if self._length > MAX_PARTS and has_too_many_parts(b"".join(self._message)):
            self._refuse(f"It sent a message of more than {MAX_PARTS} JSON values")

    def _refuse(self, reason: str) -> None:
        self._memory.trouble = reason
        raise httpx2.ReadError(reason)

    async def aclose(self) -> None:
        """Read on for a moment after the SDK has its message, so that the connection can be reused; then close."""
        remaining = DRAIN_BYTES
        try:
            if self._is_answer and self._chunks is not None:
                with contextlib.suppress(httpx2.TransportError, TimeoutError):
                    async with asyncio.timeout(DRAIN_S):
                        async for chunk in self._chunks:
                            if (remaining := remaining - len(chunk)) < 0:
                                break
        finally:
            await self._stream.aclose()
