"""The proxy as a red team would use it: smuggled, split, respelt, slow, huge, many. Each refusal is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from typing import TYPE_CHECKING

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.network.proxy import upstream
from ohsandbox.network.proxy.budgets import NetworkBudgets
from ohsandbox.network.proxy.client_hello import ALERT_ACCESS_DENIED
from ohsandbox.network.proxy.http_head import HeadError, RequestReader, parsed_request, request_target
from tests.aio import counted_turns
from tests.network.proxy.world import PUBLIC, Handler, World, client_context, echo, echo_http, server_context, world

if TYPE_CHECKING:
    from ohsandbox.network.proxy.upstream import Streams

GOOD, EVIL = "good.example.org", "evil.example.org"
REQUEST = f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\n\r\n".encode()


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode("latin-1")


BAD_HEADS = {
    "host twice": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", f"Host: {EVIL}"),
    "same host twice": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", f"Host: {GOOD}"),
    "another host": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {EVIL}"),
    "another port": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}:8080"),
    "no host": head(f"GET http://{GOOD}/ HTTP/1.1"),
    "user": head(f"GET http://{GOOD}@{EVIL}/ HTTP/1.1", f"Host: {EVIL}"),
    "user of an allowed host": head(f"GET http://{EVIL}@{GOOD}/ HTTP/1.1", f"Host: {GOOD}"),
    "backslash": head(f"GET http://{GOOD}\\@{EVIL}/ HTTP/1.1", f"Host: {GOOD}"),
    "fragment": head(f"GET http://{GOOD}#@{EVIL}/ HTTP/1.1", f"Host: {GOOD}"),
    "encoded host": head(f"GET http://{GOOD}%2f.{EVIL}/ HTTP/1.1", f"Host: {GOOD}"),
    "origin form": head("GET / HTTP/1.1", f"Host: {GOOD}"),
    "https without a tunnel": head(f"GET https://{GOOD}/ HTTP/1.1", f"Host: {GOOD}"),
    "file": head("GET file:///etc/passwd HTTP/1.1", "Host: x"),
    "asterisk": head("OPTIONS * HTTP/1.1", f"Host: {GOOD}"),
    "two lengths": head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Content-Length: 1", "Content-Length: 2"),
    "length and chunked": head(
        f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Content-Length: 4", "Transfer-Encoding: chunked"
    ),
    "chunked in HTTP/1.0": head(f"POST http://{GOOD}/ HTTP/1.0", f"Host: {GOOD}", "Transfer-Encoding: chunked"),
    "unknown coding": head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: xchunked"),
    "two codings": head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: gzip, chunked"),
    "length with a sign": head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Content-Length: +4"),
    "blank before the colon": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host : {GOOD}"),
    "folded": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "X: a", " Host: evil"),
    "folded first": head(f"GET http://{GOOD}/ HTTP/1.1", " X: a", f"Host: {GOOD}"),
    "bare LF": f"GET http://{GOOD}/ HTTP/1.1\nHost: {GOOD}\n\n".encode(),
    "bare LF in a header": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}\nX: y"),
    "bare CR": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "X: a\rHost: evil"),
    "NUL": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "X: a\0b"),
    "empty line first": b"\r\n\r\n" + REQUEST,
    "two blanks": head(f"GET  http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}"),
    "tab": head(f"GET\thttp://{GOOD}/\tHTTP/1.1", f"Host: {GOOD}"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": head(f"GET http://{GOOD}/"),
    "IPv4": head("GET http://93.184.215.14/ HTTP/1.1", "Host: 93.184.215.14"),
    "hexadecimal": head("GET http://0x7f000001/ HTTP/1.1", "Host: 0x7f000001"),
    "decimal": head("GET http://2130706433/ HTTP/1.1", "Host: 2130706433"),
    "octal": head("GET http://0177.0.0.1/ HTTP/1.1", "Host: 0177.0.0.1"),
    "short": head("GET http://127.1/ HTTP/1.1", "Host: 127.1"),
    "IPv6": head("GET http://[::1]/ HTTP/1.1", "Host: [::1]"),
    "mapped": head("CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1", "Host: [::ffff:127.0.0.1]:443"),
    "localhost": head("GET http://localhost/ HTTP/1.1", "Host: localhost"),
    "below localhost": head("CONNECT a.localhost:443 HTTP/1.1", "Host: a.localhost:443"),
    "below an exact host": head(f"CONNECT a.{GOOD}:443 HTTP/1.1", f"Host: a.{GOOD}:443"),
    "same end": head("CONNECT evilgood.example.org:443 HTTP/1.1", "Host: evilgood.example.org:443"),
    "same start": head(f"CONNECT {GOOD}.evil.example:443 HTTP/1.1", f"Host: {GOOD}.evil.example:443"),
    "two dots": head(f"CONNECT {GOOD}..:443 HTTP/1.1", f"Host: {GOOD}..:443"),
    "homoglyph": head("GET http://g\u00f6\u00f6d.example.org/ HTTP/1.1", f"Host: {GOOD}"),
    "punycode": head("CONNECT xn--gd-fkaa.example.org:443 HTTP/1.1", "Host: xn--gd-fkaa.example.org:443"),
    "port 22": head(f"CONNECT {GOOD}:22 HTTP/1.1", f"Host: {GOOD}:22"),
    "port 0": head(f"CONNECT {GOOD}:0 HTTP/1.1", f"Host: {GOOD}:0"),
    "port 65979": head(f"CONNECT {GOOD}:65979 HTTP/1.1", f"Host: {GOOD}:65979"),
    "port with a zero": head(f"CONNECT {GOOD}:0443 HTTP/1.1", f"Host: {GOOD}:0443"),
    "no port": head(f"CONNECT {GOOD} HTTP/1.1", f"Host: {GOOD}"),
    "tunnel with a scheme": head(f"CONNECT https://{GOOD}:443 HTTP/1.1", f"Host: {GOOD}:443"),
    "tunnel with another Host": head(f"CONNECT {GOOD}:443 HTTP/1.1", f"Host: {EVIL}:443"),
    "many headers": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", *(["X: y"] * 200)),
    "huge header": head(f"GET http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "X: " + "y" * 60_000),
    "huge line": b"GET http://" + b"a" * 200_000,
    "cut": REQUEST[:-7],
}


@pytest.mark.parametrize("name", BAD_HEADS)
async def test_head_that_two_parsers_read_differently_or_that_leads_elsewhere_is_refused(name: str) -> None:
    async with world(GOOD, servers={80: echo_http, 443: echo, 22: echo}) as outside:
        answer = await outside.ask(BAD_HEADS[name])
        assert answer[:10] == b"HTTP/1.1 4" or answer[:12] == b"HTTP/1.1 501"
        assert answer.count(b"HTTP/1.1 ") == 1
        assert (outside.asked, outside.dialed) == ([], [])
        assert len(outside.refusals) == len(outside.audit.decisions) == 1
        assert b" 200 " in await outside.ask(REQUEST)  # and the next one is served


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_request_may_come_in_pieces_of_any_size(size: int) -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        reader, writer = await outside.client()
        data = (
            head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: chunked")
            + b"3\r\nabc\r\n0\r\n\r\n"
        )
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert b"abc" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_pipelined_requests_are_answered_in_order_and_each_is_decided() -> None:
    async with world(GOOD, "*.more.example.org", servers={80: echo_http}) as outside:
        hosts = [GOOD, "a.more.example.org", GOOD, GOOD, EVIL, GOOD]
        data = b""
        for number, host in enumerate(hosts):
            data += head(f"POST http://{host}/{number} HTTP/1.1", f"Host: {host}", "Content-Length: 2") + b"xy"
        answer = await outside.ask(data)
        places = [answer.index(f"POST /{number} ".encode()) for number in range(4)]
        assert places == sorted(places)
        assert answer.count(b"HTTP/1.1 200 ") == 4
        assert answer.count(b"HTTP/1.1 403 ") == 1
        assert b"/5 " not in answer
        assert [one.host for one in outside.audit.decisions] == hosts[:5]
        assert len(outside.dialed) == 3  # the last two of a host use one connection


async def test_what_comes_behind_a_body_is_one_request_and_served_once() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        chunked = head(f"POST http://{GOOD}/1 HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: chunked")
        answer = await outside.ask(chunked + b"3\r\nabc\r\n0\r\n\r\n" + REQUEST + REQUEST)
        assert answer.count(b"HTTP/1.1 200 ") == 3
        assert len(outside.audit.decisions) == 3


async def test_answer_that_comes_unasked_is_not_taken_for_that_of_the_next_request() -> None:
    async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngoodHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
        )
        await reader.read()

    async with world(GOOD, servers={80: origin}) as outside:
        answer = await outside.ask(REQUEST + REQUEST)
        assert (answer.count(b"good"), answer.count(b"evil")) == (2, 0)
        assert len(outside.dialed) == 2


async def test_body_that_looks_like_a_request_is_a_body() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        inner = head(f"GET http://{EVIL}/ HTTP/1.1", f"Host: {EVIL}")
        answer = await outside.ask(
            head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", f"Content-Length: {len(inner)}") + inner
        )
        assert answer.endswith(inner)
        assert len(outside.audit.decisions) == 1


@pytest.mark.parametrize(
    "chunk", [b"x\r\nabc\r\n", b"-1\r\nabc\r\n", b"3 \nabc\r\n", b"3\r\nabcd\r\n", b"ffffffffffffffffffffff\r\n"]
)
async def test_chunk_of_no_size_ends_the_connection(chunk: bytes) -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        request = head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: chunked")
        answer = await outside.ask(request + chunk + b"0\r\n\r\n" + REQUEST)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert len(outside.refusals) == 1
        assert b" 200 " not in answer


async def test_body_of_many_chunks_holds_up_nobody() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside, counted_turns() as turns:
        request = head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: chunked")
        assert b" 200 " in await outside.ask(request + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n")
    assert len(turns) > 5000


async def test_hop_by_hop_headers_go_no_further_and_framing_cannot_be_taken_off() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        headers = [
            "Connection: keep-alive, X-Secret, Host, Content-Length",
            "X-Secret: 1",
            "Proxy-Authorization: Basic eA==",
            "TE: trailers",
            "Upgrade: h2c",
            "Keep-Alive: 5",
        ]
        answer = await outside.ask(
            head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", *headers, "Content-Length: 2") + b"ok"
        )
        forwarded = answer.partition(b"\r\n\r\n")[2].lower()
        assert forwarded == f"post / http/1.1\r\nhost: {GOOD}\r\ncontent-length: 2\r\n\r\nok".encode()


async def test_no_tunnel_after_a_plain_request_and_none_inside_of_one() -> None:
    async with world(GOOD, EVIL, servers={80: echo_http, 443: echo}) as outside:
        connect = head(f"CONNECT {EVIL}:443 HTTP/1.1", f"Host: {EVIL}:443")
        answer = await outside.ask(REQUEST + connect)
        assert answer.count(b" 200 ") == 1
        assert answer.count(b"HTTP/1.1 400 ") == 1
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:80")
        writer.write(connect)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert [port for _, port in outside.dialed] == [80]


async def response_of(answer: bytes, *requests: bytes) -> tuple[bytes, World]:
    async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with world(GOOD, servers={80: origin}) as outside:
        return await outside.ask(b"".join(requests) or REQUEST), outside


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", b"HTTP/1.1 200 OK\r\nA\0B: c\r\n\r\n",
    ],
)  # fmt: skip
async def test_answer_that_is_no_http_is_a_failure_of_the_outside(answer: bytes) -> None:
    told, outside = await response_of(answer)
    assert told.startswith(b"HTTP/1.1 502 ")
    assert [one.allowed for one in outside.audit.decisions] == [True]


async def test_second_answer_to_one_request_goes_nowhere() -> None:
    once = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    told, _ = await response_of(once + b"a" + once + b"b")
    assert (told.count(b"HTTP/1.1"), told[-1:]) == (1, b"a")
    told, _ = await response_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n")
    assert not told.endswith(b"0\r\n\r\n")  # a broken answer does not look whole


# --- TLS ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01\x00\x00", b"\0" * 10])
async def test_what_is_not_tls_does_not_pass_at_443(data: bytes) -> None:
    async with world(GOOD, servers={443: echo}) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        writer.write(data)
        assert await reader.read() == ALERT_ACCESS_DENIED
        writer.close()
        assert [one.allowed for one in await outside.refused()] == [False]


async def test_tls_without_a_name_is_refused() -> None:
    async with world(GOOD, servers={443: echo}, tls=[443]) as outside:
        _, (_, writer) = await outside.tunnel(f"{GOOD}:443")
        context = client_context(GOOD)
        context.check_hostname = False
        with pytest.raises(OSError, match=r"(?i)access.denied"):
            await writer.start_tls(context, server_hostname="127.0.0.1")  # an address is not sent
        assert "names no server" in (await outside.refused())[0].reason
        writer.close()


def hello_of(name: str) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(GOOD).wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return tls, incoming, outgoing


async def retrying_server(handler: Handler) -> asyncio.Server:
    context = server_context(GOOD)
    context.set_ecdh_curve("secp521r1")  # no client offers a share for it at first
    return await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)


async def test_second_hello_that_names_another_server_is_refused() -> None:
    async with world(GOOD) as outside, await retrying_server(echo) as server:
        outside.ports[443] = server.sockets[0].getsockname()[1]
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        await writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"  # the honest second hello passes
        writer.close()

        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        _, _, first = hello_of(GOOD)
        writer.write(first.read())
        retry = await reader.readexactly(5)
        assert retry[0] == 22
        await reader.readexactly(int.from_bytes(retry[3:]))
        _, _, second = hello_of(EVIL)
        writer.write(b"\x14\x03\x03\x00\x01\x01" + second.read())
        assert (await reader.read()).endswith(ALERT_ACCESS_DENIED)
        assert EVIL in (await outside.refused())[0].reason
        writer.close()


async def test_protocol_whose_server_speaks_first_passes_at_a_port_of_its_own() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n")
        await echo(reader, writer)

    async with world(f"{GOOD}:22", servers={22: greet}) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:22")
        assert await reader.readline() == b"SSH-2.0-server\r\n"
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert outside.audit.decisions[0].protocol == "tcp"


# --- the outside -------------------------------------------------------------------------------


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::ffff:169.254.169.254"], ["fe80::1%1"]])
async def test_one_address_inside_refuses_all(addresses: list[str]) -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        outside.names[GOOD] = [addresses]
        assert (await outside.ask(REQUEST)).startswith(b"HTTP/1.1 403 ")
        assert outside.dialed == []
        assert len(outside.refusals) == 1


async def test_private_address_is_for_hosts_that_a_rule_calls_private() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        outside.names[GOOD] = [["10.0.0.1"]]
        answer = await outside.ask(REQUEST)
        assert f"/net allow private:{GOOD}".encode() in answer
        outside.policy.allow(f"private:{GOOD}")
        assert b" 200 " in await outside.ask(REQUEST)
        assert outside.dialed == [("10.0.0.1", 80)]


async def test_address_of_this_machine_is_refused_whatever_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(f"private:{GOOD}", servers={80: echo_http}) as outside:
        monkeypatch.setattr(upstream, "is_this_machine", lambda address: address == PUBLIC)
        answer = await outside.ask(REQUEST)
        assert b"address of this machine" in answer
        assert b"No rule opens" in answer
        assert outside.dialed == []


async def test_next_vetted_address_is_tried_and_a_failure_is_told_as_one() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        outside.names[GOOD] = [["8.8.8.8", PUBLIC]]
        real = outside.connect

        async def first_fails(address: str, port: int) -> Streams:
            if address == "8.8.8.8":
                outside.dialed.append((address, port))
                raise ConnectionRefusedError(111, "Connection refused")
            return await real(address, port)

        outside.connect = first_fails  # type: ignore[method-assign]
        assert outside.proxy is not None
        outside.proxy._dialer = upstream.Dialer(resolve=outside.resolve, connect=first_fails, proxies={})
        assert b" 200 " in await outside.ask(REQUEST)
        assert outside.dialed == [("8.8.8.8", 80), (PUBLIC, 80)]
        outside.ports.clear()
        answer = await outside.ask(REQUEST)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert outside.refusals == []


# --- budgets -----------------------------------------------------------------------------------


async def test_connections_beyond_the_budget_are_refused_and_served_once_others_have_ended() -> None:
    async with world(GOOD, servers={80: echo_http}, budgets=NetworkBudgets(connections=3)) as outside:
        held = [await outside.client() for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET ")
        while not (answer := await outside.ask(REQUEST)).startswith(b"HTTP/1.1 429 "):
            assert b" 200 " in answer  # the three have not been seen yet
        assert "3 connections" in outside.refusals[-1].reason
        reader, _ = await outside.client()
        assert (await reader.read()).startswith(b"HTTP/1.1 429 ")  # closed from here, though nothing was sent
        for _, writer in held:
            writer.close()
        while b" 200 " not in (answer := await outside.ask(REQUEST)):
            assert answer.startswith(b"HTTP/1.1 429 ")  # the three have not been seen to end yet


async def test_slow_head_and_silent_tunnel_end_and_are_recorded() -> None:
    budgets = NetworkBudgets(head_timeout_s=0.2)
    async with world(GOOD, servers={443: echo}, tls=[443], budgets=budgets) as outside:
        slow, (_, silent) = (await outside.client())[1], (await outside.tunnel(f"{GOOD}:443"))[1]
        slow.write(b"GET ")
        reasons = sorted(one.reason for one in await outside.refused(2))
        assert reasons == ["sent no whole request in time", "was sent no whole ClientHello in time"]
        slow.close()
        silent.close()


async def test_requests_beyond_the_budget_are_refused() -> None:
    async with world(GOOD, servers={80: echo_http}, budgets=NetworkBudgets(requests_per_s=0.5)) as outside:
        answer = await outside.ask(REQUEST * 7)
        assert (answer.count(b" 200 "), answer.count(b"HTTP/1.1 429 ")) == (5, 1)


@pytest.mark.parametrize("budgets", [NetworkBudgets(sent_bytes=100_000), NetworkBudgets(received_bytes=100_000)])
async def test_bytes_beyond_the_budget_end_the_connection(budgets: NetworkBudgets) -> None:
    async with world(GOOD, servers={443: echo}, tls=[443], budgets=budgets) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        await writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        writer.write(b"x" * 300_000)
        with contextlib.suppress(OSError):
            assert len(await reader.read(-1)) < 300_000
        assert "100,000 bytes" in (await outside.refused())[0].reason
        assert (await outside.ask(REQUEST)).startswith(b"HTTP/1.1 429 ")
        writer.close()


@pytest.mark.slow
async def test_thousands_of_connections_leave_nothing_behind() -> None:
    async with world(GOOD, servers={80: echo_http}, budgets=NetworkBudgets(connections=50)) as outside:
        before = len(asyncio.all_tasks())
        room = asyncio.Semaphore(200)

        async def one(number: int) -> None:
            async with room:
                with contextlib.suppress(OSError):
                    await outside.ask(BAD_HEADS["cut"] if number % 3 else REQUEST)

        await asyncio.gather(*(one(number) for number in range(2000)))
        assert outside.proxy is not None
        async with asyncio.timeout(20):
            while outside.proxy._links or len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nobody tells of these
                await asyncio.sleep(0.01)
        assert outside.audit.totals.allowed + outside.audit.totals.refused == 2000
        assert b" 200 " in await outside.ask(REQUEST)


# --- fuzzing -----------------------------------------------------------------------------------


def _parse(data: bytes) -> tuple[str, int] | None:
    async def read() -> tuple[str, int] | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = await RequestReader(reader, 32 * 1024).read_head()
        if not found:
            return None
        target = request_target(parsed_request(found, h11.Connection(h11.SERVER)))
        return target.host, target.port

    return asyncio.run(read())


PIECES = st.sampled_from(
    [b"GET", b"CONNECT", b" ", b"http://", GOOD.encode(), EVIL.encode(), b":443", b":80", b"/", b" HTTP/1.1", b"\r\n",
     b"\n", b"Host: ", b"Content-Length: ", b"Transfer-Encoding: chunked", b"@", b"#", b"\\", b"%00", b"\t",
     b"127.0.0.1", b"0", b"."]
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.one_of(PIECES, PIECES, st.binary(max_size=6)), max_size=25))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_request_or_are_refused(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    found = None
    with contextlib.suppress(HeadError):
        found = _parse(data + b"\r\n\r\n")
    assert found is None or found[0].encode() in data.lower()


def test_pieces_of_requests_make_one_that_is_parsed() -> None:
    assert _parse(f"GET http://{GOOD}:80/ HTTP/1.1\r\nHost: {GOOD}:80\r\n\r\n".encode()) == (GOOD, 80)


async def test_changed_requests_reach_no_host_but_the_allowed_one_and_break_nothing() -> None:
    dice = random.Random(15)
    chunked = (
        head(f"POST http://{GOOD}/ HTTP/1.1", f"Host: {GOOD}", "Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\n\r\n"
    )
    tunnels = [head(f"CONNECT {GOOD}:{port} HTTP/1.1", f"Host: {GOOD}:{port}") for port in (443, 80)]
    seeds = [*BAD_HEADS.values(), REQUEST, REQUEST + b"x" * 40, chunked + REQUEST, *(one + REQUEST for one in tunnels)]
    alphabet = [
        b"\r\n",
        b"\n",
        b" ",
        b":",
        b"@",
        b"/",
        b"\0",
        b"\xff",
        EVIL.encode(),
        b"http://",
        b"Host: ",
        b"\r\n\r\n",
    ]
    async with world(GOOD, servers={80: echo_http, 443: echo}) as outside:
        for _ in range(600):
            data = bytearray(dice.choice(seeds)[:3000])
            for _ in range(dice.randint(1, 5)):
                at = dice.randrange(len(data) + 1)
                data[at : at + dice.randint(0, 3)] = dice.choice(alphabet)
            before = len(outside.audit.decisions)
            await outside.ask(bytes(data))
            assert len(outside.audit.decisions) > before or not data
            outside.audit._kept.clear()
        assert set(outside.asked) <= {GOOD}
        assert 0 < outside.audit.totals.allowed < 600
        assert b" 200 " in await outside.ask(REQUEST)
