"""One asyncio event loop in a background thread for all MCP clients of the process, and the bridge to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_BLOCKING_CALLS = 32
"""Number of threads: starting and ending a process each block one; asyncio's default pool has six on two CPUs."""


class _BackgroundLoop:
    """An event loop that runs until the process ends, in a daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.SelectorEventLoop()
        pool = concurrent.futures.ThreadPoolExecutor(_BLOCKING_CALLS, thread_name_prefix="ohsandbox-mcp-call")
        self.loop.set_default_executor(pool)
        self._thread = threading.Thread(target=self.loop.run_forever, name="ohsandbox-mcp", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> concurrent.futures.Future[T]:
        """Schedule `fn(*args)` on the loop. Cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(fn(*args), self.loop)

    def call(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout_s: float | None = None) -> T:
        """Run `fn(*args)` on the loop and wait for it; Ctrl-C and the timeout cancel it there.

        Raises:
            TimeoutError: it did not finish within timeout_s seconds.
            RuntimeError: called from the loop's own thread, which would deadlock.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("call() from the MCP event loop itself would never return; await the coroutine there")
        future = self.submit(fn, *args)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise


_guard = threading.Lock()
_shared: _BackgroundLoop | None = None


def background_loop() -> _BackgroundLoop:
    """Return the loop of this process, created at first use; a forked child gets its own."""
    global _shared  # noqa: PLW0603 - the whole process shares one loop
    with _guard:
        if _shared is None or _shared.pid != os.getpid():
            _shared = _BackgroundLoop()
        return _shared


_detached: set[asyncio.Future[Any]] = set()
"""Keeps the tasks alive: asyncio has only weak references to them."""


def detach(work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Start work on the running loop; it continues even if the waiting caller is cancelled. `settle` waits for all."""
    task = asyncio.ensure_future(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def settle(timeout_s: float) -> None:
    """Wait until all detached work is done, at most timeout_s seconds."""
    deadline = time.monotonic() + timeout_s
    while _detached and (left := deadline - time.monotonic()) > 0:
        await asyncio.wait(set(_detached), timeout=left)
