"""An HTTP session, and whether its client is still there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import Message, Receive, Scope, Send

AWAY_S = 300.0
"""A client that had a stream open, and has nothing open any more, was killed or has lost its way: as long it may take
to come back. Clients open the stream anew within a second or two; a broken proxy may keep them from it."""

SPARED_S = 4.0
"""After as long its place is given to a new session that finds none."""


@dataclass
class Session:
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
