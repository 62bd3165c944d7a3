"""HTTP clients that are slow or gone: timeouts of requests and connections, sessions without a client."""

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
"""In as long the head of a request comes, even over a bad line."""

BODY_S = 20.0
"""The longest pause within the body of one."""

UNHEARD_S = 120.0
"""What is sent to a machine that has gone away is given up after so long; the kernel's own patience is a quarter of an
hour. Streams are sent something every 15 s."""


class TimeoutProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """uvicorn's connection, closed where no request comes."""

    def connection_made(self, transport: Any) -> None:
        """Begin to watch it."""
        super().connection_made(transport)
        self._look(seen=self)

    def _look(self, *, seen: object) -> None:
        """Close it where it stood still since the last look: no request, or an answered one and no next."""
        still = self.cycle is None or self.cycle.response_complete
        if still and seen is self.cycle:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(HEADERS_S, lambda now=self.cycle if still else self: self._look(seen=now))


class _StalledError(Exception):
    """No more of the body came."""


class _GoneError(Exception):
    """The client left before all of the body had come."""


def with_whole_bodies(app: ASGIApp) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The same application; a request whose body stalls is answered with 408, and one that breaks off with nothing."""

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
    """Have the kernel end connections to machines that answer no more, where it can (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_S * 1000))


AWAY_S = 300.0
"""A client that had a stream open, and has nothing open any more, was killed or has lost its way: as long it may take
to come back. Clients open the stream anew within a second or two; a broken proxy may keep them from it."""

SPARED_S = 4.0
"""After as long its place is given to a new session that finds none."""


@dataclass
class HttpSession:
    """One, with what its client has open."""

    transport: StreamableHTTPServerTransport
    _open: int = 0
    _streamed: bool = False
    _away_at: float | None = None

    @property
    def id(self) -> str:
        """As the client names it."""
        return str(self.transport.mcp_session_id)

    @property
    def away_s(self) -> float:
        """How long its client has been away; 0 while it is there, or may be: not all open a stream."""
        return 0.0 if self._away_at is None else anyio.current_time() - self._away_at

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request of the client; its HTTP status, 0 where there was no answer."""
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
