"""The sandbox over MCP's Streamable HTTP: access control, concurrent sessions, slow and vanished clients."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import uvicorn
from mcp.server.runner import serve_loop
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import Response
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from anyio.abc import TaskGroup, TaskStatus
    from mcp.server.lowlevel import Server
    from starlette.types import Message, Receive, Scope, Send

log = logging.getLogger(__name__)

PATH = "/mcp"
_VERSION_HEADER = "mcp-protocol-version"
BEARER = "bearer "
INITIALIZE = b'"initialize"'
"""Occurs in the request that may open a session; the session itself rejects other requests that contain it."""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The same as for a line over stdio."""

HEADERS_S = 10.0
"""Limit for a request's headers; enough for a bad connection."""

BODY_S = 20.0
"""The longest pause within a request's body."""

_UNHEARD_S = 120.0
"""Time until unacknowledged data ends a connection; the kernel's default is a quarter of an hour. Streams send data
every 15 s."""

_AWAY_S = 300.0
"""Time for a client to come back that had opened a stream and now has none: it was killed or lost the connection.
Clients reopen the stream within a second or two; a broken proxy may prevent that."""

SPARED_S = 4.0
"""Once a client has been away this long, a new session that finds no free place may take the client's place."""

_ENDING_S = 6.0
"""A new session waits this long for a free place: for the sandbox of an ended session (0.2 s, seldom more), or for a
session whose client has just left."""

LOOK_S = 0.5
"""The interval of checks for a free place."""

END_S = 2
"""Limit for connections to close when the server ends, in seconds."""


class ListenAddress(NamedTuple):
    """The address to listen on."""

    host: str
    port: int
    """0 selects a free one."""

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse `PORT` or `HOST:PORT`; brackets around an IPv6 host are allowed.

        Raises:
            UsageError: it is neither.
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
            raise UsageError(
                f"Invalid address {text!r} for --http: expected PORT or HOST:PORT. Port 0 takes a free port."
            )
        return cls(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))

    @property
    def url(self) -> str:
        """The URL for a client's configuration."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{PATH}"


@contextlib.contextmanager
def listening(address: ListenAddress) -> Iterator[tuple[socket.socket, ListenAddress]]:
    """Yield a socket that listens on the address, and its actual address.

    Raises:
        UsageError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise UsageError(
            f"Nothing can listen on {address.host}:{address.port}: {error.strerror or error}. Name another address."
        ) from None
    with contextlib.suppress(AttributeError, OSError):  # Linux has this option
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNHEARD_S * 1000))
    with listener:
        yield listener, ListenAddress(address.host, listener.getsockname()[1])


# --- access ---------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class HttpGuard:
    """Rejects foreign web pages, and requests without the token if one is set."""

    token: str = ""

    def refusal(self, headers: Headers) -> Response | None:
        """The response that rejects the request; None accepts it.

        Without a token, Host must be a name of this machine: a page with DNS rebinding to 127.0.0.1 sends its own
        name. The Origin must be this machine or the requested host itself.
        """
        host = _hostname(f"//{headers.get('host', '')}")
        if not self.token and not is_loopback(host):
            return Response("Invalid Host header.\n", status_code=421)
        origin = headers.get("origin")
        if origin is not None and not (is_loopback(_hostname(origin)) or (host and _hostname(origin) == host)):
            return Response("Invalid Origin header.\n", status_code=403)
        said = headers.get("authorization", "")
        given = said[len(BEARER) :].strip() if said.lower().startswith(BEARER) else ""
        if self.token and not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return Response("The bearer token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return None


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _error(status: int, message: str, *, code: int = INVALID_REQUEST, **more: Any) -> Response:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, **more}})
    return Response(body, status_code=status, media_type="application/json")


# --- sessions -------------------------------------------------------------------------------------


@dataclass
class _HttpSession:
    """A session and its client's open requests."""

    transport: StreamableHTTPServerTransport
    _requests: int = 0
    _had_stream: bool = False
    _away_at: float | None = None

    @property
    def id(self) -> str:
        """The `Mcp-Session-Id`."""
        return str(self.transport.mcp_session_id)

    @property
    def away_s(self) -> float:
        """Seconds since its client left; 0 while it is, or may be, present: not all clients open a stream."""
        return 0.0 if self._away_at is None else anyio.current_time() - self._away_at

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request of the client; return its HTTP status, 0 without a response."""
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._had_stream |= scope["method"] == "GET" and status == 200  # noqa: PLR2004 - OK
            await send(message)

        self._requests, self._away_at = self._requests + 1, None
        try:
            await self.transport.handle_request(scope, receive, watched)
        finally:
            self._requests -= 1
            if self._had_stream and not self._requests:
                self._away_at = anyio.current_time()
                if (idle := self.transport.idle_scope) is not None:
                    idle.deadline = min(idle.deadline, self._away_at + _AWAY_S)
        return status


class HttpSessions:
    """The ASGI application: `initialize` opens a session; DELETE, idleness or the server's end closes it.

    A session whose client vanished ends earlier, and at once if a new session needs its place.
    """

    def __init__(self, server: Server[Any], *, guard: HttpGuard, max_sessions: int, idle_timeout_s: float) -> None:
        """Create the application; it serves requests within `running`."""
        self._server, self._guard = server, guard
        self._max_sessions, self._idle_timeout_s = max_sessions, idle_timeout_s
        self._sessions: dict[str, _HttpSession] = {}
        self._open = 0
        """Number of sessions that have, or may still have, a sandbox."""
        self._freed = anyio.Event()
        """Set, and replaced, when that number decreases."""
        self._group: TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run sessions within the block; at its exit all have ended and their sandboxes are removed."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for session in [*self._sessions.values()]:
                    await self._end(session)
                group.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        body = None if refusal else await _whole_body(receive)
        if isinstance(body, bytes):
            await self._serve(scope, body, receive, send)
        elif answer := refusal or body:
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if refusal := self._guard.refusal(headers):
            return refusal
        if scope["path"].rstrip("/") != PATH:
            return Response(f"Not found. The MCP endpoint is {PATH}.\n", status_code=404)
        if (version := headers.get(_VERSION_HEADER)) in {None, *HANDSHAKE_PROTOCOL_VERSIONS}:
            length = headers.get("content-length", "")[:20]
            is_too_large = length.isascii() and length.isdigit() and int(length) > MAX_BODY_BYTES
            return _too_large() if is_too_large else None
        # newer versions have no sessions and so no lasting sandbox: clients fall back to one that has
        return _error(
            400,
            "Unsupported protocol version: one with sessions is needed",
            code=UNSUPPORTED_PROTOCOL_VERSION,
            data={"supported": [*HANDSHAKE_PROTOCOL_VERSIONS], "requested": version},
        )

    async def _serve(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return first.pop() if first else await receive()

        wanted = Headers(scope=scope).get(MCP_SESSION_ID_HEADER)
        if wanted is not None and (session := self._sessions.get(wanted)) is not None:
            await session.handle(scope, again, send)
            if session.transport.is_terminated:
                self._sessions.pop(wanted, None)
            return
        if wanted is not None:
            refusal = _error(404, f"Unknown session {wanted[:80]!r}; it may have ended. Initialize a new one.")
        elif scope["method"] != "POST" or INITIALIZE not in body:
            refusal = _error(400, "This request names no session. Initialize one first.")
        else:
            await self._make_room()
            if self._open < self._max_sessions and self._group is not None:
                await self._serve_new(self._group, scope, again, send)
                return
            refusal = _error(503, f"{self._open} sessions are open, and no more are allowed (--max-sessions). End one.")
        await refusal(scope, receive, send)

    async def _serve_new(self, group: TaskGroup, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session for the request; end it again if the request is not a valid `initialize`."""
        session = _HttpSession(StreamableHTTPServerTransport(uuid4().hex, idle_timeout=self._idle_timeout_s))
        self._open += 1
        await group.start(self._live, session)
        status = 0
        try:
            status = await session.handle(scope, receive, send)
        finally:
            if not 0 < status < 400:  # noqa: PLR2004 - an HTTP error
                await self._end(session)

    async def _make_room(self) -> None:
        """If all places are taken, wait briefly for a free one, or take the place of a client that has left."""
        with anyio.move_on_after(_ENDING_S):
            while self._open >= self._max_sessions:
                away = max(self._sessions.values(), key=lambda session: session.away_s, default=None)
                none_is_ending = self._open == len(self._sessions)
                if away is not None and away.away_s >= SPARED_S and none_is_ending:
                    await self._end(away)
                elif none_is_ending and not (away and away.away_s):
                    return  # all places are in use
                with anyio.move_on_after(LOOK_S):
                    await self._freed.wait()

    async def _live(self, session: _HttpSession, *, task_status: TaskStatus[None]) -> None:
        """Run the session: a lifespan of the server, within which its sandbox may be created."""
        transport = session.transport
        try:
            async with transport.connect() as (incoming, outgoing):
                self._sessions[session.id] = session
                task_status.started()
                async with self._server.lifespan(self._server) as sandbox:
                    with transport.idle_scope or anyio.CancelScope():
                        await serve_loop(
                            self._server, incoming, outgoing, lifespan_state=sandbox, session_id=session.id
                        )
                    await self._end(session)
        except Exception:
            log.exception("session %s ended by a fault", session.id)
        finally:
            self._open -= 1
            self._freed.set()
            self._freed = anyio.Event()
            await self._end(session)

    async def _end(self, session: _HttpSession) -> None:
        self._sessions.pop(session.id, None)
        if not session.transport.is_terminated:
            with anyio.CancelScope(shield=True):
                await session.transport.terminate()


# --- connections ----------------------------------------------------------------------------------


async def _whole_body(receive: Receive) -> bytes | Response | None:
    """A request's body; the response if it stalls or is too large, None if the client has left."""
    body = bytearray()
    while len(body) <= MAX_BODY_BYTES:
        with anyio.move_on_after(BODY_S):
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False) and len(body) <= MAX_BODY_BYTES:
                return bytes(body)
            continue
        text = f"The rest of the request did not come within {BODY_S:g} s.\n"
        return Response(text, status_code=408, headers={"Connection": "close"})
    return _too_large()


def _too_large() -> Response:
    return Response(f"The request is larger than {MAX_BODY_BYTES} bytes.\n", 413, {"Connection": "close"})


class TimeoutProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's connection, closed if no request arrives."""

    def connection_made(self, transport: Any) -> None:
        """Start watching the connection."""
        super().connection_made(transport)
        self._look(seen=self)

    def _look(self, *, seen: object) -> None:
        """Close it if nothing happened since the last check: no request, or no next one after a response."""
        still = self.cycle is None or self.cycle.response_complete
        if still and seen is self.cycle:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(HEADERS_S, lambda now=self.cycle if still else self: self._look(seen=now))


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that handles no signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def serve_http(sessions: HttpSessions, listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until cancelled; calls ready when clients can connect."""
    config = uvicorn.Config(
        sessions, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=END_S,
        server_header=False, http=TimeoutProtocol, ws="none", log_level="error",
    )  # fmt: skip
    web = _Uvicorn(config)
    serving = asyncio.ensure_future(web.serve([listener]))
    try:
        async with sessions.running():
            ready()
            await asyncio.shield(serving)  # outlives our cancellation to close its connections cleanly
    finally:
        web.should_exit = True
        with anyio.CancelScope(shield=True):
            await serving
