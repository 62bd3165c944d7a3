"""Slow or vanished HTTP clients: timeouts of requests and connections, sessions without a client."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


HEADERS_S = 10.0
"""Limit for a request's headers; enough for a bad connection."""

BODY_S = 20.0
"""The longest pause within a request's body."""

UNHEARD_S = 120.0
"""Time until unacknowledged data ends a connection; the kernel's default is a quarter of an hour. Streams send data
every 15 s."""


class TimeoutProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's connection, closed if no request arrives."""

    def connection_made(self, transport: Any) -> None:
        """Start watching it."""
        super().connection_made(transport)
        self._look(seen=self)

    def _look(self, *, seen: object) -> None:
        """Close it if nothing happened since the last check: no request, or no next one after a response."""
        still = self.cycle is None or self.cycle.response_complete
        if still and seen is self.cycle:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(HEADERS_S, lambda now=self.cycle if still else self: self._look(seen=now))


class _StalledError(Exception):
    """The request body stalled."""


class _GoneError(Exception):
    """The client disconnected before the end of the body."""


def with_whole_bodies(app: ASGIApp) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Wrap the application; a request with a stalled body gets 408, one with an aborted body gets no response."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        whole = False

        async def patient() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            with anyio.move_on_after(BODY_S):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                whole = not message.get("more_body", False)
                return message
            raise _StalledError

        try:
            await app(scope, patient, send)
        except _GoneError:
            return
        except _StalledError:
            text = f"The rest of the request did not come within {BODY_S:g} s.\n"
            await Response(text, status_code=408, headers={"Connection": "close"})(scope, receive, send)

    return wrapped


def notice_lost(listener: socket.socket) -> None:
    """Make the kernel end connections to machines that no longer respond, if supported (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_S * 1000))


AWAY_S = 300.0
"""Time for a client to come back that had a stream open and has nothing open now: it was killed or lost the connection.
Clients reopen the stream within a second or two; a broken proxy may prevent that."""

SPARED_S = 4.0
"""After this time a new session without a place may take the client's."""


@dataclass
class HttpSession:
    """A session and its client's open requests."""

    transport: StreamableHTTPServerTransport
    _open: int = 0
    _streamed: bool = False
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
                self._streamed |= scope["method"] == "GET" and status == 200  # noqa: PLR2004 - OK
            await send(message)

        self._open, self._away_at = self._open + 1, None
        try:
            await self.transport.handle_request(scope, receive, watched)
        finally:
            self._open -= 1
            if self._streamed and not self._open:
                self._go_away()
        return status

    def _go_away(self) -> None:
        self._away_at = anyio.current_time()
        if (idle := self.transport.idle_scope) is not None:
            idle.deadline = min(idle.deadline, self._away_at + AWAY_S)
