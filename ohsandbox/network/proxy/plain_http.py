"""Plain HTTP requests, forwarded one by one: each is parsed, checked and written anew, against request smuggling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import h11

from ohsandbox.network.loop import side_by_side
from ohsandbox.network.proxy.http_head import HeadError
from ohsandbox.network.proxy.relay import CHUNK_BYTES
from ohsandbox.network.proxy.upstream import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.network.proxy.http_head import RequestReader, Target
    from ohsandbox.network.proxy.relay import Link
    from ohsandbox.network.proxy.upstream import Dialer, Streams, UpstreamProxy

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect".split()
)
"""Headers for one connection only (RFC 9110, 7.6.1, and others); `expect` is answered here."""
_KEPT = frozenset({b"host", b"content-length"})
"""Headers that stay even if Connection names them."""
_MAX_RESPONSE_HEAD = 64 * 1024


class _Outside(NamedTuple):
    """A connection to a host; requests are forwarded on it as long as they go to this host."""

    host: str
    port: int
    streams: Streams
    connection: h11.Connection
    proxy: UpstreamProxy | None


class PlainHTTP:
    """Forwards the requests of one link, over a connection that is kept while they go to the same host.

    Args:
        link: the sandbox's connection.
        incoming: reader of the sandbox's requests.
        dialer: opens connections.
    """

    def __init__(self, link: Link, incoming: RequestReader, dialer: Dialer) -> None:
        self._link = link
        self._incoming = incoming
        self._dialer = dialer
        self._outside: _Outside | None = None

    async def connect(self, target: Target, *, private: bool) -> None:
        """Open a connection to the host of an allowed request, unless one is open.

        Raises:
            UpstreamError: no connection could be made.
        """
        upstream = self._outside
        if upstream is not None and (upstream.host, upstream.port) == (target.host, target.port) and _is_idle(upstream):
            return
        self.drop()
        streams, proxy = await self._dialer.open_http(target.host, target.port, private=private)
        self._link.lead_to(streams[1])
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_RESPONSE_HEAD)
        self._outside = _Outside(target.host, target.port, streams, connection, proxy)

    def drop(self) -> None:
        """Close the connection to the host."""
        self._link.drop_outside()
        self._outside = None

    async def forward(self, server: h11.Connection, request: h11.Request, target: Target) -> bool:
        """Forward the request, its body and the answer; return whether the link may send another request.

        Args:
            server: our side of the link for this one request; bytes read beyond the request are put back.
            request: its head.
            target: its destination.

        Raises:
            UpstreamError: the host closed the connection or did not answer in HTTP, before anything was passed on.
            HeadError: the body is malformed.
            h11.ProtocolError, OSError: one side closed the connection.
        """
        assert self._outside is not None, "connect() comes first"  # noqa: S101
        outside = self._outside
        try:
            is_whole = await self._exchange(server, outside, _request_for(request, target, outside.proxy))
        except (h11.RemoteProtocolError, OSError) as error:
            self.drop()
            if self._link.speaks != "http":
                raise
            raise UpstreamError("broke off, or did not answer in HTTP", kind="http_protocol_error") from error
        self._link.speaks = "http"
        if is_whole and _is_finished(outside.connection):
            outside.connection.start_next_cycle()
        else:
            self.drop()
        self._incoming.pending[:0] = server.trailing_data[0]
        return is_whole and _is_finished(server)

    async def _exchange(self, server: h11.Connection, outside: _Outside, request: h11.Request) -> bool:
        """Carry body and answer concurrently, as a server may answer early; return whether the whole body was sent."""
        await self._send(outside, request)
        if server.they_are_waiting_for_100_continue:
            self._link.writer.write(server.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        exchange = side_by_side(self._forward_body(server, outside), self._forward_response(server, outside))
        async with exchange as (upload, answer):
            await asyncio.wait((upload, answer), return_when=asyncio.FIRST_COMPLETED)
            if upload.done() and not isinstance(upload.exception(), OSError):
                upload.result()  # raises errors of the sandbox; it is not an error if the server stops reading
            await answer
            return upload.done() and upload.exception() is None

    async def _forward_body(self, server: h11.Connection, outside: _Outside) -> None:
        while True:
            await asyncio.sleep(0)  # so that a body of a million chunks does not block other sandboxes of this process
            try:
                event = server.next_event()
                if event is h11.NEED_DATA:
                    server.receive_data(await self._incoming.read_some(CHUNK_BYTES))
                    continue
            except h11.RemoteProtocolError as error:
                raise HeadError(f"has a malformed body ({error})") from None
            if isinstance(event, h11.Data):
                await self._send(outside, event)
            elif isinstance(event, h11.EndOfMessage):
                await self._send(outside, h11.EndOfMessage())
                return

    async def _forward_response(self, server: h11.Connection, outside: _Outside) -> None:
        while True:
            await asyncio.sleep(0)  # as above
            event = outside.connection.next_event()
            if event is h11.NEED_DATA:
                data = await outside.streams[0].read(CHUNK_BYTES)
                self._link.count(received=len(data))
                outside.connection.receive_data(data)
            elif isinstance(event, h11.Response):
                headers = _end_to_end(event.headers)
                answer = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
                await self._answer(server, answer)
            elif isinstance(event, h11.Data):
                await self._answer(server, event)
            elif isinstance(event, h11.EndOfMessage):
                await self._answer(server, h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection ended before the response")

    async def _send(self, outside: _Outside, event: h11.Event) -> None:
        data = outside.connection.send(event)
        if data:
            self._link.count(sent=len(data))
            outside.streams[1].write(data)
            await outside.streams[1].drain()

    async def _answer(self, server: h11.Connection, event: h11.Event) -> None:
        data = server.send(event)
        if data:
            self._link.speaks = "other"  # after this, an answer of the proxy itself would be out of place
            self._link.writer.write(data)
            await self._link.writer.drain()


def _is_idle(outside: _Outside) -> bool:
    reader, writer = outside.streams
    is_silent = not (reader.at_eof() or writer.is_closing() or outside.connection.trailing_data[0])
    return outside.connection.our_state is h11.IDLE and is_silent


def _is_finished(connection: h11.Connection) -> bool:
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


def _request_for(request: h11.Request, target: Target, proxy: UpstreamProxy | None) -> h11.Request:
    """Return the request to send: with the path for the host itself, or the whole URL for a proxy."""
    headers = [(b"Host", target.authority.encode())]
    headers += [(name, value) for name, value in _end_to_end(request.headers) if name.lower() != b"host"]
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers.append((b"Transfer-Encoding", b"chunked"))
    path = target.path
    if proxy is not None:
        path = b"http://" + target.authority.encode() + path
        if proxy.authorization:
            headers.append((b"Proxy-Authorization", proxy.authorization.encode()))
    return h11.Request(method=request.method, target=path, headers=headers)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    listed = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    away = (_HOP_BY_HOP | listed) - _KEPT
    return [(name, value) for name, value in headers if name.lower() not in away]
