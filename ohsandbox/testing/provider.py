"""`FakeProvider`: an OpenAI-compatible server on loopback that answers from a list; it knows Anthropic's API too.

    with FakeProvider(calls(("execute_bash", {"command": "ls"})), text("Done.")) as provider:
        llm = LLM(provider.config())
        ...
        assert provider.requests[0].body["model"] == "fake"

Replies are used up in order. A reply made by `text` or `calls` is streamed where the request asks for a stream, and has
Anthropic's form where its messages API is asked.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ohsandbox.llm.config import LLMConfig
from ohsandbox.llm.retry import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_JSON = "application/json"
_SSE = "text/event-stream"
_OK = 200
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Reply(NamedTuple):
    """One programmed answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = _NOTHING
    content_type: str = _JSON
    message: Mapping[str, Any] | None = None
    """Where set, `body` is its JSON form, and a request that asks for a stream gets it as one."""
    delay_s: float = 0.0
    """Delay before the status line."""
    cut_at: int | None = None
    """Bytes of the body that are sent before the connection is cut; the length of the whole was announced."""
    repeat: int = 1
    """The body is sent this many times, for bodies that should not exist in memory."""


class Request(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    """{} where it is not a JSON object."""


def message(fields: Mapping[str, Any] | None, *, finish_reason: str | None = "stop", **extra: Any) -> Reply:
    """A completion with this message, whatever it holds; extra fields go to the top level."""
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": fields}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    } | extra
    return Reply(json.dumps(completion).encode(), message=completion)


def text(content: str, **extra: Any) -> Reply:
    """Make a reply in which the model says content and calls nothing."""
    return message({"role": "assistant", "content": content}, **extra)


def calls(*pairs: tuple[str | None, Any], content: str | None = None, **extra: Any) -> Reply:
    """The model calls each (name, arguments); arguments other than strings are written as JSON. Ids are call_a0, ..."""
    tool_calls = [
        {
            "id": f"call_a{index}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for index, (name, arguments) in enumerate(pairs)
    ]
    fields = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    return message(fields, finish_reason="tool_calls", **extra)


def error(status: int, message: str = "", headers: Mapping[str, str] = _NOTHING) -> Reply:
    """Make an error reply in OpenAI's form."""
    return Reply(json.dumps({"error": {"message": message, "code": status}}).encode(), status, headers)


def events(*chunks: Mapping[str, Any] | str, end: str = "\n\n", done: bool = True) -> Reply:
    """A stream of these chunks; a string is sent as it is, for odd framing."""
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}{end}" for chunk in chunks]
    return Reply("".join([*lines, f"data: [DONE]{end}" if done else ""]).encode(), content_type=_SSE)


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    """Make one chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": [choice],
    } | extra


def _as_stream(completion: Mapping[str, Any]) -> Reply:
    """The completion as a stream: its text in two pieces, its calls, the finish, the usage."""
    choice = completion["choices"][0]
    fields = choice["message"] or {}
    said = fields.get("content") or ""
    pieces = [said[: len(said) // 2], said[len(said) // 2 :]] if said else []
    tool_calls = [{"index": index} | call for index, call in enumerate(fields.get("tool_calls") or [])]
    return events(
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in pieces),
        *(chunk({"tool_calls": [call]}) for call in tool_calls),
        chunk({}, choice["finish_reason"]),
        chunk({}, usage=completion.get("usage")) | {"choices": []},
    )


def _as_anthropics(completion: Mapping[str, Any]) -> dict[str, Any]:
    """The completion as an answer of Anthropic's messages API."""
    choice = completion["choices"][0]
    fields = choice["message"] or {}
    blocks: list[dict[str, Any]] = [{"type": "text", "text": fields["content"]}] if fields.get("content") else []
    for call in fields.get("tool_calls") or []:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    usage, reasons = completion.get("usage") or {}, {"stop": "end_turn", "length": "max_tokens"}
    return {
        "id": completion["id"],
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": blocks,
        "stop_reason": reasons.get(choice["finish_reason"], "tool_use"),
        "stop_sequence": None,
        "usage": {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)},
    }


def _as_anthropics_stream(answer: Mapping[str, Any]) -> Reply:
    """The answer as a stream of Anthropic's: each text and each call's arguments in two pieces."""
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}},
        {"type": "ping"},
    ]
    for index, block in enumerate(answer["content"]):
        is_text = block["type"] == "text"
        whole = block["text"] if is_text else json.dumps(block["input"])
        empty = {"type": "text", "text": ""} if is_text else {**block, "input": {}}
        told.append({"type": "content_block_start", "index": index, "content_block": empty})
        for piece in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            name, key = ("text_delta", "text") if is_text else ("input_json_delta", "partial_json")
            delta = {"type": name, key: piece}
            told.append({"type": "content_block_delta", "index": index, "delta": delta})
        told.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    told.append({"type": "message_delta", "delta": ending, "usage": answer["usage"]})
    told.append({"type": "message_stop"})
    return events(*(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in told), done=False)


class FakeClock(Clock):
    """Time that passes only in waits, at once: `LLM(config, clock=FakeClock())`."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        """Every wait asked for, in seconds."""

    def now(self) -> float:
        """Return the sum of the waits."""
        return sum(self.waits)

    def sleep(self, seconds: float, canceled: threading.Event) -> None:  # noqa: ARG002 - nothing to wait for
        """Record the wait without waiting."""
        self.waits.append(seconds)


class FakeProvider:
    """The server; a context manager. Asked for more than it has, it answers status 400."""

    def __init__(
        self,
        *replies: Reply,
        answer: Callable[[Request], Reply] | None = None,
        host: str = "127.0.0.1",
        models: Sequence[str] | None = ("fake",),
    ) -> None:
        """Answer from replies; or with what answer makes of each request, in the request's own thread.

        host is the address to listen on: that of the engine's bridge, say, for programs in a sandbox. models are what
        it lists at `/models`, which takes no reply and is not among `requests`; None is a server without a list.
        """
        self._models = models
        self._replies, self._answer = deque(replies), answer
        self.requests: list[Request] = []
        """The requests that have arrived, in order."""
        self.arrived = threading.Event()
        """Set with the first request."""
        self._server = _Server((host, 0), self._next)

    @property
    def base_url(self) -> str:
        """The value for `LLMConfig.base_url`."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    def config(self, **changes: Any) -> LLMConfig:
        """Return a config that uses this server."""
        settings = {"model": "openai/fake", "base_url": self.base_url, "api_key": "test-key-of-no-value"}
        return LLMConfig.model_validate(settings | changes)

    def add(self, *replies: Reply) -> None:
        """Append replies."""
        self._replies.extend(replies)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _next(self, request: Request) -> Reply:
        if request.method == "GET" and request.path.partition("?")[0].endswith("/models"):
            listed = [{"id": name, "object": "model"} for name in self._models or ()]
            return error(404) if self._models is None else Reply(json.dumps({"data": listed}).encode())
        self.requests.append(request)
        self.arrived.set()
        try:
            reply = self._replies.popleft() if self._answer is None else self._answer(request)
        except IndexError:
            return error(400, "FakeProvider has no reply left; program one for each request.")
        if reply.message is None or reply.status != _OK:
            return reply
        streamed = request.body.get("stream")
        if request.path.endswith("/messages"):
            answer = _as_anthropics(reply.message)
            made = _as_anthropics_stream(answer) if streamed else Reply(json.dumps(answer).encode())
        else:
            made = _as_stream(reply.message) if streamed else reply
        return made._replace(delay_s=reply.delay_s)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[Request], Reply]) -> None:
        super().__init__(address, _Handler)
        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        reply = self.server.answer(self._request())
        time.sleep(reply.delay_s)
        try:
            self._send(reply)
        except OSError:  # the client has gone
            self.close_connection = True

    do_GET = do_POST  # noqa: N815 - http.server's name

    def _request(self) -> Request:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, self.path, headers, body if isinstance(body, dict) else {})

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(reply.body) * reply.repeat))
        self.close_connection = True
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in _pieces(reply):
            self.wfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""


def _pieces(reply: Reply) -> Iterator[bytes]:
    if reply.cut_at is not None:
        yield reply.body[: reply.cut_at]
        return
    yield from [reply.body] * reply.repeat
