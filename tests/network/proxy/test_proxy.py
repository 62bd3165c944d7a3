"""The proxy from a sandbox's side: what passes, what is refused, and that each refusal is recorded."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.network.proxy.world import PUBLIC, client_context, echo, echo_http, world

GOOD = "good.example.org"


def get(url: str, host: str = GOOD, *more: str, method: str = "GET") -> bytes:
    lines = [f"{method} {url} HTTP/1.1", f"Host: {host}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def test_plain_request_to_an_allowed_host_is_forwarded_to_its_vetted_address() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        answer = await outside.ask(get(f"http://{GOOD}/a?b=1", GOOD, "X-Mine: 1", "Proxy-Connection: keep-alive"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.lower().endswith(b"get /a?b=1 http/1.1\r\nhost: good.example.org\r\nx-mine: 1\r\n\r\n")
        assert outside.dialed == [(PUBLIC, 80)]
        (decision,) = outside.audit.decisions
        assert (decision.host, decision.port, decision.protocol, decision.method) == (GOOD, 80, "http", "GET")
        assert decision.allowed
        assert decision.rule == GOOD


async def test_answer_to_head_and_one_without_a_body_are_whole() -> None:
    async def origin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")

    async with world(GOOD, servers={80: origin}) as outside:
        answer = await outside.ask(get(f"http://{GOOD}/", method="HEAD") + get(f"http://{GOOD}/"))
        assert answer.lower().count(b"http/1.1 ") == 2
        assert b"content-length: 700" in answer.lower()
        assert answer.endswith(b"\r\n\r\n")


async def test_continue_is_said_before_a_body_that_waits_for_it() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        reader, writer = await outside.client()
        writer.write(get(f"http://{GOOD}/", GOOD, "Expect: 100-continue", "Content-Length: 2", method="POST"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"ok")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_bytes_of_a_request_are_counted() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        await outside.ask(get(f"http://{GOOD}/", GOOD, "Content-Length: 1000", method="POST") + b"x" * 1000)
        (decision,) = outside.audit.decisions
        assert decision.sent_bytes > 1000
        assert decision.received_bytes > decision.sent_bytes
        assert outside.audit.totals.sent_bytes == decision.sent_bytes


async def test_host_that_no_rule_allows_is_refused_with_words_for_a_model_and_nothing_is_resolved() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        answer = await outside.ask(get("http://evil.example/", "evil.example"))
        assert answer.startswith(
            b"HTTP/1.1 403 Blocked by the sandbox: evil.example is not on the list of allowed hosts"
        )
        assert b"/net allow evil.example" in answer
        assert b"gives the same answer" in answer
        assert (outside.asked, outside.dialed) == ([], [])
        (decision,) = outside.refusals
        assert decision.host == "evil.example"


async def test_tunnel_carries_tls_to_the_host_that_it_names() -> None:
    async with world(GOOD, servers={443: echo}, tls=[443]) as outside:
        head, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        assert head.startswith(b"HTTP/1.1 200 ")
        await writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        writer.write(b"hello" * 50_000)
        assert await reader.readexactly(250_000) == b"hello" * 50_000
        writer.close()
        (decision,) = outside.audit.decisions
        assert (decision.protocol, decision.method, decision.allowed) == ("https", "CONNECT", True)


async def test_tls_that_names_another_server_is_refused_with_an_alert() -> None:
    async with world(GOOD, "other.example.org", servers={443: echo}, tls=[443]) as outside:
        _, (_, writer) = await outside.tunnel(f"{GOOD}:443")
        with pytest.raises(OSError, match=r"(?i)access.denied"):
            await writer.start_tls(client_context(GOOD), server_hostname="other.example.org")
        writer.close()
        (decision,) = outside.audit.decisions
        assert not decision.allowed
        assert "other.example.org" in decision.reason


async def test_tunnel_to_port_80_is_plain_http_of_that_host_alone() -> None:
    async with world(GOOD, "other.example.org", servers={80: echo_http}) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:80")
        writer.write(get("/in", GOOD))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(get("/in", "other.example.org"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_name_that_leads_inside_later_is_not_followed_there() -> None:
    async with world(GOOD, servers={80: echo_http}) as outside:
        outside.names[GOOD] = [[PUBLIC], ["127.0.0.1"]]
        assert b" 200 " in await outside.ask(get(f"http://{GOOD}/"))
        answer = await outside.ask(get(f"http://{GOOD}/"))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"loopback" in answer
        assert outside.dialed == [(PUBLIC, 80)]


async def test_tunnel_that_is_left_before_its_first_message_is_recorded() -> None:
    async with world(GOOD, servers={443: echo}) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        writer.write(b"\x16\x03\x01")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        (decision,) = outside.audit.decisions
        assert (decision.allowed, decision.host, decision.sent_bytes) == (True, GOOD, 0)
        assert outside.dialed == [(PUBLIC, 443)]


async def test_private_rule_that_is_taken_back_ends_its_connection_though_the_host_stays_allowed() -> None:
    async with world(f"private:{GOOD}", GOOD, servers={443: echo}, tls=[443]) as outside:
        outside.names[GOOD] = [["10.0.0.9"]]
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        await writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        outside.policy.disallow(f"private:{GOOD}")
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert "not allowed any more" in (await outside.refused())[0].reason


async def test_rule_that_is_taken_back_ends_the_connection_that_it_allowed() -> None:
    async with world(GOOD, servers={443: echo}, tls=[443]) as outside:
        _, (reader, writer) = await outside.tunnel(f"{GOOD}:443")
        await writer.start_tls(client_context(GOOD), server_hostname=GOOD)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        outside.policy.disallow(GOOD)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert "not allowed any more" in (await outside.refused())[0].reason
