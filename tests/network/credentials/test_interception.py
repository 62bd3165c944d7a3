"""Requests of a sandbox to the host of a credential: what arrives there, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import ssl

import pytest

from tests.network.credentials.tls_host import HOST, KEY, Inside, TlsHost, frame, get, inside, read_answer, whole


async def test_a_request_arrives_with_the_key_and_without_the_placeholder() -> None:
    async with inside() as (sandbox, host):
        answer = await sandbox.ask(get("/v1/models?a=b", "authorization: Bearer ohsandbox-placeholder"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"ok")
    assert (host.seen[0].method, host.seen[0].target) == ("GET", "/v1/models?a=b")
    assert host.seen[0].all("authorization") == [f"Bearer {KEY}"]
    assert host.seen[0].all("host") == [HOST]


@pytest.mark.parametrize(
    ("form", "header", "value"),
    [
        ("bearer", "authorization", f"Bearer {KEY}"),
        ("header:X-Api-Key", "x-api-key", KEY),
        ("basic:me", "authorization", "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode()),
    ],
)
async def test_each_form_of_a_credential_replaces_all_that_the_sandbox_sends_as_one(
    form: str, header: str, value: str
) -> None:
    own = ["Authorization: x", "AUTHORIZATION: y", "X-Api-Key: z", "X_Api_Key: z", "api-key: z", "Private-Token: z"]
    async with inside(None, f"{HOST}=env:TOKEN,{form}") as (sandbox, host):
        await sandbox.ask(get("/", *own, "X-Other: stays"))
    names = {"authorization", "x-api-key", "x_api_key", "api-key", "private-token"}
    assert [pair for pair in host.seen[0].headers if pair[0] in names] == [(header, value)]
    assert host.seen[0].all("x-other") == ["stays"]


async def test_the_credential_of_the_longest_path_is_used() -> None:
    async with TlsHost("gitlab.com") as host, Inside(host, "gitlab=env:TOKEN") as sandbox:
        await sandbox.ask(get("/owner/repo.git/info/refs", host="gitlab.com"))
        await sandbox.ask(get("/api/v4/user", host="gitlab.com"))
    sent = [one.all("authorization")[0].partition(" ")[0] for one in host.seen]
    assert sent == ["Basic", "Bearer"]


async def test_one_connection_serves_many_requests_over_one_upstream() -> None:
    async with inside() as (sandbox, host):
        reader, writer = await sandbox.connect()
        for number in range(5):
            writer.write(get(f"/{number}").encode())
            assert (await read_answer(reader)).endswith(b"ok")
    assert [one.target for one in host.seen] == ["/0", "/1", "/2", "/3", "/4"]
    assert [one.all("authorization") for one in host.seen] == [[f"Bearer {KEY}"]] * 5
    assert host.connections == 1


async def test_requests_that_are_sent_at_once_are_answered_in_turn() -> None:
    async with inside(lambda seen: whole(seen.target.encode())) as (sandbox, host):
        reader, writer = await sandbox.connect()
        writer.write("".join(get(f"/{number}") for number in range(4)).encode())
        answers = [await read_answer(reader) for _ in range(4)]
    assert [answer[-2:] for answer in answers] == [b"/0", b"/1", b"/2", b"/3"]
    assert all(one.all("authorization") == [f"Bearer {KEY}"] for one in host.seen)


async def test_an_upstream_that_closed_meanwhile_is_connected_again() -> None:
    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"ok"))
        await writer.drain()

    async with inside(serve=serve_one) as (sandbox, host):
        reader, writer = await sandbox.connect()
        for _ in range(3):
            writer.write(get().encode())
            assert (await read_answer(reader)).endswith(b"ok")
            await asyncio.wait_for(sandbox.upstream[-1].wait_closed(), 10)
    assert host.connections == 3


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_body_arrives_whole_however_it_is_framed(framing: str) -> None:
    body = bytes(range(256)) * 4096
    async with inside(lambda seen: whole(seen.body)) as (sandbox, host):
        if framing == "chunked":
            pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
            sent = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\nx-sum: 7\r\n\r\n"
            request = get("/", "transfer-encoding: chunked", method="POST").encode() + sent
        else:
            request = get("/", f"content-length: {len(body)}", method="POST").encode() + body
        answer = await sandbox.ask(request)
    assert host.seen[0].body == body
    assert answer.endswith(body)
    assert host.seen[0].trailers == ([("x-sum", "7")] if framing == "chunked" else [])


async def test_trailers_carry_no_credential_of_the_sandboxs() -> None:
    async with inside() as (sandbox, host):
        chunks = "0\r\nauthorization: Bearer mine\r\nx-api-key: mine\r\nx-sum: 7\r\n\r\n"
        await sandbox.ask(get("/", "transfer-encoding: chunked", method="POST") + chunks)
    assert host.seen[0].trailers == [("x-sum", "7")]


async def test_events_arrive_one_by_one() -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(3):
            event = b"data: {'s': %d}\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await go_on.wait()
            go_on.clear()
        writer.write(b"0\r\n\r\n")

    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        writer.write(get().encode())
        for number in range(3):  # the next event is sent only after this one has come
            await asyncio.wait_for(reader.readuntil(b"data: {'s': %d}\n\n" % number), 10)
            go_on.set()
        assert (await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)).strip() == b"0"


async def test_a_client_that_expects_100_hears_it_before_it_sends_its_body() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"expect: 100-continue" in (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(whole(await reader.readexactly(4)))

    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        writer.write(get("/", "expect: 100-continue", "content-length: 4", method="PUT").encode())
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 100")
        writer.write(b"body")
        assert (await read_answer(reader)).endswith(b"body")


async def test_an_answer_before_the_body_is_over_ends_the_request() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole(b"too large", "413 Content Too Large", "connection: close\r\n"))
        await writer.drain()

    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        writer.write(get("/", "content-length: 1000000", method="POST").encode() + bytes(100_000))
        assert b"413" in (await read_answer(reader)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", "200 OK"), ("GET", "204 No Content"), ("GET", "304 Not Modified")]
)
async def test_answers_without_a_body_do_not_end_the_connection(method: str, status: str) -> None:
    length = "" if status.startswith("204") else "content-length: 1234\r\n"
    async with inside(lambda _: f"HTTP/1.1 {status}\r\n{length}\r\n".encode()) as (sandbox, _):
        reader, writer = await sandbox.connect()
        for _ in range(2):
            writer.write(get(method=method).encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(f"HTTP/1.1 {status}".encode())
            assert (b"content-length: 1234" in head.lower()) == bool(length)


async def test_a_websocket_passes_in_both_directions() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b"upgrade: websocket" in head
        assert b"authorization: bearer" in head
        assert b"extensions" not in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        writer.write(frame(b"hello"))
        while data := await reader.read(100):
            writer.write(frame(data.upper()))

    async with inside(serve=serve) as (sandbox, _):
        reader, writer = await sandbox.connect()
        asks = ["connection: Upgrade", "upgrade: websocket", "sec-websocket-extensions: permessage-deflate"]
        writer.write(get("/", *asks).encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 101")
        assert b"upgrade: websocket" in head.lower()
        assert await asyncio.wait_for(reader.readexactly(7), 10) == frame(b"hello")
        writer.write(b"frame")
        assert await asyncio.wait_for(reader.readexactly(7), 10) == frame(b"FRAME")


async def test_http_1_0_is_served_and_ends_with_its_answer() -> None:
    async with inside(lambda _: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n") as (
        sandbox,
        host,
    ):
        answer = await sandbox.ask(get(version="1.0"))
    assert answer.endswith(b"\r\n\r\nok")
    assert host.seen[0].all("authorization") == [f"Bearer {KEY}"]


async def test_a_host_whose_certificate_the_person_does_not_trust_is_never_sent_the_key() -> None:
    async with TlsHost() as host, Inside(host, trust=ssl.create_default_context()) as sandbox:
        answer = await sandbox.ask(get())
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"certificate of api.example.org is not trusted" in answer
    assert host.seen == []


async def test_a_host_that_is_down_is_told_as_502() -> None:
    async with inside() as (sandbox, host):
        await host.__aexit__()
        answer = await sandbox.ask(get())
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"ohsandbox: no connection to api.example.org" in answer


async def test_a_host_that_breaks_off_before_its_answer_is_told_as_502() -> None:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with inside(serve=serve) as (sandbox, _):
        answer = await sandbox.ask(get())
    assert answer.startswith(b"HTTP/1.1 502")
    assert [task.exception() for task in sandbox.served] == [None]
    assert [status for status, _ in sandbox.refused] == [502]


async def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel")

    async with inside(serve=serve) as (sandbox, _):
        answer = await sandbox.ask(get())
    assert b"hel" in answer
    assert not answer.endswith(b"0\r\n\r\n")


async def test_a_client_that_goes_away_ends_the_request_at_the_host() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        began.set()
        await reader.read()
        ended.set()

    async with inside(serve=serve) as (sandbox, _):
        _, writer = await sandbox.connect()
        writer.write(get().encode())
        await writer.drain()
        await asyncio.wait_for(began.wait(), 10)
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)
