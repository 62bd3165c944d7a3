"""A session over our own stdin and stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

from ohsandbox.errors import UsageError
from ohsandbox.mcp.streams import parse_message
from ohsandbox.serving.jobs import Job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.server.lowlevel import Server

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR = 0, 1, 2
READ_BYTES = 65536

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A file that `file_write` is given comes on one line; past this it is no message, and the session ends."""

FLUSH_S = 2.0
"""As long a client that has ended the session may take to read what it was sent."""

NO_MESSAGE = JSONRPCError(
    jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message="This line is no JSON-RPC message.")
)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one session, until stdin ends or nobody reads stdout."""
    with _own_pipes() as (source, sink):
        async with _streams(source, sink) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


@contextlib.contextmanager
def _own_pipes() -> Iterator[tuple[int, int]]:
    """Copies of stdin and stdout that only we know: what else prints goes to stderr, and what else reads finds an end.

    Nothing is put back: the process ends with its session.

    Raises:
        UsageError: we have no stdin, or no stdout.
    """
    try:
        source, sink = os.dup(STDIN), os.dup(STDOUT)
    except OSError:
        raise UsageError("stdin or stdout is closed. Start this as an MCP client does, or with --http.") from None
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, STDIN)
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:  # we have no stderr
        os.dup2(nothing, STDOUT)
    os.close(nothing)
    yield source, sink


@contextlib.asynccontextmanager
async def _streams(
    source: int, sink: int
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](16)
    _read_in_background(source, to_server, outgoing.clone())
    written = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_write, sink, from_server, to_server, written)
        yield incoming, outgoing
        await outgoing.aclose()
        with anyio.move_on_after(FLUSH_S):
            await written.wait()
        group.cancel_scope.cancel()


def _read_in_background(
    source: int,
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    to_client: MemoryObjectSendStream[SessionMessage],
) -> None:
    """In a daemon thread: a read of stdin cannot be cancelled, and must hold up nobody who ends us by a signal."""
    token = current_token()

    async def take(line: bytes) -> None:
        message = parse_message(line)
        if message is None:
            await to_client.send(SessionMessage(NO_MESSAGE))
        else:
            await to_server.send(SessionMessage(message))

    def close() -> None:
        to_server.close()
        to_client.close()

    def read() -> None:
        with (
            contextlib.suppress(OSError, RuntimeError, anyio.BrokenResourceError, anyio.ClosedResourceError),
            open(source, "rb", buffering=READ_BYTES, closefd=False) as lines,
        ):
            while (line := lines.readline(MAX_LINE_BYTES)) and line.endswith(b"\n"):
                if line.strip():
                    from_thread.run(take, line, token=token)
            if len(line) >= MAX_LINE_BYTES:
                log.error("the client sent a line of more than %d bytes: the session ends", MAX_LINE_BYTES)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            from_thread.run_sync(close, token=token)

    threading.Thread(target=read, name="ohsandbox-stdin", daemon=True).start()


async def _write(
    sink: int,
    messages: MemoryObjectReceiveStream[SessionMessage],
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    written: anyio.Event,
) -> None:
    async for message in messages:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            await Job(partial(_write_all, sink, line)).result()
        except OSError:  # nobody reads: the session is over
            to_server.close()
            break
    written.set()


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
