from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.network.tunnel import Tunnel
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

    _, heard = await asyncio.gather(send(), reader.read())
    writer.close()
    return heard


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
