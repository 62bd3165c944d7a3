"""A sandbox that guesses a credential by what arrives of answers whose text it chose: how long, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ohsandbox.network.credentials.tls_stream import TlsStream
from tests.network.credentials.tls_host import HOST, KEY, Inside, get, inside

if TYPE_CHECKING:
    from collections.abc import Callable

CANDIDATES = "0123abcd"
KNOWN = KEY.removesuffix("0123456789abcdefghij")
STEPS = 4
END = b"\nend"


class Tap:
    """A stream's reader that keeps what was read."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.raw = b""

    async def read(self, size: int) -> bytes:
        data = await self._reader.read(size)
        self.raw += data
        return data


async def record_lengths(sandbox: Inside, path: str) -> list[int]:
    """The lengths of the TLS records of an answer, as anyone sees them on the wire."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    tap = Tap(reader)
    stream = TlsStream(tap, writer, sandbox.context(), server_hostname=HOST)  # type: ignore[arg-type]
    await stream.handshake()
    await stream.write(get(path, "connection: close").encode())
    tap.raw = b""  # all of the server's handshake has been read but its session tickets
    data = b""
    while not data.endswith(END):
        data += await stream.read()
    writer.close()
    lengths, at = [], 0
    while at < len(tap.raw):
        lengths.append(int.from_bytes(tap.raw[at + 3 : at + 5]))
        at += 5 + lengths[-1]
    return lengths


async def chunk_lengths(sandbox: Inside, path: str, on_data: Callable[[], None] = lambda: None) -> list[int]:
    """The lengths of the chunks of an answer."""
    reader, writer = await sandbox.connect()
    writer.write(get(path).encode())
    await reader.readuntil(b"\r\n\r\n")
    lengths = []
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
        lengths.append(size)
        on_data()
    writer.close()
    return lengths


async def test_the_record_lengths_of_a_stored_file_are_the_same_whatever_the_file_guesses() -> None:
    files: dict[str, list[bytes]] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        pieces = files[target]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % sum(map(len, pieces)))
        for piece in pieces:
            writer.write(piece)  # each is a record of its own
            await writer.drain()

    async def lengths(guesses: list[str]) -> list[int]:
        files["/file"] = [*(guess.encode().rjust(200, b".") for guess in guesses), END]
        return await record_lengths(sandbox, "/file")

    async with inside(serve=serve) as (sandbox, _):
        learnt = KNOWN
        for _ in range(STEPS):
            wrong = await lengths([f"{learnt}!" for _ in CANDIDATES])
            seen = await lengths([f"{learnt}{one}" for one in CANDIDATES])
            shorter = [at for at, (one, usual) in enumerate(zip(seen, wrong, strict=True)) if one < usual - len(learnt)]
            learnt += "".join(CANDIDATES[at - len(seen) + len(CANDIDATES) + 1] for at in shorter[:1])
    assert (learnt, seen) == (KNOWN, wrong)


async def test_what_arrives_before_a_host_goes_on_is_the_same_whether_a_guess_is_right() -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guess = (await reader.readuntil(b"\r\n\r\n")).split()[1].removeprefix(b"/")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for text in (b"guess:\n" + guess, b" no\n"):
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            await go_on.wait()
        writer.write(b"0\r\n\r\n")

    async def arrivals(guess: str) -> list[int]:
        go_on.clear()
        return await chunk_lengths(sandbox, f"/{guess}", go_on.set)

    async with inside(serve=serve) as (sandbox, _):
        learnt = KNOWN
        for _ in range(STEPS):
            wrong = await arrivals(f"{learnt}!")
            right = [one for one in CANDIDATES if (await arrivals(learnt + one))[0] < wrong[0] - len(learnt)]
            learnt += "".join(right[:1])
    assert learnt == KNOWN
