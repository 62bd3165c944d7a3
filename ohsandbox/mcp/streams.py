"""What the MCP SDK's session reads from and writes to, over one server process: no task of its own, no copy."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import TYPE_CHECKING, Self

import anyio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOISE_LINES = 10
NOISE_BYTES = 200
"""Of each line on stdout that is no message this much is kept, for the message about the server's end."""

MAX_BROKEN = 100
"""So many malformed messages, and answers to nothing, are borne with."""

MAX_UNASKED_PER_S = 1000
"""Notifications and requests of a server; one that sends more is out of control."""


class ProtocolFloodError(ValueError):
    """The server sends more rubbish than is borne with."""


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """The JSON-RPC message of a line; None when it is none.

    Invalid UTF-8 and lone surrogates (JavaScript cuts strings between the two halves of a character) become `?`.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if not line.lstrip().startswith(b"{"):
            return None
    try:
        repaired = json.dumps(json.loads(line.decode("utf-8", "replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(repaired.encode("utf-8", "replace"), by_name=False)
    except (ValueError, RecursionError):
        return None


class Intake:
    """Tells a server's messages from its noise, and counts what no sane server sends."""

    def __init__(self) -> None:
        self.noise: deque[str] = deque(maxlen=NOISE_LINES)
        self.noise_lines = 0
        self.broken = 0
        self._asked: set[RequestId] = set()
        self._unasked = 0
        self._second = 0

    def note_request(self, request_id: RequestId) -> None:
        """A request of ours goes out: an answer with this id is welcome, once."""
        self._asked.add(coerce_request_id(request_id))

    def take(self, line: bytes) -> JSONRPCMessage | None:
        """The line's message, or None where it is noise or not to be acted on.

        Raises:
            ProtocolFloodError: too many broken messages, or too many in a second.
        """
        message = parse_message(line)
        if message is None:
            self._note_noise(line)
            return None
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._count_unasked()
            return message
        return message if self._is_answer(message) else None

    def _note_noise(self, line: bytes) -> None:
        if not (text := line.strip()):
            return
        self.noise_lines += 1
        self.noise.append(text[:NOISE_BYTES].decode("utf-8", "replace"))
        if text.startswith((b"{", b"[")):
            self._count_broken()

    def _is_answer(self, message: JSONRPCResponse | JSONRPCError) -> bool:
        answered = None if message.id is None else coerce_request_id(message.id)
        if answered in self._asked:
            self._asked.discard(answered)
            return True
        self._count_broken()
        return False

    def _count_broken(self) -> None:
        self.broken += 1
        if self.broken >= MAX_BROKEN:
            raise ProtocolFloodError(f"{self.broken} malformed messages or answers to nothing")

    def _count_unasked(self) -> None:
        second = int(time.monotonic())
        self._unasked = self._unasked + 1 if second == self._second else 1
        self._second = second
        if self._unasked > MAX_UNASKED_PER_S:
            raise ProtocolFloodError(f"more than {MAX_UNASKED_PER_S} notifications or requests in a second")


class Inbox:
    """Messages from the server; `put` and `finish` are called on the loop."""

    def __init__(self) -> None:
        self._waiting: deque[SessionMessage] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._finished = False

    def put(self, message: JSONRPCMessage) -> None:
        """Hand a message over."""
        self._waiting.append(SessionMessage(message))
        self._wake()

    def finish(self) -> None:
        """No more comes."""
        self._finished = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message.

        Raises:
            anyio.EndOfStream: there is none.
        """
        while not self._waiting:
            if self._finished:
                raise anyio.EndOfStream
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """The session wants no more."""
        self._waiting.clear()
        self._finished = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Outbox:
    """Messages to the server: each is one line, handed to `write`, which does not block."""

    def __init__(self, intake: Intake, write: Callable[[bytes], None]) -> None:
        self._intake = intake
        self._write = write
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Hand one message over.

        Raises:
            anyio.ClosedResourceError: the session has closed the stream.
            anyio.BrokenResourceError: the server takes nothing any more.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if isinstance(item.message, JSONRPCRequest):
            self._intake.note_request(item.message.id)
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._write(text.encode() + b"\n")
        except BrokenPipeError:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """No more is sent."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
