"""Blocking work outside the event loop, and the order of a session's calls."""

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
    """A call in its own daemon thread: one that hangs (a pull, a dead engine) blocks neither loop nor exit."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Start at once; create it on the loop that waits for it."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="ohsandbox-mcp-server", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether it has a result or an error."""
        return self._ended.is_set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False if timeout_s passed before it. Cancelling the wait does not cancel the work."""
        with anyio.move_on_after(timeout_s):
            await self._ended.wait()
        return self.ended

    async def result(self) -> T:
        """Return the call's result or raise its exception."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._ended.set)


MAX_SIDE_BY_SIDE = 4
"""Limit of concurrent read-only calls: more would only queue for the sandbox's cores."""


class _Ticket:
    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.called = anyio.Event()


class CallQueue:
    """Runs calls in the order of arrival; adjacent read-only calls run concurrently."""

    def __init__(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._running: set[_Ticket] = set()

    @contextlib.asynccontextmanager
    async def turn(self, *, reads: bool) -> AsyncIterator[None]:
        """Wait for the call's turn and hold it within the block; a caller cancelled while waiting leaves the queue."""
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
