"""`SandboxPool`: sandboxes that are started before they are needed."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from ohsandbox.arguments import expect, wrong
from ohsandbox.errors import OhsandboxError, SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.runtime.aio import in_thread, waited
from ohsandbox.runtime.factory import container_of
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S, check_not_cancelled
from ohsandbox.runtime.process.invocation import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime.base import Runtime

log = logging.getLogger(__name__)

_MAX_SIZE = 1000
STARTS_AT_ONCE = 2
"""Maximum number of concurrent starts: with more, an engine starts no more sandboxes a second, and delays other
requests.
"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Pauses after failed starts, each twice as long as the previous one."""
MAX_FAILURES = 6
"""Number of failed starts in a row after which the pool starts sandboxes only on request: 16 s after the first."""
_NOT_POOLED: Mapping[str, str] = {
    "attach": "a pool creates its sandboxes, and cannot join one",
    "copy": "a copy that is made now would be out of date when the sandbox is taken",
    "keep": "call `sandbox.close(keep=True)` on a sandbox that you have taken",
    "name": "each sandbox needs a name of its own",
    "workspace": "a directory is checked when it is bound; upload its files instead",
}
"""Options that a sandbox of a pool cannot have, with the reason."""


class SandboxPool:
    """Starts sandboxes ahead, so that taking one with a ready shell takes milliseconds.

    `get` returns each sandbox once, and it belongs to the caller: close it, or use it in a `with` block. For each one
    that is taken, another is started in the background. Sandboxes that have ended are never returned. `close` removes
    those that were not taken; if this process is killed, `ohsandbox gc` or the next start does.

    Args:
        image: as for `DockerRuntime`, python:3.12 by default.
        size: the number of sandboxes to keep ready, 1 to 1000.
        make: returns a runtime that is not started, instead of image and options; called in several threads.
        prepare: called with each started sandbox before it is ready, to install, upload or open sessions.
        options: options of `DockerRuntime`, except attach, copy, keep, name and workspace.

    Raises:
        UsageError: an argument or an option is invalid.
    """

    def __init__(
        self,
        image: str | None = None,
        size: int = 2,
        *,
        make: Callable[[], Runtime] | None = None,
        prepare: Callable[[Runtime], object] | None = None,
        **options: Any,
    ) -> None:
        expect("size", size, int, optional=False)
        if isinstance(size, bool) or not 1 <= size <= _MAX_SIZE:
            raise wrong("size", size, f"Give a number from 1 to {_MAX_SIZE}.")
        if make is not None and (image is not None or options):
            raise UsageError(
                f"make= makes the sandboxes, so {'image' if image else next(iter(options))}= has no effect. Omit it."
            )
        self._size = size
        self._make = make or _maker(image, options)
        self._prepare = prepare
        self._ready: deque[Runtime] = deque()
        self._starting: list[Runtime] = []
        self._waiting = self._threads = self._begun = self._failures = 0
        self._failure: Exception | None = None
        self._next_try = 0.0
        self._closed = False
        self._discards: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._pid = os.getpid()

    def start(self) -> Self:
        """Start sandboxes in the background; idempotent.

        Raises:
            SandboxGone: the pool is closed.
        """
        self._refuse_closed()  # before taking the lock, which another thread may have held at a fork
        with self._changed:
            self._refuse_closed()
            self._fill()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def ready(self) -> int:
        """Number of sandboxes that can be taken now without waiting."""
        return len(self._ready)

    def wait_full(self, timeout_s: float | None = None) -> bool:
        """Wait until all sandboxes are ready; return False after timeout_s seconds.

        Raises:
            OhsandboxError: as for `get`.
        """
        check_seconds(timeout_s=timeout_s)
        self._refuse_closed()
        with self._changed:
            return self._wait(lambda: len(self._ready) >= self._size, timeout_s)

    def get(self, *, timeout_s: float | None = None, cancel: threading.Event | None = None) -> Runtime:
        """Return a started sandbox with a ready shell, which belongs to the caller; wait for one if necessary.

        Args:
            timeout_s: maximum wait in seconds.
            cancel: when another thread sets it, the wait ends.

        Raises:
            SandboxUnavailable: none was ready within timeout_s, or the last start failed, for the reason in the
                message.
            SandboxGone: the pool is closed.
            UsageError: the engine refuses an option.
            CallCancelledError: cancel was set.
            Exception: any error of make or prepare.
        """
        check_seconds(timeout_s=timeout_s)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self.start()
        while True:
            with self._changed:
                remaining_s = None if until is None else until - time.monotonic()
                if not self._wait(lambda: bool(self._ready), remaining_s, cancel=cancel, takes=True):
                    raise SandboxUnavailable(
                        f"No sandbox of the pool was ready within {timeout_s:g} s. "
                        f"Use a larger size than {self._size}, or a longer timeout_s."
                    )
                taken = self._ready.popleft()
            try:
                if taken.is_warm() and taken.is_alive():
                    return taken
            finally:
                with self._changed:  # last: while an engine starts containers, it answers 10 times as slowly
                    self._fill()
            log.warning("A sandbox of the pool ended before it was taken; the next one is taken instead.")
            self._discard(taken)

    async def aget(self, *, timeout_s: float | None = None) -> Runtime:
        """Await `get`; if the task is cancelled, a sandbox that was taken goes back to the pool."""
        cancel = threading.Event()
        taken: list[Runtime] = []
        try:
            await in_thread(lambda: taken.append(self.get(timeout_s=timeout_s, cancel=cancel)), cancel)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            for runtime in taken:
                self._put(runtime)
            raise
        return taken[0]

    def close(self) -> None:
        """Remove the sandboxes that were not taken, and end starts in progress; idempotent.

        Taken sandboxes stay, for their users to close. In a forked process this does nothing.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for runtime in [*self._starting]:
                if runtime.start_cancel is not None:
                    runtime.start_cancel.set()
        helpers = [_in_background(self._remove_ready) for _ in range(STARTS_AT_ONCE)]
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)
        for thread in [*helpers, *self._discards]:
            thread.join()

    aclose = waited(close)

    # --- filling, in threads ---

    def _refuse_closed(self) -> None:
        if self._pid != os.getpid():  # both processes would return the same sandboxes
            raise SandboxGone("The pool of sandboxes belongs to the process before the fork. Make a new one.")
        if self._closed:
            raise SandboxGone("The pool of sandboxes is closed. Make a new SandboxPool.")

    def _wait(
        self,
        is_met: Callable[[], bool],
        timeout_s: float | None,
        *,
        cancel: threading.Event | None = None,
        takes: bool = False,
    ) -> bool:
        """Wait until is_met(), holding the lock; return False after timeout_s. takes: it needs one more sandbox."""
        before = self._failures
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._waiting += takes
        try:
            while not is_met():
                self._refuse_closed()
                check_not_cancelled(cancel, "waiting for a sandbox of the pool")
                if self._failure is not None and (self._failures != before or time.monotonic() < self._next_try):
                    raise self._failure
                self._fill()
                remaining_s = LOOK_EVERY_S if until is None else min(LOOK_EVERY_S, until - time.monotonic())
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)
        finally:
            self._waiting -= takes
        return True

    def _lacks(self) -> bool:
        """Whether another sandbox must be started."""
        with self._changed:
            return not self._closed and len(self._ready) + self._begun < self._size + self._waiting

    def _fill(self) -> None:
        """Start threads for the missing sandboxes, after a failure only one."""
        with self._changed:
            at_once = STARTS_AT_ONCE if self._failure is None else 1
            lacks = self._size + self._waiting - len(self._ready) - self._threads
            if self._closed or time.monotonic() < self._next_try:
                return
            for _ in range(min(lacks, at_once - self._threads)):
                self._threads += 1
                _in_background(self._start_some)

    def _start_some(self) -> None:
        """Start sandboxes until none is missing, or too many starts have failed."""
        try:
            while True:
                with self._changed:
                    if not self._lacks():
                        return
                    self._begun += 1
                try:
                    runtime, error = self._start_one(), None
                except Exception as failure:  # noqa: BLE001 - from the caller's `prepare`; `_wait` raises it there
                    runtime, error = None, failure
                finally:
                    with self._changed:
                        self._begun -= 1
                if runtime is not None:
                    self._put(runtime)
                elif error is not None and not self._goes_on_after(error):
                    return
        finally:
            with self._changed:
                self._threads -= 1
                self._changed.notify_all()

    def _start_one(self) -> Runtime:
        """Return a started sandbox with a shell; after a failure, nothing of it is left."""
        runtime = self._make()
        self._starting.append(runtime)
        try:
            self._refuse_closed()  # `close` cancels only those that are in the list already
            runtime.start()
            if self._prepare is not None:
                self._prepare(runtime)
            runtime.warm_up()
        except BaseException:
            _close(runtime)
            raise
        finally:
            self._starting.remove(runtime)
        return runtime

    def _put(self, runtime: Runtime) -> None:
        with self._changed:
            if not self._closed:
                self._failure, self._failures, self._next_try = None, 0, 0.0
                self._ready.append(runtime)
                self._changed.notify_all()
                self._fill()
                return
        _close(runtime)

    def _goes_on_after(self, error: Exception) -> bool:
        """Record a failed start and wait; return whether this thread tries again."""
        with self._changed:
            if self._closed:
                return False
            self._failure, self._failures = error, self._failures + 1
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1))
            is_final = isinstance(error, UsageError)
            self._next_try = math.inf if is_final else time.monotonic() + pause_s
            self._changed.notify_all()
            log.info("A sandbox of the pool could not be started: %s", error)
            if self._threads > 1 or self._failures >= MAX_FAILURES or is_final:
                return False
            self._changed.wait_for(lambda: self._closed, pause_s)
            return True

    def _discard(self, runtime: Runtime) -> None:
        with self._changed:
            self._discards = [thread for thread in self._discards if thread.is_alive()]
            self._discards.append(_in_background(partial(_close, runtime)))

    def _remove_ready(self) -> None:
        while True:
            with self._changed:
                if not self._ready:
                    return
                runtime = self._ready.popleft()
            _close(runtime)


def _maker(image: str | None, options: Mapping[str, Any]) -> Callable[[], Runtime]:
    for name, why in _NOT_POOLED.items():
        if options.get(name):
            raise UsageError(f"{name}= is not for a pool: {why}. Leave {name}= out.")
    make: Callable[[], Runtime] = partial(container_of, image, options)
    make()  # checks its arguments
    return make


def _close(runtime: Runtime) -> None:
    try:
        runtime.close()
    except OhsandboxError as error:
        log.warning("A sandbox of the pool is left behind; `ohsandbox gc` removes it: %s", error)


def _in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="ohsandbox-pool", daemon=True)
    thread.start()
    return thread
