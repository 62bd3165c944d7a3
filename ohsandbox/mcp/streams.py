"""JSON-RPC messages from and to a server, one per line: limits on its messages, and the SDK's streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Self

import anyio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
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


class LineTooLongError(ValueError):
    """A line exceeded the limit; the stream is unusable."""


class LineFramer:
    r"""Splits bytes into lines at `\n`; removes it and a `\r` before it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that data completes.

        Raises:
            LineTooLongError: one of them, or the buffered part of the next one, exceeds the limit.
        """
        if b"\n" not in data:
            self._held += data
            self._check(len(self._held))
            return []
        lines = (bytes(self._held) + data if self._held else data).split(b"\n")
        self._held = bytearray(lines.pop())
        self._check(max(len(self._held), *map(len, lines)))
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> bytes:
        """The bytes after the last newline."""
        return bytes(self._held)

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._held = bytearray()
            raise LineTooLongError(f"a line of more than {self._limit / 1_000_000:g} MB")


NOISE_LINES = 10
NOISE_BYTES = 200
"""The part kept of each stdout line that is not a message, for the message about the server's end."""

MAX_BROKEN = 100
"""Limit of malformed messages and of responses without a request."""

MAX_UNASKED_PER_S = 1000
"""Limit of a server's notifications and requests per second."""

MAX_NOISE_PER_S = 10_000
"""Limit of lines that are not messages. Reading more would block the loop, which other servers need too."""

MAX_UNASKED_BYTES_PER_S = 32_000_000
"""Limit of both together."""

MAX_PARTS = 250_000
"""Strings, objects, lists and commas of one message: 16 MB of `{},` would take 1.6 GB of this host's memory."""

TOO_MANY = f"the answer has more than {MAX_PARTS} JSON values"
MALFORMED = "the answer is not a valid JSON-RPC message"
"""The error message for the caller that waits for such a response."""

MAX_PROGRESS = 10**300
"""The largest float is 1.8e308."""

END_BYTES = 512
"""An unparsable message has its id this near its beginning or its end."""

_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,18})"?\s*[,}]')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Linear for any input: no backtracking, and each match begins where the last one ended."""


class ProtocolFloodError(ValueError):
    """The server sent more invalid data than the limits allow."""


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """Parse a line as a JSON-RPC message; None if it is not one.

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
    """Separates a server's messages from other output, and enforces the limits on both."""

    def __init__(self) -> None:
        self.noise: deque[str] = deque(maxlen=NOISE_LINES)
        self.noise_lines = 0
        self.broken = 0
        self._asked: set[RequestId] = set()
        self._unasked: Counter[str] = Counter()
        self._unasked_bytes = 0
        self._second = 0

    def note_request(self, request_id: RequestId) -> None:
        """Record an outgoing request: one response with this id is accepted."""
        self._asked.add(coerce_request_id(request_id))

    def take(self, line: bytes) -> JSONRPCMessage | None:
        """Return the line's message, or None if it is no message or must be ignored.

        An invalid response becomes an error for its request, which would otherwise wait until its timeout.

        Raises:
            ProtocolFloodError: too many broken messages, or too many lines or bytes in a second.
        """
        if not line.lstrip().startswith(b"{"):
            self._note_noise(line)
            return None
        too_many = has_too_many_parts(line)
        message = None if too_many else parse_message(line)
        if message is None:
            self._note_noise(line)
            return self._refusal(line, TOO_MANY if too_many else MALFORMED)
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._count_unasked(len(line), "notifications or requests", MAX_UNASKED_PER_S)
            return message if _is_countable(message) else None
        return message if self._is_answer(message) else None

    def _note_noise(self, line: bytes) -> None:
        self._count_unasked(len(line), "lines that are not messages", MAX_NOISE_PER_S)
        if not (text := line.strip()):
            return
        self.noise_lines += 1
        self.noise.append(text[:NOISE_BYTES].decode("utf-8", "replace"))
        if text.startswith((b"{", b"[")):
            self._count_broken()

    def _refusal(self, line: bytes, why: str) -> JSONRPCError | None:
        for asked in _ids_of_answer(line) & self._asked:
            self._asked.discard(asked)
            return JSONRPCError(jsonrpc="2.0", id=asked, error=ErrorData(code=PARSE_ERROR, message=why))
        return None

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

    def _count_unasked(self, length: int, what: str, most: int) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._unasked, self._unasked_bytes, self._second = Counter(), 0, second
        self._unasked[what] += 1
        self._unasked_bytes += length
        if self._unasked[what] > most:
            raise ProtocolFloodError(f"more than {most} {what} in a second")
        if self._unasked_bytes > MAX_UNASKED_BYTES_PER_S:
            raise ProtocolFloodError(f"more than {MAX_UNASKED_BYTES_PER_S / 1e6:g} MB unasked in a second")


def has_too_many_parts(line: bytes) -> bool:
    """Whether a line has more than MAX_PARTS, counted without parsing; the contents of strings do not count."""
    if len(line) <= MAX_PARTS or _parts(line) + line.count(b'"') <= MAX_PARTS:
        return False
    count = end = 0
    for found in _STRING.finditer(line):
        count += 1 + _parts(line[end : found.start()])
        end = found.end()
        if count > MAX_PARTS:
            return True
    return count + _parts(line[end:]) > MAX_PARTS


def _parts(line: bytes) -> int:
    return line.count(b"{") + line.count(b"[") + line.count(b",")


def _ids_of_answer(line: bytes) -> set[RequestId]:
    """The request ids that an invalid response may refer to; several ids are guesses."""
    try:
        said = {} if len(line) > MAX_PARTS else json.loads(line)
    except (ValueError, RecursionError):
        said = {}
    if said:
        answers = "jsonrpc" in said and ("result" in said or "error" in said)
        return {coerce_request_id(said["id"])} if answers and type(said.get("id")) in (int, str) else set()
    ends = (line[:END_BYTES], line[-END_BYTES:]) if b'"jsonrpc"' in line and b'"method"' not in line else ()
    return {int(found[1]) for end in ends for found in _ID.finditer(end)}


def _is_countable(message: JSONRPCRequest | JSONRPCNotification) -> bool:
    """False for progress numbers beyond a float's range: converting them ends the SDK's session."""
    if message.method != "notifications/progress" or message.params is None:
        return True
    numbers = (message.params.get("progress"), message.params.get("total"))
    return not any(isinstance(number, int) and abs(number) > MAX_PROGRESS for number in numbers)


class Inbox:
    """Messages from the server; call `put` and `finish` on the loop."""

    def __init__(self) -> None:
        self._waiting: deque[SessionMessage] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._finished = False

    def put(self, message: JSONRPCMessage) -> None:
        """Add a message."""
        self._waiting.append(SessionMessage(message))
        self._wake()

    def finish(self) -> None:
        """Mark the end of the stream."""
        self._finished = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message.

        Raises:
            anyio.EndOfStream: the stream has ended.
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
        """Close the stream from the session's side."""
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
    """Messages to the server: passes each as one line to `write`, which does not block."""

    def __init__(self, intake: Intake, write: Callable[[bytes], None]) -> None:
        self._intake = intake
        self._write = write
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message.

        Raises:
            anyio.ClosedResourceError: the session has closed the stream.
            anyio.BrokenResourceError: the server accepts no more input.
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
        """Close the stream."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
