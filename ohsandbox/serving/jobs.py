"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Job(Generic[T]):
    """A call in a daemon thread of its own: one that hangs (a pull, a dead engine) holds up neither loop nor exit."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Begin at once; made on the loop that waits for it."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended = anyio.Event()
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="ohsandbox-serving", daemon=True).start()

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
