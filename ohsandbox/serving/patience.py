"""How long a slow client is waited for over HTTP."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import Response
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS_S = 10.0
"""In as long the head of a request comes, even over a bad line."""

BODY_S = 20.0
"""The longest pause within the body of one."""

UNHEARD_S = 120.0
"""What is sent to a machine that has gone away is given up after so long; the kernel's own patience is a quarter of an
hour. Streams are sent something every 15 s."""


class Hasty(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
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
