"""The server name in a ClientHello: found however it is cut, and refused where two parsers could differ."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.network.proxy.client_hello import ClientHelloError, read_client_hello, server_name

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = "good.example.org"


def hello(name: str | None = GOOD) -> bytes:
    """The record of a ClientHello that OpenSSL makes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def message(record: bytes) -> bytes:
    return record[5:]


def records(data: bytes, size: int) -> bytes:
    """A handshake message in records of so many bytes."""
    cut = [data[start : start + size] for start in range(0, len(data), size)]
    return b"".join(b"\x16\x03\x01" + len(one).to_bytes(2) + one for one in cut)


def with_extensions(change: Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]]) -> bytes:
    """The message of a ClientHello whose extensions were changed, all lengths right."""
    body = message(hello())[4:]
    at = 34
    for width in (1, 2, 1):
        at += width + int.from_bytes(body[at : at + width])
    found, rest = [], body[at + 2 :]
    while rest:
        size = int.from_bytes(rest[2:4])
        found.append((int.from_bytes(rest[:2]), rest[4 : 4 + size]))
        rest = rest[4 + size :]
    made = b"".join(kind.to_bytes(2) + len(data).to_bytes(2) + data for kind, data in change(found))
    new = body[:at] + len(made).to_bytes(2) + made
    return b"\x01" + len(new).to_bytes(3) + new


def names(*entries: tuple[int, bytes]) -> bytes:
    made = b"".join(bytes([kind]) + len(name).to_bytes(2) + name for kind, name in entries)
    return len(made).to_bytes(2) + made


def named(extension: bytes) -> bytes:
    return with_extensions(lambda found: [(kind, extension if kind == 0 else data) for kind, data in found])


async def read(data: bytes) -> str:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return (await read_client_hello(reader)).server_name


async def test_name_is_read_and_no_byte_beyond_the_hello() -> None:
    reader = asyncio.StreamReader()
    made = hello()
    reader.feed_data(made + b"\x17rest")
    found = await read_client_hello(reader)
    assert (found.server_name, found.raw) == (GOOD, made)
    assert await reader.read(5) == b"\x17rest"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40, 200, 16384])
async def test_hello_may_be_cut_into_records_of_any_size(size: int) -> None:
    assert await read(records(message(hello()), size)) == GOOD


async def test_hello_may_come_byte_by_byte() -> None:
    reader = asyncio.StreamReader()
    task = asyncio.ensure_future(read_client_hello(reader))
    for byte in hello():
        reader.feed_data(bytes([byte]))
        await asyncio.sleep(0)
    assert (await task).server_name == GOOD


async def test_hello_without_a_name_has_none() -> None:
    assert await read(hello(None)) == ""
    assert server_name(with_extensions(lambda found: [one for one in found if one[0] != 0])) == ""


def test_grease_changes_nothing() -> None:
    assert server_name(with_extensions(lambda found: [(0x0A0A, b""), *found, (0xFAFA, b"\0")])) == GOOD


@pytest.mark.parametrize(
    "bad",
    [
        with_extensions(lambda found: [*found, (0, names((0, b"evil.example")))]),
        with_extensions(lambda found: [*found, (0x0A0A, b""), (0x0A0A, b"")]),
        with_extensions(lambda found: [*found, (0xFE0D, b"\0\0\1")]),
        with_extensions(lambda found: [*found, (0xFFCE, b"")]),
        named(names((0, GOOD.encode()), (0, b"evil.example"))),
        named(names((1, b"evil.example"), (0, GOOD.encode()))),
        named(names((0, b""))),
        named(names()),
        named(b""),
        named(names((0, GOOD.encode())) + b"\0"),
        named(names((0, "göod.example.org".encode()))),
        message(hello()) + b"\0",
        message(hello())[:-1],
    ],
    ids=range(13),
)
def test_what_could_be_read_in_two_ways_is_refused(bad: bytes) -> None:
    with pytest.raises(ClientHelloError):
        server_name(bad)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x2e\x01\x03\x01" + b"\0" * 40,  # the hello of SSL 2
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01" + b"\0" * 0x4001,
        b"\x16\x02\x01\x00\x04\x01\0\0\0",
        b"\x16\x03\x01\x00\x04\x02\0\0\0",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        records(b"\x01\x00\x7f\xff" + b"\0" * 0x7FFF, 1),
        records(message(hello())[:50], 50) + b"\x14\x03\x01\x00\x01\x01",
    ],
    ids=range(10),  # a hello is random, and the name of a test is not
)
async def test_what_is_no_hello_is_refused_as_soon_as_it_shows(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)  # and no end: the refusal does not wait for it
    with pytest.raises(ClientHelloError):
        await asyncio.wait_for(read_client_hello(reader), 5)


@pytest.mark.slow
@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_nothing_but_its_own_error_comes_of_any_bytes(data: bytes) -> None:
    try:
        found = server_name(b"\x01" + len(data).to_bytes(3) + data)
    except ClientHelloError:
        return
    assert found.isascii()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_changed_byte_never_makes_another_name_of_a_server_that_it_is_not_in(data: st.DataObject) -> None:
    """What OpenSSL reads as the name is what we read, whatever byte was changed."""
    made = bytearray(message(HELLO))
    at = data.draw(st.integers(4, len(made) - 1))
    made[at] = data.draw(st.integers(0, 255))
    try:
        ours = server_name(bytes(made))
    except ClientHelloError:
        return
    assert _openssl_reads(records(bytes(made), 16384)) in {ours, None}


HELLO = hello()


def _openssl_reads(data: bytes) -> str | None:
    """The name that OpenSSL's server finds, in lower case; "" for none, None where it refuses the hello."""
    seen: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def on_name(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        seen.append((name or "").lower())

    context.sni_callback = on_name
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(data)
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    with contextlib.suppress(ssl.SSLError, ValueError):
        server.do_handshake()
    return seen[0] if seen else None
