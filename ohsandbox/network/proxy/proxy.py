"""The HTTP proxy of a sandbox, on the host: CONNECT and plain HTTP to the hosts that the policy allows.

serve            serves one connection of the sandbox
└ _requests      decides on each of its requests
  ├ _tunnel      CONNECT: the ClientHello must name the same host, then bytes are carried
  └ _forward     plain HTTP: written anew (`plain_http`)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import h11

from ohsandbox.network.loop import in_daemon_thread, side_by_side
from ohsandbox.network.policy import DEFAULT_PORTS, HTTP_PORT, HTTPS_PORT
from ohsandbox.network.proxy.budgets import NetworkBudgets, NetworkUsage
from ohsandbox.network.proxy.client_hello import (
    ALERT_ACCESS_DENIED,
    ClientHelloError,
    read_client_hello,
    read_server_answer,
)
from ohsandbox.network.proxy.http_head import HeadError, RequestReader, Target, parsed_request, request_target
from ohsandbox.network.proxy.plain_http import PlainHTTP
from ohsandbox.network.proxy.refusal import ProxyRefusal, upstream_refusal
from ohsandbox.network.proxy.relay import CHUNK_BYTES, Link, finish_writing
from ohsandbox.network.proxy.upstream import Dialer, MeteredReader, MeteredWriter, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ohsandbox.network import audit as audit_log
    from ohsandbox.network.policy import NetworkPolicy, NetworkVerdict
    from ohsandbox.network.proxy.upstream import Streams

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 60.0
"""Seconds that a connection may wait for its next request."""
_SWEEP_S = 0.5
_LINGER_S = 2.0
"""Seconds for which input is still read after a refusal: closing a connection with unread bytes would lose the
answer."""
_LINGER_BYTES = 1024 * 1024
HANDSHAKE = b"\x16"
"""The first byte of TLS."""
BAD_GATEWAY = 502
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Interceptor(Protocol):
    """Terminates the TLS of some hosts in this process, to add a credential to their requests."""

    def wants(self, host: str, port: int) -> bool:
        """Whether it serves connections to a normalized host and port; plain HTTP to them is then refused."""
        ...

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        *,
        connect: Callable[[], Awaitable[Streams]],
        refused: Callable[[int, str], None],
    ) -> None:
        """Serve one connection of the sandbox, after the 200 to its CONNECT, until it ends.

        Args:
            reader: stream from the sandbox, beginning with its ClientHello.
            writer: stream to the sandbox.
            host: the allowed host; serve checks that the ClientHello names the same host.
            port: the allowed port.
            connect: returns a connection to a checked address of host, without TLS; may be called repeatedly. Raises
                `upstream.UpstreamError`.
            refused: called for each refused request with the status of its answer and the reason, a predicate whose
                subject is the host.
        """
        ...


class RefusedError(Exception):
    """A request is refused."""

    def __init__(self, refusal: ProxyRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class Proxy:
    """Serves the connections of one sandbox, on one event loop.

    Args:
        policy: the rules; a change ends connections that are no longer allowed.
        audit: records each decision.
        budgets: limits of all connections together.
        interceptor: serves the hosts that it wants; None if there are none.
        dialer: opens the connections; None uses this machine's resolver and the user's proxy, if there is one.
    """

    def __init__(
        self,
        policy: NetworkPolicy,
        audit: audit_log.AuditLog,
        *,
        budgets: NetworkBudgets | None = None,
        interceptor: Interceptor | None = None,
        dialer: Dialer | None = None,
    ) -> None:
        self._policy = policy
        self._audit = audit
        self._budgets = budgets or NetworkBudgets()
        self._usage = NetworkUsage(self._budgets)
        self._interceptor = interceptor
        self._dialer = dialer or Dialer()
        self._links: set[Link] = set()
        self._served = 0
        """Number of links that are served; others are being refused."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._rechecks: set[asyncio.Task[None]] = set()
        self._remove_listener = policy.on_change(self._on_policy_change)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the sandbox until it ends; invalid data is not an error of the caller."""
        self._loop = asyncio.get_running_loop()
        link = Link(reader, writer, budgets=self._budgets, usage=self._usage, audit=self._audit)
        is_full = self._served >= self._budgets.connections
        try:
            self._links.add(link)
            self._schedule_sweep()
            if is_full:
                await self._refuse_for_room(link)
                return
            self._served += 1
            await self._guarded(link)
        finally:
            self._links.discard(link)
            self._served -= not is_full
            link.finish()
            link.drop_outside()
            with contextlib.suppress(OSError):
                writer.close()

    def close(self) -> None:
        """End all connections; call it on the event loop's thread."""
        self._remove_listener()
        for link in tuple(self._links):
            link.end("the proxy was closed")

    # --- end of a connection ------------------------------------------------------------------

    async def _guarded(self, link: Link) -> None:
        try:
            await self._requests(link, None)
        except RefusedError as error:
            await self._refuse(link, error.refusal)
        except HeadError as error:
            await self._refuse(link, ProxyRefusal(error.status, error.host, error.port, str(error)))
        except (OSError, EOFError, h11.ProtocolError):
            pass  # one side closed the connection
        except Exception:  # fail closed: this connection ends, but the sandbox's next one is served
            _logger.exception("The proxy of a sandbox failed on a connection")
            link.end("was not served, because the proxy failed")
        if link.ended:
            self._record(link, ProxyRefusal(403, link.host, link.port, link.ended))

    def _record(self, link: Link, refusal: ProxyRefusal) -> None:
        """Record a refusal. A failure of the host (502) counts as allowed; it is left out if that is recorded."""
        is_failure = refusal.status == BAD_GATEWAY
        if is_failure and link.is_counted:
            return
        host, port = refusal.host or link.host, refusal.port or link.port
        self._audit.record(host, port, link.protocol, allowed=is_failure, reason=refusal.reason, method=link.method)

    async def _refuse(self, link: Link, refusal: ProxyRefusal) -> None:
        """Record a refusal and send it; go on reading for up to _LINGER_S seconds."""
        if link.ended:
            return  # the reason for ending the link is recorded instead
        self._record(link, refusal)
        link.drop_outside()
        link.expect(_LINGER_S)
        answer = {"http": refusal.answer(), "tls": ALERT_ACCESS_DENIED, "other": b""}[link.speaks]
        with contextlib.suppress(OSError):
            link.writer.write(answer)
            await link.writer.drain()
            finish_writing(link.writer)
            remaining = _LINGER_BYTES
            while remaining > 0 and (data := await link.reader.read(remaining)):
                remaining -= len(data)

    async def _refuse_for_room(self, link: Link) -> None:
        """Refuse a connection beyond the limit; beyond twice the limit, without an answer, which would take time."""
        refusal = ProxyRefusal(429, "", 0, f"more than {self._budgets.connections} connections at once")
        if len(self._links) <= 2 * self._budgets.connections:
            await self._refuse(link, refusal)
        else:
            self._record(link, refusal)
            link.end()

    def _schedule_sweep(self) -> None:
        if self._sweeping is None and self._loop is not None:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """End links whose deadline has passed; run again after _SWEEP_S seconds while there are connections."""
        self._sweeping = None
        for link in tuple(self._links):
            link.end_if_overdue()
        if self._links:
            self._schedule_sweep()

    def _on_policy_change(self) -> None:
        """Check the connections again after a change of the policy; called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._recheck)

    def _recheck(self) -> None:
        task = asyncio.ensure_future(self._close_disallowed())
        self._rechecks.add(task)
        task.add_done_callback(self._rechecks.discard)

    async def _close_disallowed(self) -> None:
        for link in tuple(self._links):
            if not link.decided:
                continue
            verdict = await self._verdict(link.host, link.port)
            if not verdict.allowed or (link.is_private and not verdict.private):
                link.end("is not allowed any more, so the connection was ended")

    # --- requests -------------------------------------------------------------------------------

    async def _requests(self, link: Link, inside: Target | None) -> None:
        """Serve requests until the connection ends; inside is the destination of their tunnel, if they are in one.

        Raises:
            RefusedError: a request is refused.
            HeadError: a request is malformed.
        """
        incoming = RequestReader(link.reader, self._budgets.head_bytes)
        plain = PlainHTTP(link, incoming, self._dialer)
        link.expect(self._budgets.head_timeout_s, overdue="sent no whole request in time")
        is_first = True
        while head := await incoming.read_head():
            link.host, link.port, link.method, link.protocol, link.decided = "", 0, "", "http", False
            if problem := self._usage.request_problem():
                raise RefusedError(ProxyRefusal(429, "", 0, problem))
            server = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * self._budgets.head_bytes)
            request = parsed_request(head, server)
            link.method = request.method.decode("ascii")
            target = request_target(request, inside=inside)
            link.host, link.port = target.host, target.port
            if request.method == b"CONNECT":
                if not is_first or inside is not None or incoming.pending:
                    raise HeadError("asks for a tunnel on a connection that has served other requests")
                link.protocol = "https" if target.port == HTTPS_PORT else "tcp"
                await self._tunnel(link, target)
                return
            if not await self._forward(link, plain, server, request, target):
                return
            link.finish()
            link.expect(_KEEP_ALIVE_S)
            is_first = False

    async def _verdict(self, host: str, port: int) -> NetworkVerdict:
        if self._policy.ready:
            return self._policy.decide(host, port)
        return await in_daemon_thread(functools.partial(self._policy.decide, host, port))

    async def _allowed(self, link: Link) -> NetworkVerdict:
        """Return the policy's verdict on the link's destination.

        Raises:
            RefusedError: the destination is not allowed.
        """
        link.expect(self._budgets.idle_timeout_s)
        verdict = await self._verdict(link.host, link.port)
        if not verdict.allowed:
            raise RefusedError(ProxyRefusal(403, link.host, link.port, verdict.reason))
        link.decided, link.is_private = True, verdict.private
        return verdict

    def _begin(self, link: Link, verdict: NetworkVerdict) -> None:
        """Record that the destination is allowed, and count bytes for this decision from now on."""
        decision = self._audit.record(
            link.host,
            link.port,
            link.protocol,
            allowed=True,
            reason=verdict.reason,
            rule=verdict.rule,
            method=link.method,
        )
        link.begin(decision)

    async def _connected(self, link: Link, connecting: Awaitable[T]) -> T:
        """Return the result of connecting.

        Raises:
            RefusedError: it failed.
        """
        try:
            return await connecting
        except UpstreamError as error:
            raise RefusedError(upstream_refusal(link.host, link.port, error)) from error

    # --- plain HTTP ---------------------------------------------------------------------------

    async def _forward(
        self, link: Link, plain: PlainHTTP, server: h11.Connection, request: h11.Request, target: Target
    ) -> bool:
        if self._has_credential(target.host, HTTPS_PORT) or self._has_credential(target.host, target.port):
            reason = "has a credential, which is only sent encrypted"
            address = target.host if target.port in DEFAULT_PORTS else f"{target.host}:{target.port}"
            raise RefusedError(ProxyRefusal(403, link.host, link.port, reason, remedy=f"Use https://{address}/."))
        verdict = await self._allowed(link)
        await self._connected(link, plain.connect(target, private=verdict.private))
        self._begin(link, verdict)
        return await self._connected(link, plain.forward(server, request, target))

    # --- CONNECT ------------------------------------------------------------------------------

    async def _tunnel(self, link: Link, target: Target) -> None:
        verdict = await self._allowed(link)
        if self._interceptor is not None and self._has_credential(link.host, link.port):
            self._begin(link, verdict)
            await self._establish(link, "tls")
            connect = functools.partial(self._metered, link, verdict)
            refused = functools.partial(self._record_refusal_inside, link)
            await self._interceptor.serve(
                link.reader, link.writer, link.host, link.port, connect=connect, refused=refused
            )
        elif link.port == HTTP_PORT:
            await self._establish(link, "http")
            await self._requests(link, target)
        else:
            streams = await self._connected(link, self._dialer.open(link.host, link.port, private=verdict.private))
            link.lead_to(streams[1])
            await self._establish(link, "tls" if link.port == HTTPS_PORT else "other")
            await self._check_and_relay(link, verdict, streams)

    def _has_credential(self, host: str, port: int) -> bool:
        return self._interceptor is not None and self._interceptor.wants(host, port)

    def _record_refusal_inside(self, link: Link, status: int, reason: str) -> None:
        """Record a request that the interceptor refused; a failure of the host (502) is not a refusal."""
        if status != BAD_GATEWAY:
            self._record(link, ProxyRefusal(status, link.host, link.port, reason))

    async def _establish(self, link: Link, speaks: Literal["http", "tls", "other"]) -> None:
        link.writer.write(_ESTABLISHED)
        await link.writer.drain()
        link.speaks = speaks

    async def _metered(self, link: Link, verdict: NetworkVerdict) -> Streams:
        """Return a connection for the interceptor, whose bytes are counted."""
        reader, writer = await self._dialer.open(link.host, link.port, private=verdict.private)
        link.lead_to(writer)
        if isinstance(reader, MeteredReader) and isinstance(writer, MeteredWriter):
            reader.meter = lambda size: link.count(received=size)
            writer.meter = lambda size: link.count(sent=size)
        return reader, writer

    async def _check_and_relay(self, link: Link, verdict: NetworkVerdict, streams: Streams) -> None:
        """Check the first bytes, then carry all bytes."""
        reader, writer = streams
        first, early = b"", b""
        try:
            if link.port != HTTPS_PORT:
                first, early = await _first_bytes(link.reader, reader)
            is_tls = link.port == HTTPS_PORT or first[:1] == HANDSHAKE
            if is_tls:
                link.protocol = "https"
                first = await self._checked_hello(link, first)
        except (OSError, EOFError):
            if not link.ended:
                self._begin(link, verdict)  # a connection to the host was made
            raise
        self._begin(link, verdict)
        link.count(sent=len(first))
        writer.write(first)
        if is_tls:
            early, asks_again = await read_server_answer(reader)
            if asks_again:  # the second ClientHello could name another server
                link.count(received=len(early))
                link.writer.write(early)
                first, early = await self._checked_hello(link, b"", is_second=True), b""
                link.count(sent=len(first))
                writer.write(first)
        link.count(received=len(early))
        link.writer.write(early)
        await link.splice(reader, writer)

    async def _checked_hello(self, link: Link, first: bytes, *, is_second: bool = False) -> bytes:
        """Return the bytes of a ClientHello that names the host of the link.

        Raises:
            RefusedError: it is not a ClientHello, or names no host or another one.
        """
        link.expect(self._budgets.head_timeout_s, overdue="was sent no whole ClientHello in time")
        try:
            hello = await read_client_hello(link.reader, first, is_second=is_second)
        except ClientHelloError as error:
            raise RefusedError(ProxyRefusal(403, link.host, link.port, f"was sent what {error}")) from None
        if hello.server_name != link.host:
            named_server = f"another server, {hello.server_name!r}" if hello.server_name else "no server"
            raise RefusedError(
                ProxyRefusal(403, link.host, link.port, f"was sent a ClientHello that names {named_server}")
            )
        return hello.raw


async def _first_bytes(client: asyncio.StreamReader, server: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the first bytes of the client or of the server, which speaks first in some protocols."""
    async with side_by_side(client.read(1), server.read(CHUNK_BYTES)) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    of_client, of_server = (b"" if task.cancelled() else task.result() for task in tasks)
    return of_client, of_server
