"""Messages of an untrusted server: their lines, their limits, and the SDK's session with limits."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp import ClientSession
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import (
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    PaginatedRequestParams,
    RequestId,
    Tool,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from ohsandbox.mcp.content import visible_line
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.client.session import ClientRequestContext
    from mcp.shared.message import SessionMessage
    from mcp_types import InputRequest, InputResponse


class FloodError(ValueError):
    """The server sent a longer line, or more invalid data, than allowed; the stream is unusable."""


class LineFramer:
    r"""Splits bytes into lines at `\n`; removes it and a `\r` before it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add data; return the lines that it completes.

        Raises:
            FloodError: one of them, or the buffered part of the next one, exceeds the limit.
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
        """Return the bytes after the last newline."""
        return bytes(self._held)

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._held = bytearray()
            raise FloodError(f"a line of more than {self._limit / 1_000_000:g} MB")


MAX_LINE_BYTES = 16_000_000
"""Maximum size of a line: a message with a 10 MB file in base64 fits; an endless one cannot exhaust the memory."""

_NOISE_LINES = 10
NOISE_BYTES = 200
"""Length of the beginning of each stdout line that is not a message, kept for the report about the server's end."""

_MAX_BROKEN = 100
"""Maximum number of malformed messages and of responses without a request."""

_MAX_UNASKED_PER_S = 1000
"""Maximum number of notifications and requests per second."""

_MAX_NOISE_PER_S = 10_000
"""Maximum number of lines per second that are not messages: more would block the loop, which other servers need."""

MAX_UNASKED_BYTES_PER_S = 32_000_000
"""Maximum number of bytes per second of unrequested messages and other lines."""

MAX_PARTS = 250_000
"""Maximum number of strings, objects, lists and commas in a message: 16 MB of `{},` would take 1.6 GB of memory."""

_TOO_MANY = f"the answer has more than {MAX_PARTS} JSON values"
MALFORMED = "the answer is not a valid JSON-RPC message"
"""The error message for the caller that waits for such a response."""

MAX_PROGRESS = 10**300
"""Maximum of progress numbers; the largest float is 1.8e308."""

_MAX_PAGES = 64
"""Maximum number of pages of `tools/list`; at most `definition.MAX_TOOLS` tools are offered anyway."""

MAX_LISTED = 1024
"""Maximum number of tools read per server, so that `include` can choose among them; 128 are offered."""

_MAX_LISTED_CHARS = 4_000_000
"""Maximum length of all listed tools together, as JSON."""

_FURTHER = "(further tools)"
"""Key of further tools in `GuardedSession.unfit`."""

_END_BYTES = 512
"""Number of bytes at the beginning and at the end of an unparsable message in which its id is searched."""

_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,18})"?\s*[,}]')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string; matching takes linear time, since it does not backtrack and matches do not overlap."""


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """Return the JSON-RPC message in a line; None if it is not one.

    Invalid UTF-8 and lone surrogates (JavaScript may cut a string within a character) become `?`.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if not line.lstrip().startswith(b"{"):
            return None
    try:
        repaired = json.dumps(load_json(line.decode("utf-8", "replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(repaired.encode("utf-8", "replace"), by_name=False)
    except (ValueError, RecursionError):
        return None


class Intake:
    """Separates a server's messages from its other output, and enforces limits on both."""

    def __init__(self) -> None:
        self.noise: deque[str] = deque(maxlen=_NOISE_LINES)
        self.noise_lines = 0
        self.broken = 0
        self._asked: set[RequestId] = set()
        self._unasked: Counter[str] = Counter()
        self._unasked_bytes = 0
        self._second = 0

    def note_request(self, request_id: RequestId) -> None:
        """Record an outgoing request; one response with its id is accepted."""
        self._asked.add(coerce_request_id(request_id))

    def parse(self, line: bytes) -> JSONRPCMessage | None:
        """Return the message in a line; None if it is not one, or must be ignored.

        An invalid response becomes an error for its request, which would otherwise wait until its timeout.

        Raises:
            FloodError: too many broken messages, or too many lines or bytes in a second.
        """
        if not line.lstrip().startswith(b"{"):
            self._note_noise(line)
            return None
        too_many = has_too_many_parts(line)
        message = None if too_many else parse_message(line)
        if message is None:
            self._note_noise(line)
            return self._refusal(line, _TOO_MANY if too_many else MALFORMED)
        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            self._count_unasked(len(line), "notifications or requests", _MAX_UNASKED_PER_S)
            return message if _is_countable(message) else None
        return message if self._is_answer(message) else None

    def _note_noise(self, line: bytes) -> None:
        self._count_unasked(len(line), "lines that are not messages", _MAX_NOISE_PER_S)
        if not (text := line.strip()):
            return
        self.noise_lines += 1
        self.noise.append(text[:NOISE_BYTES].decode("utf-8", "replace"))
        if text.startswith((b"{", b"[")):
            self._count_broken()

    def _refusal(self, line: bytes, reason: str) -> JSONRPCError | None:
        for request_id in _ids_of_answer(line) & self._asked:
            self._asked.discard(request_id)
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=PARSE_ERROR, message=reason))
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
        if self.broken >= _MAX_BROKEN:
            raise FloodError(f"{self.broken} malformed messages or responses without a request")

    def _count_unasked(self, length: int, kind: str, most: int) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._unasked, self._unasked_bytes, self._second = Counter(), 0, second
        self._unasked[kind] += 1
        self._unasked_bytes += length
        if self._unasked[kind] > most:
            raise FloodError(f"more than {most} {kind} in a second")
        if self._unasked_bytes > MAX_UNASKED_BYTES_PER_S:
            raise FloodError(f"more than {MAX_UNASKED_BYTES_PER_S / 1e6:g} MB of unrequested data in a second")


def has_too_many_parts(line: bytes) -> bool:
    """Whether a line has more than MAX_PARTS parts, counted without parsing; the contents of strings do not count."""
    if len(line) <= MAX_PARTS or _parts(line) + line.count(b'"') <= MAX_PARTS:
        return False
    count = end = 0
    for match in _STRING.finditer(line):
        count += 1 + _parts(line[end : match.start()])
        end = match.end()
        if count > MAX_PARTS:
            return True
    return count + _parts(line[end:]) > MAX_PARTS


def _parts(line: bytes) -> int:
    return line.count(b"{") + line.count(b"[") + line.count(b",")


def _ids_of_answer(line: bytes) -> set[RequestId]:
    """Return the ids of requests that an invalid response may answer; several are guesses."""
    try:
        message = {} if len(line) > MAX_PARTS else load_json(line)
    except (ValueError, RecursionError):
        message = {}
    if message:
        answers = "jsonrpc" in message and ("result" in message or "error" in message)
        return {coerce_request_id(message["id"])} if answers and type(message.get("id")) in (int, str) else set()
    ends = (line[:_END_BYTES], line[-_END_BYTES:]) if b'"jsonrpc"' in line and b'"method"' not in line else ()
    return {int(match[1]) for end in ends for match in _ID.finditer(end)}


def _is_countable(message: JSONRPCRequest | JSONRPCNotification) -> bool:
    """Whether the message has no progress number over a float's range, which would end the SDK's session."""
    if message.method != "notifications/progress" or message.params is None:
        return True
    numbers = (message.params.get("progress"), message.params.get("total"))
    return not any(isinstance(number, int) and abs(number) > MAX_PROGRESS for number in numbers)


def _with_object_schema(tool: Any) -> Any:
    """Return the tool with `type: object` in its schema, if that is missing or has no type, or several.

    The specification requires the type (MCP 2025-11-25, "Tools"); many servers omit it, and other clients offer these.
    """
    schema = tool.get("inputSchema") or {} if isinstance(tool, dict) else None  # PHP encodes `{}` as `[]`
    if not isinstance(schema, dict):
        return tool
    kind = schema.get("type") or "object"
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return tool
    return {**tool, "inputSchema": {**schema, "type": "object"}}


def _readable_part(part: Any) -> Any:
    """Return a part of a result's content; a text about it, if it is of no known type or malformed."""
    if isinstance(part, dict):
        part = {name: value for name, value in part.items() if value is not None and name != "annotations"}
    try:
        CallToolResult.model_validate({"content": [part]}, by_name=False)
    except ValidationError:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        name = visible_line(str(kind), limit_chars=100)
        text = f"[content of type {name!r}, {len(json.dumps(part))} characters: left out, not as MCP defines it]"
        return {"type": "text", "text": text}
    return part


class Outbox:
    """The SDK's stream of messages to the server; it passes each as a line to `write`, which must not block."""

    def __init__(self, intake: Intake, write: Callable[[bytes], None]) -> None:
        self._intake, self._write = intake, write

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message.

        Raises:
            anyio.BrokenResourceError: the server no longer accepts input.
        """
        if isinstance(item.message, JSONRPCRequest):
            self._intake.note_request(item.message.id)
        try:
            self._write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        except BrokenPipeError:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Do nothing: the process ends with its transport."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class GuardedSession(ClientSession):
    """The SDK's session for an untrusted server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unfit: dict[str, str] = {}
        """Invalid tools of the last `tools/list`, which are left out, with the reasons."""
        self._listed = self._listed_chars = 0
        self._send_raw = self._dispatcher.send_raw_request
        self._dispatcher.send_raw_request = self._send_leniently  # type: ignore[method-assign] # sees raw responses

    async def list_all_tools(self) -> tuple[Tool, ...]:
        """Return the valid tools of all pages of `tools/list`, within the limits."""
        self.unfit = {}
        self._listed = self._listed_chars = 0
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
            tools += page.tools
            if page.next_cursor in (None, cursor) or _FURTHER in self.unfit:
                break
            cursor = page.next_cursor
        return tuple(tools)

    async def _send_leniently(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Repair lists of tools and results part by part: the SDK validates them as a whole, and would refuse all."""
        raw = await self._send_raw(method, *args, **kwargs)
        if method == "tools/list" and isinstance(raw.get("tools"), list):
            raw["tools"] = [_with_object_schema(tool) for tool in raw["tools"]]
            raw["tools"] = [tool for tool in raw["tools"] if self._is_fit(tool)]
        if method == "tools/call":
            raw = {"content": [], **{name: value for name, value in raw.items() if value is not None}}
            if isinstance(raw["content"], list):
                raw["content"] = [_readable_part(part) for part in raw["content"]]
            if not isinstance(raw.get("structuredContent", {}), dict):
                raw["structuredContent"] = {"result": raw["structuredContent"]}  # as FastMCP wraps plain values
        return raw

    def _is_fit(self, tool: Any) -> bool:
        self._listed += 1
        self._listed_chars += 0 if _FURTHER in self.unfit else len(json.dumps(tool))
        if self._listed > MAX_LISTED or self._listed_chars > _MAX_LISTED_CHARS:
            self.unfit[_FURTHER] = (
                f"only {MAX_LISTED} tools of a server are read, and {_MAX_LISTED_CHARS} characters of them"
            )
            return False
        try:
            Tool.model_validate(tool, by_name=False)
            if tool["inputSchema"]["type"] != "object":
                raise ValueError("its `inputSchema` is not of type object")  # noqa: TRY301 - reported like the others
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        except ValueError as error:
            reason = str(error)
        else:
            return True
        name = tool.get("name") if isinstance(tool, dict) else None
        self.unfit[visible_line(str(name or "(no name)"), limit_chars=100)] = f"it is invalid: {reason}"
        return False

    async def dispatch_input_request(
        self,
        ctx: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        request: InputRequest,
    ) -> InputResponse | ErrorData:
        """Refuse sampling, elicitation and roots: a server can neither spend tokens nor ask the user."""
        return ErrorData(code=METHOD_NOT_FOUND, message=f"{request.method} is not offered by this client")

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        """Do nothing: validation would run the server's own schema, with its patterns and references, on the host."""
