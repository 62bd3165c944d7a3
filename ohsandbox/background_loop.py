"""`BackgroundLoop`: an asyncio event loop in a daemon thread, which a forked process starts anew."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that starts at first use and runs until the process ends; a module makes one for the process."""

    def __init__(self, name: str, *, blocking_calls: int | None = None) -> None:
        """Store the name of the thread, and the number of threads for blocking calls; None is asyncio's default."""
        self._name, self._blocking_calls = name, blocking_calls
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget the loop: its thread does not exist in a forked process, where the lock may be held for ever."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the running loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.SelectorEventLoop()
                if self._blocking_calls is not None:
                    pool = ThreadPoolExecutor(self._blocking_calls, thread_name_prefix=f"{self._name}-call")
                    self._loop.set_default_executor(pool)
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Schedule `fn(*args)` on the loop. Cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(fn(*args), self.get())

    def call(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout_s: float | None = None) -> T:
        """Run `fn(*args)` on the loop and wait for it; Ctrl-C and the timeout cancel it there.

        Raises:
            TimeoutError: it did not finish within timeout_s seconds.
            RuntimeError: called from the loop's own thread, which would deadlock.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"call() from the event loop {self._name} would never return; await the coroutine there")
        future = self.submit(fn, *args)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise
