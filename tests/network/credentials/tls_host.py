"""A host with TLS on loopback that stands for an interface, and a sandbox's connection to it through an interceptor."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, NamedTuple, Self

import h11

from ohsandbox.network.credentials.certificate_authority import CertificateAuthority
from ohsandbox.network.credentials.credential_broker import CredentialBroker
from ohsandbox.network.credentials.credentials import parse_credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOST = "api.example.org"
KEY = "sk-real-0123456789abcdefghij"


class Seen(NamedTuple):
    """One request as it arrived at the host."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    trailers: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        return [value for one, value in self.headers if one == name]


class TlsHost:
    """Answers each request by what `answer` makes of it: the bytes of a whole answer, or of parts to send in turn."""

    def __init__(self, name: str = HOST, answer: Callable[[Seen], bytes] | None = None) -> None:
        self.name = name
        self.answer = answer or (lambda _: whole(b"ok"))
        self.serve: Serve = self._serve
        self.seen: list[Seen] = []
        self.connections = 0
        self.authority = CertificateAuthority([name])
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        context = self.authority.server_context(self.name)
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    def trust(self) -> ssl.SSLContext:
        """A person's, whose trust store has this host's authority."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self.serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        while (seen := await read_request(http, reader)) is not None:
            self.seen.append(seen)
            writer.write(self.answer(seen))
            await writer.drain()
            http = h11.Connection(h11.SERVER)


async def read_request(http: h11.Connection, reader: asyncio.StreamReader) -> Seen | None:
    head, body = None, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            if not data and head is None:
                return None
            http.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return Seen(head.method.decode(), head.target.decode(), texts(head.headers), body, texts(event.headers))
        else:
            return None


def texts(headers: object) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]  # type: ignore[attr-defined]


def whole(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """An answer with its length."""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


def frame(payload: bytes, opcode: int = 1, *, final: bool = True) -> bytes:
    """A server's frame of a websocket."""
    size = len(payload)
    wide = 0 if size < 126 else 2 if size < 1 << 16 else 8
    length = size.to_bytes(wide) if wide else b""
    return bytes([0x80 * final | opcode, {0: size, 2: 126, 8: 127}[wide]]) + length + payload


class Inside:
    """What stands in a sandbox: connections to the host that an interceptor serves."""

    def __init__(self, host: TlsHost, *flags: str, trust: ssl.SSLContext | None = None) -> None:
        self.host = host
        flags = flags or (f"{host.name}=env:TOKEN",)
        self.broker = CredentialBroker(parse_credentials(flags, environ={"TOKEN": KEY}), upstream=trust or host.trust())
        self._server: asyncio.Server | None = None
        self._open: list[asyncio.StreamWriter] = []
        self.served: list[asyncio.Task[None]] = []
        self.upstream: list[asyncio.StreamWriter] = []
        self.refused: list[tuple[int, str]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        async with asyncio.timeout(10):
            await asyncio.gather(*self.served, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.served.append(task)
        told = self.refused
        await self.broker.interceptor.serve(
            reader, writer, self.host.name, 443,
            connect=self._connect, refused=lambda status, reason: told.append((status, reason)),
        )  # fmt: skip

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.host.port)
        self.upstream.append(writer)
        return reader, writer

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.broker.certificate.decode())

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def connect(
        self, *, sni: str | None = None, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or self.context(), server_hostname=sni or self.host.name
        )
        self._open.append(writer)
        return reader, writer

    async def ask(self, request: bytes | str) -> bytes:
        """All that comes back for these bytes, until the connection ends or an answer is whole."""
        reader, writer = await self.connect()
        writer.write(request.encode() if isinstance(request, str) else request)
        return await read_answer(reader)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """One answer with a length, or all until the end."""
    async with asyncio.timeout(20):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = await reader.readline()
            if not line:
                return head
            head += line
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head + await reader.readexactly(int(line.partition(b":")[2]))
        return head + await reader.read(-1)


@contextlib.asynccontextmanager
async def inside(
    answer: Callable[[Seen], bytes] | None = None, *flags: str, serve: Serve | None = None
) -> AsyncIterator[tuple[Inside, TlsHost]]:
    async with TlsHost(answer=answer) as host:
        if serve is not None:
            host.serve = serve
        async with Inside(host, *flags) as sandbox:
            yield sandbox, host


def get(path: str = "/", *headers: str, method: str = "GET", host: str = HOST, version: str = "1.1") -> str:
    return "\r\n".join([f"{method} {path} HTTP/{version}", f"host: {host}", *headers, "", ""])
