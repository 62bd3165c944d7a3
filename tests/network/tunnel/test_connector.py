"""The connector alone, by its frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ohsandbox.network.tunnel.frames import ABORTED, FrameKind, frame

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_an_abort_that_crosses_with_the_connectors_close_ends_nothing(
    argv: list[str], serve: Callable[..., Any]
) -> None:
    """The host aborts what does not end in time; just then it may have ended."""

    async def hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    port = await serve(hold)
    connector = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert connector.stdin is not None
    assert connector.stdout is not None
    open_it, opened = frame(FrameKind.OPEN, 0, port), frame(FrameKind.OPENED, 0)
    assert await connector.stdout.readexactly(12) == frame(FrameKind.HELLO, 0, 1)
    connector.stdin.write(open_it)
    assert await connector.stdout.readexactly(12) == opened
    connector.stdin.write(frame(FrameKind.CLOSE, 0))
    assert await connector.stdout.readexactly(12) == frame(FrameKind.CLOSE, 0)
    connector.stdin.write(frame(FrameKind.CLOSE, 0, ABORTED) + open_it)
    assert await connector.stdout.readexactly(12) == opened
    connector.stdin.close()
    assert await connector.wait() == 0
