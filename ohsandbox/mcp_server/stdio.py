"""A session over this process's stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

from ohsandbox.mcp.streams import Inbox, parse_message
from ohsandbox.mcp_server.concurrency import BlockingCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.server.lowlevel import Server
    from mcp_types import JSONRPCMessage

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR = 0, 1, 2
READ_BYTES = 65536

MAX_WAITING = 64
"""Limit of messages that are read and not yet handled, and of those not yet written."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A file for `file_write` arrives on one line; a longer line ends the session."""

FLUSH_S = 2.0
"""Time for a client that has ended the session to read the rest of its output."""

NO_MESSAGE = JSONRPCError(
    jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message="This line is not a JSON-RPC message.")
)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one session, until stdin ends or nobody reads stdout."""
    with _own_pipes() as (source, sink):
        async with _streams(source, sink) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


@contextlib.contextmanager
def _own_pipes() -> Iterator[tuple[int, int]]:
    """Private copies of stdin and stdout: all other output goes to stderr, all other input is empty.

    Nothing is restored: the process ends with its session.
    """
    source, sink = os.dup(STDIN), os.dup(STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.dup2(STDERR, STDOUT)
    os.close(nothing)
    yield source, sink


class _Messages(Inbox):
    """The client's messages; a full queue makes the client wait."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Semaphore(MAX_WAITING)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        message = await super().receive()
        self.free.release()
        return message


@contextlib.asynccontextmanager
async def _streams(source: int, sink: int) -> AsyncIterator[tuple[_Messages, MemoryObjectSendStream[SessionMessage]]]:
    incoming = _Messages()
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](MAX_WAITING)
    _read_in_background(source, incoming, outgoing)
    written = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_write, sink, from_server, incoming, written)
        yield incoming, outgoing
        await outgoing.aclose()
        with anyio.move_on_after(FLUSH_S):
            await written.wait()
        group.cancel_scope.cancel()


def _read_in_background(source: int, incoming: _Messages, outgoing: MemoryObjectSendStream[SessionMessage]) -> None:
    """Read in a daemon thread: a read of stdin cannot be cancelled, and must not delay an end by signal."""
    loop = asyncio.get_running_loop()

    def take(message: JSONRPCMessage | None) -> None:
        if message is not None:
            incoming.put(message)
            return
        incoming.free.release()
        with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            outgoing.send_nowait(SessionMessage(NO_MESSAGE))  # fails if nobody reads

    def read() -> None:
        with contextlib.suppress(OSError), open(source, "rb", buffering=READ_BYTES, closefd=False) as lines:
            while (line := lines.readline(MAX_LINE_BYTES)) and line.endswith(b"\n"):
                if line.strip():
                    incoming.free.acquire()
                    loop.call_soon_threadsafe(take, parse_message(line))
            if len(line) >= MAX_LINE_BYTES:
                log.error("the client sent a line of more than %d bytes: the session ends", MAX_LINE_BYTES)
        loop.call_soon_threadsafe(incoming.finish)

    def work() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            read()

    threading.Thread(target=work, name="ohsandbox-stdin", daemon=True).start()


async def _write(
    sink: int,
    messages: MemoryObjectReceiveStream[SessionMessage],
    incoming: _Messages,
    written: anyio.Event,
) -> None:
    async for message in messages:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            await BlockingCall(partial(_write_all, sink, line)).result()
        except OSError:  # nobody reads: the session has ended
            incoming.finish()
            break
    written.set()


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
