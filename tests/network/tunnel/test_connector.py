"""The connector alone, by its frames."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.network.tunnel.frames import ABORTED, PIECE_BYTES, FrameKind, data_header, frame

if TYPE_CHECKING:
    from collections.abc import Callable


async def _started(
    argv: list[str],
) -> tuple[asyncio.subprocess.Process, asyncio.StreamWriter, asyncio.StreamReader]:
    """A connector that has said its first frame."""
    connector = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert connector.stdin is not None
    assert connector.stdout is not None
    assert await connector.stdout.readexactly(12) == frame(FrameKind.HELLO, 0, 1)
    return connector, connector.stdin, connector.stdout


def _sleeps(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


async def test_an_abort_that_crosses_with_the_connectors_close_ends_nothing(
    argv: list[str], serve: Callable[..., Any]
) -> None:
    """The host aborts what does not end in time; just then it may have ended."""

    async def hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    port = await serve(hold)
    connector, stdin, stdout = await _started(argv)
    open_it, opened = frame(FrameKind.OPEN, 0, port), frame(FrameKind.OPENED, 0)
    stdin.write(open_it)
    assert await stdout.readexactly(12) == opened
    stdin.write(frame(FrameKind.CLOSE, 0))
    assert await stdout.readexactly(12) == frame(FrameKind.CLOSE, 0)
    stdin.write(frame(FrameKind.CLOSE, 0, ABORTED) + open_it)
    assert await stdout.readexactly(12) == opened
    stdin.close()
    assert await connector.wait() == 0


async def test_an_answer_before_a_reset_arrives(argv: list[str]) -> None:
    """A server that has seen enough answers, and closes with bytes unread: the next write fails."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        connector, stdin, stdout = await _started(argv)
        stdin.write(frame(FrameKind.OPEN, 0, server.getsockname()[1]))
        assert await stdout.readexactly(12) == frame(FrameKind.OPENED, 0)
        accepted = server.accept()[0]
        connector.send_signal(signal.SIGSTOP)  # the answer and the reset come while nobody looks
        stdin.write(data_header(0, PIECE_BYTES) + bytes(PIECE_BYTES))
        accepted.sendall(b"enough")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        connector.send_signal(signal.SIGCONT)
    assert await stdout.readexactly(14) == data_header(0, 6) + b"enough"
    assert await stdout.readexactly(24) == frame(FrameKind.END, 0) + frame(FrameKind.CLOSE, 0, errno.ECONNRESET)
    stdin.close()
    assert await connector.wait() == 0


async def test_without_descriptors_it_waits_until_there_is_one(argv: list[str]) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    connector, stdin, stdout = await _started(argv)
    stdin.write(frame(FrameKind.LISTEN, 0, port))
    assert await stdout.readexactly(12) == frame(FrameKind.LISTENING, port, 0)
    most = len(os.listdir(f"/proc/{connector.pid}/fd"))  # noqa: PTH208
    resource.prlimit(connector.pid, resource.RLIMIT_NOFILE, (most, 64))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    slept = _sleeps(connector.pid)
    async with asyncio.timeout(20):  # one that asks without end never sleeps
        while _sleeps(connector.pid) < slept + 3:  # noqa: ASYNC110 - nobody tells of these
            await asyncio.sleep(0.01)
    resource.prlimit(connector.pid, resource.RLIMIT_NOFILE, (64, 64))
    assert await stdout.readexactly(12) == frame(FrameKind.ACCEPTED, 256, port)
    writer.close()
    stdin.close()
    assert await connector.wait() == 0
