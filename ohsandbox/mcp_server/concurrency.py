"""Blocking work beside the event loop, and the order of a session's calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


T = TypeVar("T")


class BlockingCall(Generic[T]):
    """A call in a daemon thread of its own: one that hangs (a pull, a dead engine) holds up neither loop nor exit."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Begin at once; made on the loop that waits for it."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="ohsandbox-mcp-server", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether there is a result, or an error."""
        return self._ended.is_set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when timeout_s passed before it. Cancelling the wait leaves the work alone."""
        with anyio.move_on_after(timeout_s):
            await self._ended.wait()
        return self.ended

    async def result(self) -> T:
        """What it came to; raises what it raised."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended.set)


MAX_SIDE_BY_SIDE = 4
"""Of the calls that only read so many run at a time: more would only queue for the sandbox's cores."""


class _Ticket:
    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.called = anyio.Event()


class CallQueue:
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
