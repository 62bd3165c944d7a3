"""A session over this process's stdin and stdout."""

from __future__ import annotations

import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

from ohsandbox.mcp.streams import parse_message
from ohsandbox.mcp_server.session import submit_to_thread
from ohsandbox.private_files import write_all

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import JSONRPCMessage

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR = 0, 1, 2
READ_BYTES = 65536

_MAX_WAITING = 64
"""Limit of messages that are read and not yet handled, and of those not yet written; then the client must wait."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A file for `file_write` arrives on one line; a longer line ends the session."""

FLUSH_S = 2.0
"""Time for a client that has ended the session to read the rest of its output."""

INVALID = JSONRPCError(
    jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message="This line is not a JSON-RPC message.")
)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one session, until stdin ends or nobody reads stdout."""
    lines, sink = _claim_pipes()
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MAX_WAITING)
    outgoing, to_write = anyio.create_memory_object_stream[SessionMessage](_MAX_WAITING)
    written = anyio.Event()

    def read_message() -> tuple[bytes, JSONRPCMessage | None]:
        line = lines.readline(MAX_LINE_BYTES)
        return line, parse_message(line) if line.strip() else None

    async def read() -> None:
        with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            line, message = await submit_to_thread(read_message)
            while line.endswith(b"\n"):
                if message is not None:
                    await received.send(SessionMessage(message))
                elif line.strip():
                    with contextlib.suppress(anyio.WouldBlock):  # nobody reads the output
                        outgoing.send_nowait(SessionMessage(INVALID))
                line, message = await submit_to_thread(read_message)
            if len(line) >= MAX_LINE_BYTES:
                log.error("the client sent a line of more than %d bytes: the session ends", MAX_LINE_BYTES)
        received.close()

    async def write() -> None:
        with contextlib.suppress(OSError):  # nobody reads: the session has ended
            async for message in to_write:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                await submit_to_thread(partial(write_all, sink, line))
        received.close()
        written.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        await server.run(incoming, outgoing, server.create_initialization_options())
        await outgoing.aclose()
        with anyio.move_on_after(FLUSH_S):
            await written.wait()
        group.cancel_scope.cancel()


def _claim_pipes() -> tuple[BinaryIO, int]:
    """Private copies of stdin and stdout: all other output goes to stderr, all other input is empty.

    Nothing is restored: the process ends with its session.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.dup2(STDERR, STDOUT)
    os.close(nothing)
    return open(source, "rb", buffering=READ_BYTES, closefd=False), sink  # never closed: a read may never end
