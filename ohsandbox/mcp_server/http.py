"""The sandbox over MCP's Streamable HTTP: access control, and several concurrent sessions."""

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
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from ohsandbox.errors import UsageError
from ohsandbox.mcp_server.liveness import SPARED_S, HttpSession, TimeoutProtocol, notice_lost, with_whole_bodies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from anyio.abc import TaskGroup, TaskStatus
    from mcp.server.lowlevel import Server
    from starlette.types import Message, Receive, Scope, Send


BEARER = "bearer "


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
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
        if self.token and not self._knows(headers.get("authorization", "")):
            return Response("The bearer token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
        return None

    def _knows(self, authorization: str) -> bool:
        given = authorization[len(BEARER) :] if authorization.lower().startswith(BEARER) else ""
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token.encode())


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


log = logging.getLogger(__name__)

PATH = "/mcp"
INITIALIZE = b'"initialize"'
"""Occurs in the request that may open a session; the session itself rejects other requests that contain it."""

VERSION_HEADER = "mcp-protocol-version"

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The same as for a line over stdio."""

END_S = 2
"""Seconds for connections to close at the server's end."""

ENDING_S = 6.0
"""A new session waits this long for a free place: for the sandbox of an ended session (0.2 s, seldom more), or for a
session whose client has just left."""

LOOK_S = 0.5
"""The interval of checks for a free place."""

GONE = 404
FULL = 503


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
    notice_lost(listener)
    with listener:
        yield listener, ListenAddress(address.host, listener.getsockname()[1])


class HttpSessions:
    """The ASGI application: `initialize` opens a session; DELETE, idleness or the server's end closes it.

    A session whose client vanished ends earlier, and at once if a new session needs its place.
    """

    def __init__(self, server: Server[Any], *, guard: HttpGuard, max_sessions: int, idle_timeout_s: float) -> None:
        """Create it; it serves within `running`."""
        self._server = server
        self._guard = guard
        self._max_sessions = max_sessions
        self._idle_timeout_s = idle_timeout_s
        self._sessions: dict[str, HttpSession] = {}
        self._open = 0
        """Number of sessions that have, or may still have, a sandbox."""
        self._freed = anyio.Event()
        """Set, and replaced, when that number decreases."""
        self._group: TaskGroup | None = None
        self._limited = with_whole_bodies(RequestBodyLimitMiddleware(self._serve, MAX_BODY_BYTES))

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
        headers = Headers(scope=scope)
        refusal = self._guard.refusal(headers)
        if refusal is None and scope["path"].rstrip("/") != PATH:
            refusal = Response(f"Not found. The MCP endpoint is {PATH}.\n", status_code=GONE)
        if refusal is None and (version := headers.get(VERSION_HEADER)) not in {None, *HANDSHAKE_PROTOCOL_VERSIONS}:
            refusal = _sessions_only(str(version))
        await (refusal or self._limited)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = Headers(scope=scope).get(MCP_SESSION_ID_HEADER)
        if wanted is None:
            await self._serve_new(scope, receive, send)
        elif (session := self._sessions.get(wanted)) is None:
            await _error(GONE, f"Unknown session {wanted[:80]!r}; it may have ended. Initialize a new one.")(
                scope, receive, send
            )
        else:
            await session.handle(scope, receive, send)
            if session.transport.is_terminated:
                self._sessions.pop(wanted, None)

    async def _serve_new(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a session for the request; end it again if the request is no valid `initialize`."""
        request = Request(scope, receive)
        if request.method != "POST" or INITIALIZE not in await request.body():
            await _error(400, "This request names no session. Initialize one first.")(scope, receive, send)
            return
        await self._make_room()
        if self._open >= self._max_sessions or self._group is None:
            message = f"{self._open} sessions are open, and no more are allowed (--max-sessions). End one."
            await _error(FULL, message)(scope, receive, send)
            return
        session = HttpSession(StreamableHTTPServerTransport(uuid4().hex, idle_timeout=self._idle_timeout_s))
        self._open += 1
        await self._group.start(self._live, session)
        status = 0
        try:
            status = await session.handle(scope, _again(await request.body(), receive), send)
        finally:
            if not 0 < status < 400:  # noqa: PLR2004 - an HTTP error
                await self._end(session)

    async def _make_room(self) -> None:
        """If all places are taken, wait briefly for a free one, or take the place of a client that has left."""
        with anyio.move_on_after(ENDING_S):
            while self._open >= self._max_sessions:
                away = max(self._sessions.values(), key=lambda session: session.away_s, default=None)
                none_is_ending = self._open == len(self._sessions)
                if away is not None and away.away_s >= SPARED_S and none_is_ending:
                    await self._end(away)
                elif none_is_ending and not (away and away.away_s):
                    return  # all are in use
                with anyio.move_on_after(LOOK_S):
                    await self._freed.wait()

    async def _live(self, session: HttpSession, *, task_status: TaskStatus[None]) -> None:
        """Run the session: a lifespan of the server, within which its sandbox may be created."""
        transport = session.transport
        try:
            async with transport.connect() as (incoming, outgoing):
                self._sessions[session.id] = session
                task_status.started()
                async with self._server.lifespan(self._server) as hands:
                    with transport.idle_scope or anyio.CancelScope():
                        await serve_loop(self._server, incoming, outgoing, lifespan_state=hands, session_id=session.id)
                    await self._end(session)
        except Exception:
            log.exception("session %s ended by a fault", session.id)
        finally:
            self._open -= 1
            self._freed.set()
            self._freed = anyio.Event()
            await self._end(session)

    async def _end(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        if not session.transport.is_terminated:
            with anyio.CancelScope(shield=True):
                await session.transport.terminate()


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that handles no signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
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


def _again(body: bytes, receive: Receive) -> Receive:
    """A receive callable that replays the body read from it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _sessions_only(version: str) -> Response:
    """Reject newer versions, which have no sessions and so no lasting sandbox: clients fall back to one that has."""
    supported = [*HANDSHAKE_PROTOCOL_VERSIONS]
    data = {"supported": supported, "requested": version}
    message = "Unsupported protocol version: one with sessions is needed"
    return _error(400, message, code=UNSUPPORTED_PROTOCOL_VERSION, data=data)


def _error(status: int, message: str, *, code: int = INVALID_REQUEST, data: Any = None) -> Response:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(body, status_code=status, media_type="application/json")
