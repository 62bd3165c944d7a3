"""The order of a session's calls."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_SIDE_BY_SIDE = 4
"""Of the calls that only read so many run at a time: more would only queue for the sandbox's cores."""


class _Ticket:
    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.called = anyio.Event()


class Turns:
    """Calls run in the order in which they came; neighbours that only read run side by side."""

    def __init__(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._running: set[_Ticket] = set()

    @contextlib.asynccontextmanager
    async def turn(self, *, reads: bool) -> AsyncIterator[None]:
        """Wait for one's turn, and have it within the block; who is cancelled while it waits leaves the queue."""
        mine = _Ticket(reads=reads)
        self._waiting.append(mine)
        self._call()
        try:
            await mine.called.wait()
            yield
        finally:
            self._running.discard(mine)
            with contextlib.suppress(ValueError):
                self._waiting.remove(mine)
            self._call()

    def _call(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            ticket = self._waiting.popleft()
            self._running.add(ticket)
            ticket.called.set()

    def _fits(self, ticket: _Ticket) -> bool:
        if not self._running:
            return True
        only_reads = ticket.reads and all(running.reads for running in self._running)
        return only_reads and len(self._running) < MAX_SIDE_BY_SIDE
