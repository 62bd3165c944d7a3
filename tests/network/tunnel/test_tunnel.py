from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.network.tunnel.tunnel import Tunnel
    from ohsandbox.runtime import Channel

BIG = bytes(range(256)) * 8192  # 2 MiB: several windows


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """Send data and the end, and read to the end, at the same time."""

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    try:
        return (await asyncio.gather(send(), reader.read()))[1]
    finally:
        writer.close()


async def test_bytes_pass_both_ways_to_a_port_of_the_sandbox(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    port = await serve(echo)
    assert await exchange(*await tunnel.connect(port), BIG) == BIG


async def test_a_server_on_ipv6_alone_is_reached(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    port = await serve(echo, "::1")
    assert await exchange(*await tunnel.connect(port), b"six") == b"six"


async def test_a_port_where_nothing_listens_refuses(tunnel: Tunnel) -> None:
    with pytest.raises(ConnectionRefusedError, match="Nothing answers at port"):
        await tunnel.connect(free_port())


async def test_connections_from_inside_are_served(tunnel: Tunnel) -> None:
    port = free_port()
    await tunnel.listen(port, echo)
    assert await exchange(*await asyncio.open_connection("127.0.0.1", port), BIG) == BIG


async def test_a_port_that_is_taken_inside_is_an_error(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    port = await serve(echo)
    with pytest.raises(OSError, match="cannot listen"):
        await tunnel.listen(port, echo)


async def test_a_port_is_listened_on_again_after_the_connector_was_killed(
    tunnel: Tunnel, opened: list[Channel]
) -> None:
    port, begun = free_port(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await echo(reader, writer)

    await tunnel.listen(port, handler)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await begun.wait()
    opened[-1].kill()
    with contextlib.suppress(ConnectionResetError):  # the kernel closes it
        assert await reader.read() == b""
    writer.close()
    heard = b""
    while not heard:
        with contextlib.suppress(ConnectionError):  # it takes a moment
            heard = await exchange(*await asyncio.open_connection("127.0.0.1", port), b"again")
    assert heard == b"again"
    assert len(opened) == 2


async def test_a_number_serves_one_connection_after_another(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    """The host may open a number again in the frame after the one that closes it."""
    port = await serve(echo)
    for _ in range(200):
        assert await exchange(*await tunnel.connect(port), b"once") == b"once"


async def test_256_connections_are_open_at_once_and_no_more(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    port = await serve(echo)
    opened = [await tunnel.connect(port) for _ in range(256)]
    with pytest.raises(OSError, match="256 connections"):
        await tunnel.connect(port)
    answers = await asyncio.gather(*(exchange(*streams, b"%d" % n * 1000) for n, streams in enumerate(opened)))
    assert answers == [b"%d" % n * 1000 for n in range(256)]
    assert await exchange(*await tunnel.connect(port), b"free again") == b"free again"


async def test_a_reader_that_takes_nothing_holds_up_no_other(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    held = asyncio.Event()

    async def pours(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not held.is_set():
            writer.write(BIG)
            await writer.drain()

    pouring, echoing = await serve(pours), await serve(echo)
    slow = [await tunnel.connect(pouring) for _ in range(5)]
    assert await exchange(*await tunnel.connect(echoing), BIG) == BIG
    held.set()
    for _, writer in slow:
        writer.close()


async def test_a_server_that_takes_nothing_holds_up_no_other(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    over = asyncio.Event()

    async def takes_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    _, stuck = await tunnel.connect(await serve(takes_nothing))
    for _ in range(20):
        stuck.write(BIG)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stuck.drain(), 0.1)
    assert await exchange(*await tunnel.connect(await serve(echo)), BIG) == BIG
    stuck.transport.abort()
    over.set()


async def test_the_end_of_one_direction_leaves_the_other_open(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    async def answers_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = len(await reader.read())
        writer.write(b"%d" % count)
        writer.close()

    reader, writer = await tunnel.connect(await serve(answers_after_the_end))
    writer.write(BIG)
    writer.write_eof()
    assert await reader.read() == b"%d" % len(BIG)
    writer.close()


async def test_a_connection_that_is_reset_inside_is_reset_here(tunnel: Tunnel, serve: Callable[..., Any]) -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    reader, writer = await tunnel.connect(await serve(resets))
    writer.write(b"!")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
