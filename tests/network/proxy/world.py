"""An outside for the proxy's tests, on loopback: names, addresses that are played, servers, and a client's side."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ohsandbox.network.audit import AuditLog, NetworkDecision
from ohsandbox.network.policy import NetworkPolicy
from ohsandbox.network.proxy.proxy import Interceptor, Proxy
from ohsandbox.network.proxy.upstream import Dialer, Streams, connected

if TYPE_CHECKING:
    from ohsandbox.network.package_hosts import PackageHosts
    from ohsandbox.network.proxy.budgets import NetworkBudgets

PUBLIC = "93.184.215.14"
"""Any public address: no packet ever goes there, the connector leads it to loopback."""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class World:
    """The proxy of one sandbox between a client's side and servers on loopback."""

    policy: NetworkPolicy
    audit: AuditLog = field(default_factory=AuditLog)
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    """By host, the answers of the resolver, one after the other; the last one stays."""
    ports: dict[int, int] = field(default_factory=dict)
    """By port of the outside, the port on loopback."""
    asked: list[str] = field(default_factory=list)
    """The names that were resolved."""
    dialed: list[tuple[str, int]] = field(default_factory=list)
    """The addresses that were connected to."""
    clients: list[asyncio.StreamWriter] = field(default_factory=list)
    proxy: Proxy | None = None
    port: int = 0

    async def resolve(self, host: str, _: int) -> list[str]:
        self.asked.append(host)
        answers = self.names.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(self, address: str, port: int) -> Streams:
        self.dialed.append((address, port))
        if port not in self.ports:
            raise ConnectionRefusedError(111, "Connection refused")
        return await connected("127.0.0.1", self.ports[port])

    async def client(self) -> Streams:
        made = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(made[1])
        return made

    async def ask(self, data: bytes) -> bytes:
        """All that the proxy answers to some bytes, until it closes or data is answered and we close."""
        reader, writer = await self.client()
        writer.write(data)
        writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def tunnel(self, authority: str) -> tuple[bytes, Streams]:
        """The head of the answer to a CONNECT, and the connection."""
        reader, writer = await self.client()
        writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20), (reader, writer)

    async def refused(self, count: int = 1) -> list[NetworkDecision]:
        """The refusals, once there are so many."""
        more = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(_: NetworkDecision) -> None:
            loop.call_soon_threadsafe(more.set)

        remove = self.audit.on_decision(wake)
        async with asyncio.timeout(20):
            while len(self.refusals) < count:
                more.clear()
                await more.wait()
        remove()
        return self.refusals

    @property
    def refusals(self) -> list[NetworkDecision]:
        return [one for one in self.audit.decisions if not one.allowed]

    @property
    def allowed(self) -> list[NetworkDecision]:
        return [one for one in self.audit.decisions if one.allowed]


@contextlib.asynccontextmanager
async def world(
    *rules: str,
    servers: dict[int, Handler] | None = None,
    tls: Iterable[int] = (),
    budgets: NetworkBudgets | None = None,
    interceptor: Interceptor | None = None,
    proxies: dict[str, str] | None = None,
    package_hosts: PackageHosts | None = None,
) -> AsyncIterator[World]:
    """A proxy with these rules, and a server on loopback for each port of the outside."""
    made = World(NetworkPolicy(rules, package_hosts=package_hosts))
    served: set[asyncio.Task[object]] = set()

    def kept(handler: Handler) -> Handler:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            served.add(task)
            try:
                await handler(reader, writer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                served.discard(task)

        return serve

    listening = []
    for port, handler in (servers or {}).items():
        context = server_context("good.example.org") if port in tls else None
        server = await asyncio.start_server(kept(handler), "127.0.0.1", 0, ssl=context)
        listening.append(server)
        made.ports[port] = server.sockets[0].getsockname()[1]
    dialer = Dialer(resolve=made.resolve, connect=made.connect, proxies=proxies or {})
    made.proxy = Proxy(made.policy, made.audit, budgets=budgets, interceptor=interceptor, dialer=dialer)
    front = await asyncio.start_server(kept(made.proxy.serve), "127.0.0.1", 0)
    made.port = front.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.proxy.close()
        for writer in made.clients:
            writer.close()
        for server in (front, *listening):
            server.close()
        if served:
            await asyncio.wait(served, timeout=60)


async def echo_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An origin server that answers each request with the bytes of its head, and its body's size."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(one[15:]) for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:")), 0
            )
            body = await reader.readexactly(length)
            if b"transfer-encoding: chunked" in head.lower():
                body = await reader.readuntil(b"0\r\n\r\n")
            text = head + body
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            await writer.drain()
    writer.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that says back what it hears."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    writer.close()


@cache
def _certificate(name: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


def server_context(name: str) -> ssl.SSLContext:
    """TLS of a server of that name, signed by itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = _certificate(name)
    path = _written(certificate + key)
    try:
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context


def _written(data: bytes) -> Path:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(data)
    return Path(file.name)


def client_context(name: str) -> ssl.SSLContext:
    """TLS of a client that trusts that server alone."""
    return ssl.create_default_context(cadata=_certificate(name)[0].decode())
