"""Requests to a credential's host: TLS ends here, the header is added, and a second TLS connection leads to the host.

h11 parses and writes both sides, so the outgoing request is always one well-formed HTTP/1.1 request for the host.
Bodies are streamed. If an answer contains the credential, it is replaced by a mask of the same length.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import h11

from ohsandbox.network.credentials.echo_mask import HOLD_S, EchoMask, WebSocketMask
from ohsandbox.network.credentials.request_rewriting import (
    CredentialRefusal,
    answered,
    masked_headers,
    outgoing,
    request_trailers,
)
from ohsandbox.network.credentials.tls_stream import TlsStream
from ohsandbox.network.loop import side_by_side
from ohsandbox.network.proxy.upstream import UpstreamError
from ohsandbox.secrets import Masker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ohsandbox.network.credentials.certificate_authority import CertificateAuthority
    from ohsandbox.network.credentials.credentials import Credential

    Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

T = TypeVar("T")

_HANDSHAKE_S = 20.0
"""Time limit for one TLS handshake; on a slow connection it takes two seconds."""
_HEAD_S = 300.0
"""Seconds to wait for the next request: clients' pools keep a connection for one to five minutes."""
IDLE_S = 3600.0
"""Seconds to wait for the next data of either side: models think for minutes, and a websocket may be silent."""
MAX_HEAD_BYTES = 128 * 1024
"""Maximum size of a head and of trailers; most servers accept 8 to 64 KiB."""
LINGER_BYTES, LINGER_S = 1 << 20, 2.0
"""Limits for reading on after a refusal, so that the client can finish sending and reads the reason."""


class CredentialInterceptor:
    """Serves all connections of a sandbox to the hosts of credentials."""

    def __init__(
        self, credentials: Sequence[Credential], authority: CertificateAuthority, upstream: ssl.SSLContext
    ) -> None:
        """Store credentials, whose hosts must be the authority's; upstream verifies the hosts' certificates."""
        self._credentials = tuple(sorted(credentials, key=lambda credential: -len(credential.path)))
        self._authority = authority
        self._upstream = upstream
        self._masker = Masker(
            {name: value for credential in credentials for name, value in credential.masked_values.items()},
            one_by_one=True,
        )

    def wants(self, host: str, port: int) -> bool:
        """Whether connections to this host and port get a credential."""
        return any((credential.host, credential.port) == (host, port) for credential in self._credentials)

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
        """See `ohsandbox.network.proxy.proxy.Interceptor`."""
        sandbox = TlsStream(reader, writer, self._authority.server_context(host))
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await sandbox.handshake()
        except (OSError, TimeoutError) as error:  # the client gets a TLS alert
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                refused(HTTPStatus.FORBIDDEN, f"has a credential, and its TLS was not agreed on: {_tls_problem(error)}")
            sandbox.close()
            return
        mine = [credential for credential in self._credentials if (credential.host, credential.port) == (host, port)]
        await _Exchanges(sandbox, _Destination(host, port, mine, self._upstream, connect), self._masker, refused).run()


def _tls_problem(error: ssl.SSLError) -> str:
    return (error.reason or type(error).__name__).lower().replace("_", " ")


class _Destination(NamedTuple):
    """The real host, and the credentials for it."""

    host: str
    port: int
    credentials: Sequence[Credential]
    context: ssl.SSLContext
    connect: Callable[[], Awaitable[Streams]]

    def credential(self, target: bytes) -> Credential | None:
        """Return the credential with the longest path that is a prefix of the request's target."""
        return next(
            (credential for credential in self.credentials if target.startswith(credential.path.encode())), None
        )

    async def open(self) -> TlsStream:
        reader, writer = await self.connect()
        stream = TlsStream(reader, writer, self.context, server_hostname=self.host)
        try:
            await stream.handshake()
        except BaseException:
            stream.close()
            raise
        return stream


class _Side:
    """One side of the exchange: a stream and its h11 connection."""

    def __init__(self, stream: TlsStream, role: type[h11.CLIENT | h11.SERVER]) -> None:
        self.stream = stream
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._early: asyncio.Task[bytes] | None = None

    async def next_event(self) -> Any:
        """Return the next event of h11, which is PAUSED if another request has arrived already."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            await self.receive()
        return event

    async def receive(self) -> bytes:
        """Pass the next data to h11 and return it; b"" at the end."""
        early, self._early = self._early, None
        data = await (early or self.stream.read())
        self.http.receive_data(data)
        return data

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            await self.stream.write(data)

    def listen(self) -> None:
        """Start reading between two exchanges: data or the end of the stream closes the connection."""
        self._early = asyncio.ensure_future(self.stream.read())
        self._early.add_done_callback(self._closes_unless_read)

    def _closes_unless_read(self, early: asyncio.Task[bytes]) -> None:
        if self._early is early:
            self.stream.close()

    @property
    def is_reusable(self) -> bool:
        """Whether nothing has arrived since the last exchange, not even the end of the stream."""
        return self._early is not None and not self._early.done()

    def close(self) -> None:
        if self._early is not None:
            self._early.cancel()
            self._early.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.stream.close()


class _Exchanges:
    """The requests of one connection of the sandbox, one after another, with their answers."""

    def __init__(
        self, sandbox: TlsStream, to: _Destination, masker: Masker, refused: Callable[[int, str], None]
    ) -> None:
        self._sandbox = _Side(sandbox, h11.SERVER)
        self._to = to
        self._masker = masker
        self._refused = refused
        self._upstream: _Side | None = None
        self._waited_s = 0.0
        """Seconds spent waiting for the host since bytes were last passed on because of that."""

    async def run(self) -> None:
        try:
            while await self._exchange():
                self._sandbox.http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            refusal = CredentialRefusal(
                HTTPStatus(error.error_status_hint), "this is not HTTP/1.1 that could be passed on"
            )
            with contextlib.suppress(OSError):  # the client may have gone
                await self._refuse(refusal)
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass  # a side closed the connection, or an answer was incomplete: end this connection too
        finally:
            self._sandbox.close()
            self._drop_upstream()

    async def _exchange(self) -> bool:
        """Serve one request; return whether another may follow."""
        async with asyncio.timeout(_HEAD_S):
            request = await self._sandbox.next_event()
        if not isinstance(request, h11.Request):
            return False
        head = outgoing(request, self._to.host, self._to.port, self._to.credential(request.target))
        upstream = head if isinstance(head, CredentialRefusal) else await self._sent(head)
        if isinstance(upstream, CredentialRefusal):
            await self._refuse(upstream)
            return False
        return await self._relay(upstream)

    async def _sent(self, head: h11.Request) -> _Side | CredentialRefusal:
        """Send the head to the host; return that side, or a refusal."""
        try:
            if self._upstream is None or not self._upstream.is_reusable:
                self._drop_upstream()
                async with asyncio.timeout(_HANDSHAKE_S + _HEAD_S):
                    self._upstream = _Side(await self._to.open(), h11.CLIENT)
            await self._upstream.send(head)
        except ssl.SSLCertVerificationError as error:
            return CredentialRefusal(
                HTTPStatus.BAD_GATEWAY,
                f"the certificate of {self._to.host} is not trusted here: {error.verify_message}",
            )
        except UpstreamError as error:
            return CredentialRefusal(HTTPStatus.BAD_GATEWAY, f"{self._to.host} {error}")
        except (OSError, TimeoutError) as error:
            return CredentialRefusal(
                HTTPStatus.BAD_GATEWAY, f"no connection to {self._to.host}: {error or type(error).__name__}"
            )
        return self._upstream

    async def _relay(self, upstream: _Side) -> bool:
        """Carry body and answer at the same time; return whether another request may follow."""
        async with side_by_side(self._send_body(upstream), self._send_answer(upstream)) as (body, answer):
            await asyncio.wait((body, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and body.result():  # the client has gone
                return False
            switched: bool | CredentialRefusal = await answer
        if isinstance(switched, CredentialRefusal):  # not earlier: the body's task reads from the same stream
            await self._refuse(switched)
            return False
        if switched:
            await self._splice(upstream)
            return False
        if upstream.http.our_state is h11.DONE and upstream.http.their_state is h11.DONE:
            upstream.http.start_next_cycle()
            upstream.listen()
        else:
            self._drop_upstream()
        return self._sandbox.http.our_state is h11.DONE and self._sandbox.http.their_state is h11.DONE

    async def _send_body(self, upstream: _Side) -> bool:
        """Carry the request's body, then wait for data; return whether the stream has ended instead."""
        while not isinstance(event := await self._from(self._sandbox), h11.EndOfMessage):
            with contextlib.suppress(OSError):  # the host may have answered why it stopped reading
                await upstream.send(event)
        with contextlib.suppress(OSError):
            await upstream.send(h11.EndOfMessage(headers=request_trailers(event.headers)))
        return not await self._sandbox.receive()

    async def _send_answer(self, upstream: _Side) -> bool | CredentialRefusal:
        """Carry the answer; return whether the protocol is switched, or the refusal to send instead."""
        mask = EchoMask(self._masker)
        began = False
        while True:
            try:
                event = await self._while_holding(mask, lambda: self._from(upstream), self._give)
            except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
                if began:
                    await self._give(mask.flush())
                    raise ConnectionAbortedError("the answer broke off") from error
                return CredentialRefusal(
                    HTTPStatus.BAD_GATEWAY, f"{self._to.host} gave no answer: {error or type(error).__name__}"
                )
            if isinstance(event, h11.InformationalResponse):
                if (
                    event.status_code == HTTPStatus.SWITCHING_PROTOCOLS
                    or self._sandbox.http.their_http_version != b"1.0"
                ):
                    await self._sandbox.send(answered(event, self._masker))
                if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                    return True
            elif isinstance(event, h11.Response):
                began = True
                await self._sandbox.send(answered(event, self._masker))
            elif isinstance(event, h11.Data):
                await self._give(mask.feed(bytes(event.data)))
            else:
                await self._give(mask.flush())
                await self._sandbox.send(h11.EndOfMessage(headers=masked_headers(event.headers, self._masker)))
                return False

    async def _give(self, data: bytes) -> None:
        if data:
            await self._sandbox.send(h11.Data(data=data))

    async def _from(self, side: _Side) -> Any:
        await asyncio.sleep(0)  # so that a body of a million chunks does not block other sandboxes of this process
        async with asyncio.timeout(IDLE_S):
            return await side.next_event()

    async def _while_holding(
        self,
        mask: EchoMask | WebSocketMask,
        receive: Callable[[], Awaitable[T]],
        give: Callable[[bytes], Awaitable[None]],
    ) -> T:
        """Return what `receive`, which may be cancelled, returns; give what mask has held back for long meanwhile.

        Only the time spent here counts: a sandbox that does not read cannot make a value pass in two parts.
        """
        now = asyncio.get_running_loop().time
        while mask.is_holding:
            began = now()
            try:
                async with asyncio.timeout(max(0, HOLD_S - self._waited_s)) as limit:
                    return await receive()
            except TimeoutError:
                if not limit.expired():
                    raise
            finally:
                self._waited_s += now() - began
            self._waited_s = 0.0
            await give(mask.tick())
        return await receive()

    async def _splice(self, upstream: _Side) -> None:
        """Carry bytes in both directions until one side ends."""
        mask = WebSocketMask(self._masker)

        async def requests() -> None:
            data = self._sandbox.http.trailing_data[0] or await self._sandbox.stream.read()
            while data:
                await upstream.stream.write(data)
                data = await self._sandbox.stream.read()

        async def answers() -> None:
            data = upstream.http.trailing_data[0] or await upstream.stream.read()
            while data:
                await self._sandbox.stream.write(mask.feed(data))
                data = await self._while_holding(mask, upstream.stream.read, self._sandbox.stream.write)
            await self._sandbox.stream.write(mask.flush())

        async with side_by_side(requests(), answers()) as ways:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)

    async def _refuse(self, refusal: CredentialRefusal) -> None:
        """Record the refusal, and send it if no answer has begun."""
        self._refused(refusal.status, f"was sent a request that is not served: {refusal.text}")
        if self._sandbox.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        text = f"ohsandbox: {refusal.text}\n".encode()
        headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text)))]
        await self._sandbox.send(h11.Response(status_code=refusal.status, headers=[*headers, ("connection", "close")]))
        with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD is only a head
            await self._sandbox.send(h11.Data(data=text))
            await self._sandbox.send(h11.EndOfMessage())
        await self._linger()

    async def _linger(self) -> None:
        remaining = LINGER_BYTES
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while remaining > 0 and (data := await self._sandbox.stream.read()):
                    remaining -= len(data)

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        self._upstream = None
