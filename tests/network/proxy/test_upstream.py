"""The person's own proxy on the way to the outside, and the streams that an interceptor is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.network.proxy.upstream import Dialer, Streams, UpstreamError, connected, proxy_of
from tests.network.proxy.world import PUBLIC, client_context, echo, echo_http, world

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

GOOD = "good.example.org"
GET = f"GET http://{GOOD}/x HTTP/1.1\r\nHost: {GOOD}\r\n\r\n".encode()


class CompanyProxy:
    """A proxy of the person's: it answers CONNECT with a status and echoes, or echoes a request's head."""

    def __init__(self, status: str = "200 OK") -> None:
        self.status = status
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if head.startswith(b"CONNECT"):
            writer.write(f"HTTP/1.1 {self.status}\r\nX: y\r\n\r\n".encode())
            await echo(reader, writer)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()


PROXIES = {"http": "http://me:pa%20ss@proxy.corp:3128", "https": "proxy.corp:3128", "no": "near.example.org,.corp"}


async def test_tunnel_leads_through_the_persons_proxy_which_resolves() -> None:
    company = CompanyProxy()
    async with world(f"{GOOD}:9000", servers={3128: company.serve}, proxies=PROXIES) as outside:
        answer, (reader, writer) = await outside.tunnel(f"{GOOD}:9000")
        assert b" 200 " in answer
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert company.heads[0].startswith(f"CONNECT {GOOD}:9000 HTTP/1.1\r\n".encode())
        assert (outside.asked, outside.dialed) == ([], [("proxy.corp", 3128)])
        assert (await outside.tunnel("evil.example.org:443"))[0].startswith(b"HTTP/1.1 403 ")
        assert len(company.heads) == 1  # what the rules refuse the proxy does not hear of


async def test_plain_request_goes_to_the_persons_proxy_whole_with_its_password_and_without_the_sandboxs() -> None:
    company = CompanyProxy()
    async with world(GOOD, servers={3128: company.serve}, proxies=PROXIES) as outside:
        mine = GET.replace(b"\r\n\r\n", b"\r\nProxy-Authorization: Basic c3B5\r\n\r\n")
        assert (await outside.ask(mine)).endswith(b"ok")
        assert company.heads[0].startswith(f"GET http://{GOOD}/x HTTP/1.1\r\n".encode())
        assert b"Basic bWU6cGEgc3M=" in company.heads[0]
        assert b"c3B5" not in company.heads[0]
        assert "pa ss" not in repr(proxy_of(PROXIES["http"]))


@pytest.mark.parametrize("method", ["TRACE", "trace", "TRACK"])
async def test_persons_proxy_is_not_asked_for_an_echo_of_its_password(method: str) -> None:
    company = CompanyProxy()
    async with world(GOOD, servers={3128: company.serve}, proxies=PROXIES) as outside:
        asking = GET.replace(b"GET", method.encode()).replace(b"\r\n\r\n", b"\r\nMax-Forwards: 0\r\n\r\n")
        assert (await outside.ask(asking)).startswith(b"HTTP/1.1 501 ")
        assert company.heads == []


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "503 Busy", "nonsense"])
async def test_refusal_of_the_persons_proxy_is_told_as_a_failure(status: str) -> None:
    company = CompanyProxy(status)
    async with world(GOOD, servers={3128: company.serve}, proxies=PROXIES) as outside:
        answer, (_, writer) = await outside.tunnel(f"{GOOD}:443")
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"your" in answer
        writer.close()


async def test_hosts_of_no_proxy_are_connected_to_directly() -> None:
    rules = ("near.example.org", "a.near.example.org", "private:wiki.corp", "notcorp")
    async with world(*rules, servers={80: echo_http}, proxies=PROXIES) as outside:
        for host in ("near.example.org", "a.near.example.org", "wiki.corp"):
            assert b" 200 " in await outside.ask(GET.replace(GOOD.encode(), host.encode()))
        assert outside.asked == ["near.example.org", "a.near.example.org", "wiki.corp"]
        assert b" 502 " in await outside.ask(GET.replace(GOOD.encode(), b"notcorp"))
        assert outside.dialed[-1] == ("proxy.corp", 3128)


@pytest.mark.parametrize("url", ["socks5://proxy.corp:1080", "http://", "http://proxy.corp:x", "http://:80"])
async def test_proxy_of_another_kind_is_told_and_not_gone_past(url: str) -> None:
    async with world(GOOD, servers={80: echo_http}, proxies={"all": url}) as outside:
        answer = await outside.ask(GET)
        assert b"HTTP/1.1 502 " in answer
        assert outside.dialed == []


async def test_name_without_addresses_and_one_that_is_unknown_are_failures() -> None:
    async def nothing(_: str, __: int) -> list[str]:
        return []

    async def unknown(_: str, __: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    for resolve in (nothing, unknown):
        with pytest.raises(UpstreamError, match="cannot be resolved") as raised:
            await Dialer(resolve=resolve, connect=connected, proxies={}).open(GOOD, 443, private=False)
        assert not raised.value.refused


class Terminator:
    """An interceptor that ends TLS with a certificate of the world's, and carries lines to the outside."""

    def __init__(self, port: int = 443) -> None:
        self.port = port
        self.served: list[tuple[str, int]] = []

    def wants(self, host: str, port: int) -> bool:
        return (host, port) == (GOOD, self.port)

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
        self.served.append((host, port))
        refused(502, "gave no answer")
        refused(421, "was sent another Host")
        assert await reader.readexactly(1) == b"\x16"  # the first byte of the ClientHello
        outside_reader, outside_writer = await connect()
        await outside_writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        outside_writer.write(b"x" * 1000)
        await outside_reader.readexactly(1000)
        writer.write(b"done")


async def test_interceptor_serves_its_host_and_the_bytes_of_its_connection_are_counted() -> None:
    terminator = Terminator()
    async with world(
        GOOD, "other.example.org", servers={443: echo, 80: echo_http}, tls=[443], interceptor=terminator
    ) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        writer.write(b"\x16")
        assert await reader.read() == b"done"
        writer.close()
        assert terminator.served == [(GOOD, 443)]
        decision, inside = outside.audit.decisions
        assert (decision.sent_bytes, decision.received_bytes) == (1000, 1000)
        assert (inside.allowed, inside.host, inside.reason) == (False, GOOD, "was sent another Host")

        answer = await outside.ask(GET)
        assert answer.startswith(b"HTTP/1.1 403 ")  # a credential goes nowhere in clear
        assert f"https://{GOOD}/".encode() in answer
        outside.policy.disallow(GOOD)
        assert (await outside.tunnel(f"{GOOD}:443"))[0].startswith(b"HTTP/1.1 403 ")
        assert terminator.served == [(GOOD, 443)]


async def test_plain_requests_to_the_port_of_a_credential_are_refused() -> None:
    terminator = Terminator(8443)
    rules = [f"{GOOD}:8443", GOOD]
    async with world(*rules, servers={8443: echo_http, 80: echo_http}, interceptor=terminator) as outside:
        assert b" 200 " in await outside.ask(GET)
        answer = await outside.ask(GET.replace(GOOD.encode(), f"{GOOD}:8443".encode()))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert f"Use https://{GOOD}:8443/.".encode() in answer
        assert outside.dialed == [(PUBLIC, 80)]
