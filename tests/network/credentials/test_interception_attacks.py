"""A hostile sandbox on the connection to a credential's host, and a host that gives the credential back."""

from __future__ import annotations

import asyncio
import base64
import random
import socket
import ssl
import tracemalloc
from urllib.parse import quote

import pytest

from tests.aio import counted_turns
from tests.network.credentials.tls_host import HOST, KEY, Inside, TlsHost, frame, get, inside, read_answer, whole


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (get(host="other.example.org"), 421),
        (get(host=f"{HOST}.evil.example"), 421),
        (get(host=f"{HOST}:444"), 421),
        (get(host=f"{HOST}@evil.example"), 421),
        (get("/", "host: other.example.org"), 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 421),
        (get(f"https://{HOST}/"), 400),
        (get("https://other.example.org/"), 400),
        (get("other.example.org:443", method="CONNECT"), 405),
        (get(method="TRACE"), 405),
        (get(method="TRACK"), 405),
        (get("/", "content-length: 4", "transfer-encoding: chunked", method="POST") + "0\r\n\r\n", 400),
        (get("/", "content-length: 4", "content-length: 5", method="POST") + "12345", 400),
        (get("/", "content-length: +4", method="POST") + "1234", 400),
        (get("/", "transfer-encoding: xchunked", method="POST"), 501),
        (get("/", "transfer-encoding: chunked", "transfer-encoding: identity", method="POST"), 501),
        (get("/", "transfer-encoding : chunked", method="POST"), 400),
        (get("/", "x: a\rb"), 400),
        (get("/", "x: a\0b"), 400),
        (get("/ HTTP/1.1\r\nhost: evil\r\nx:"), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (get("/", "x: " + "a" * 200_000), 431),
        ("\x16\x03\x01 no http at all\r\n\r\n", 400),
    ],
)
async def test_what_is_no_request_for_this_host_never_arrives_there(request_text: str, status: int) -> None:
    async with inside() as (sandbox, host):
        answer = await sandbox.ask(request_text)
    assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer
    assert host.seen == []
    assert KEY.encode() not in answer
    assert [told for told, _ in sandbox.refused] == [status]


async def test_the_second_request_of_a_connection_is_checked_as_the_first() -> None:
    async with inside() as (sandbox, host):
        reader, writer = await sandbox.connect()
        writer.write((get() + get(host="other.example.org")).encode())
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
        assert (await read_answer(reader)).startswith(b"HTTP/1.1 421")
    assert len(host.seen) == 1


async def test_a_request_in_the_body_of_another_one_stays_its_body() -> None:
    hidden = get("/hidden", host="other.example.org").encode()
    async with inside() as (sandbox, host):
        await sandbox.ask(get("/", f"content-length: {len(hidden)}", method="POST").encode() + hidden)
    assert [(one.target, one.body) for one in host.seen] == [("/", hidden)]


async def test_headers_of_the_connection_and_what_they_name_stay_behind_but_never_the_length_or_ours() -> None:
    sent = [
        "connection: x-secret, host, content-length, authorization, keep-alive", "x-secret: 1", "keep-alive: 5",
        "proxy-authorization: Basic eDp5", "proxy-connection: close", "te: trailers", "upgrade: h2c",
        "content-length: 2",
    ]  # fmt: skip
    async with inside() as (sandbox, host):
        await sandbox.ask(get("/", *sent, method="POST") + "ok")
    names = {name for name, _ in host.seen[0].headers}
    assert names == {"host", "content-length", "accept-encoding", "authorization"}
    assert host.seen[0].body == b"ok"
    assert host.seen[0].all("authorization") == [f"Bearer {KEY}"]


@pytest.mark.parametrize("name", ["other.example.org", "api.example.org.evil.example", "example.org"])
async def test_a_tls_name_that_is_not_the_hosts_is_refused(name: str) -> None:
    async with inside() as (sandbox, host):
        with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
            await sandbox.connect(sni=name)
    assert host.connections == 0


def _shake_hands(port: int) -> None:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        ssl.create_default_context().wrap_socket(plain, server_hostname=HOST),
    ):
        pass


async def test_a_client_that_does_not_trust_the_authority_is_told_of() -> None:
    async with inside() as (sandbox, host):
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(_shake_hands, sandbox.port)
        await asyncio.gather(*sandbox.served)
    assert host.connections == 0
    assert "unknown ca" in sandbox.refused[0][1]


async def test_a_client_that_sends_no_tls_name_is_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with inside() as (sandbox, host):
        with pytest.raises(ssl.SSLError):
            await sandbox.connect(sni="127.0.0.1", context=context)
    assert host.connections == 0


async def test_what_is_no_tls_ends_the_connection() -> None:
    async with inside() as (sandbox, host):
        assert sandbox._server is not None
        port = sandbox._server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get().encode())
        ended = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert KEY.encode() not in ended
    assert host.connections == 0


async def test_http_2_is_never_agreed_on() -> None:
    async with inside() as (sandbox, _):
        context = sandbox.context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await sandbox.connect(context=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_requests_of_any_bytes_arrive_as_requests_for_this_host_or_not_at_all(seed: int) -> None:
    chance = random.Random(seed)
    async with inside() as (sandbox, host):
        for _ in range(40):
            reader, writer = await sandbox.connect()
            writer.write(_mutated(chance) + b"z\r\n\r\n" * 1000)  # the end of whatever it waits for
            async with asyncio.timeout(30):
                assert await reader.read(1)
            writer.close()
        async with asyncio.timeout(30):
            ended = await asyncio.gather(*sandbox.served, return_exceptions=True)
    assert [one for one in ended if one is not None] == []
    assert host.seen
    for seen in host.seen:
        assert seen.all("host") in ([HOST], [f"{HOST}:443"])
        assert seen.all("authorization") == [f"Bearer {KEY}"]
        assert seen.target.startswith("/") or seen.method == "OPTIONS"


def _mutated(chance: random.Random) -> bytes:
    """Two requests in a row, some bytes of which are cut, doubled, or have others between them."""
    first = get("/", "authorization: Bearer mine", "content-length: 5", method="POST") + "hello"
    data = bytearray((first + get("/2", "connection: keep-alive, authorization")).encode())
    odd = [
        b"\r",
        b"\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"\r\n\r\n",
        b"\r\nHost: x",
        b"\r\nTransfer-Encoding: chunked",
        b"\xff",
    ]
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                del data[at : at + chance.randrange(1, 6)]
            case 1:
                data[at:at] = chance.choice(odd)
            case _:
                data[at:at] = data[chance.randrange(len(data)) :][:20]
    return bytes(data)


async def test_a_redirect_is_passed_on_and_not_followed() -> None:
    there = whole(b"", "307 Temporary Redirect", "location: https://other.example.org/\r\n")
    async with inside(lambda _: there) as (sandbox, host):
        answer = await sandbox.ask(get())
    assert b"location: https://other.example.org/" in answer.lower()
    assert len(host.seen) == 1


FORMS = {
    "plain": KEY,
    "json": f'{{"authorization": "Bearer {KEY}"}}',
    "base64": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "hex": KEY.encode().hex(),
    "url": quote(KEY, safe=""),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["body", "header", "reason"])
async def test_an_echo_of_the_key_is_masked_with_its_length_kept(form: str, where: str) -> None:
    echo = FORMS[form]
    answers = {
        "body": whole(f"before {echo} after".encode()),
        "header": whole(b"ok", headers=f"x-echo: {echo}\r\n"),
        "reason": whole(b"ok", f"200 {echo}"),
    }
    async with inside(lambda _: answers[where]) as (sandbox, _):
        answer = await sandbox.ask(get())
    assert KEY.encode() not in answer
    assert echo.encode() not in answer
    assert b"*" * 20 in answer
    assert where != "body" or (b"before " in answer and answer.endswith(b" after"))


async def test_a_body_of_many_chunks_holds_up_nobody() -> None:
    async with inside() as (sandbox, host), counted_turns() as turns:
        chunked = get("/", "transfer-encoding: chunked", method="POST")
        assert (await sandbox.ask(chunked + "1\r\na\r\n" * 5000 + "0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert host.seen[0].body == b"a" * 5000
    assert len(turns) > 5000


async def test_an_echo_that_comes_byte_by_byte_is_masked() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = f"<{KEY}> sk-real-0 <{KEY}>".encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text))
        for one in text:
            writer.write(bytes([one]))
            await writer.drain()

    async with inside(serve=serve) as (sandbox, _):
        answer = await sandbox.ask(get())
    stars = b"*" * len(KEY)
    assert answer.endswith(b"<%s> sk-real-0 <%s>" % (stars, stars))


async def test_an_echo_by_websocket_is_masked_and_a_message_waits_for_no_other() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        while await reader.read(1):
            writer.write(frame(f"key {KEY}".encode()))
            for piece in (frame(KEY[:5].encode(), final=False), frame(b"ping", 9), frame(KEY[5:].encode() + b".", 0)):
                writer.write(piece)

    stars = b"*" * len(KEY)
    expected = frame(b"key " + stars) + frame(stars[:5], final=False) + frame(b"ping", 9) + frame(stars[5:] + b".", 0)
    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        writer.write(get("/", "connection: Upgrade", "upgrade: websocket").encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        for _ in range(3):  # the host says no more until it is asked again
            writer.write(b"?")
            assert await asyncio.wait_for(reader.readexactly(len(expected)), 10) == expected


async def test_the_host_is_asked_for_nothing_compressed() -> None:
    async with inside() as (sandbox, host):
        await sandbox.ask(get("/", "accept-encoding: gzip, br"))
    assert host.seen[0].all("accept-encoding") == ["identity"]


@pytest.mark.slow
async def test_a_body_of_any_size_is_never_in_memory_as_a_whole() -> None:
    size, piece = 64 << 20, bytes(64 << 10)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(size // len(piece)):
            await reader.readexactly(len(piece))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()

    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        tracemalloc.start()
        writer.write(get("/", f"content-length: {size}", method="POST").encode())
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(size // len(piece)):
            await reader.readexactly(len(piece))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


async def test_a_reader_that_stops_holds_up_the_host_and_no_memory() -> None:
    sent = 0
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            try:
                async with asyncio.timeout(1.0):
                    await writer.drain()
            except TimeoutError:
                stuck.set()
                return

    async with inside(serve=serve) as (sandbox, _):
        _, writer = await sandbox.connect()
        writer.write(get().encode())
        await asyncio.wait_for(stuck.wait(), 30)
    assert sent < 64 << 20


async def test_neither_repr_nor_errors_show_the_key() -> None:
    async with TlsHost() as host, Inside(host) as sandbox:
        shown = repr(sandbox.broker) + repr(sandbox.broker.interceptor) + repr(vars(sandbox.broker.interceptor))
    assert KEY not in shown
    assert HOST in shown  # what is shown shows something
