"""The event loop of the network: one daemon thread of the process serves the connections of all its sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ohsandbox.background_loop import BackgroundLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")

_shared = BackgroundLoop("ohsandbox-network")


def get_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; it is started at first use, and again in a forked process."""
    return _shared.get()


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and return its result; from any thread but the loop's own."""
    return asyncio.run_coroutine_threadsafe(work, get_loop()).result()


@contextlib.asynccontextmanager
async def side_by_side(*ways: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run tasks during the block: those that still run at its end are cancelled and awaited."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_daemon_thread(function: Callable[[], T], name: str = "ohsandbox-network-call") -> T:
    """Await a blocking function in a daemon thread of its own: one that hangs does not hold up the program's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type] # None where T is None
        else:
            future.set_exception(error)

    def call() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (function(), None)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=call, name=name, daemon=True).start()
    return await future
