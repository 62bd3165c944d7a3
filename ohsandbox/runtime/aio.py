"""Async forms of blocking methods: a long awaited call runs in a thread, and ends when it is cancelled.

Only the blocking methods are implemented. A short call is begun and finished by the same code in the event loop's own
thread, where it does not block (`Begun`), since two threads that wake each other cost 0.1 to 0.25 ms. The threads are
ours: `anyio.to_thread` takes longer to pass a call to a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

IDLE_S = 10.0
"""Seconds that an idle thread waits for another call before it ends."""
POLL_S = 0.05
"""Seconds between checks of `cancel` by a thread that waits for it."""
AT_ONCE_S = 0.05
"""Seconds for which a call is awaited without a thread, at most twice that. Its limits are not checked meanwhile."""
AT_ONCE_BYTES = 64 * 1024
"""Bytes of output up to which it is handled in the event loop's thread, in less than a millisecond."""


async def to_thread(function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Await `function(*args, **options)` in a thread of its own; cancelling the task ends the call in the sandbox.

    function takes `cancel`, as `sandbox.run` and `sandbox.execute` do. The cancellation is raised after the call has
    ended, so none of its processes still run then. Any number of calls run concurrently. For asyncio and trio.
    """
    cancel = _add_cancel(options)
    return await in_thread(partial(function, *args, **options), cancel)


async def in_thread(function: Callable[[], T], cancel: threading.Event | None = None) -> T:
    """Await `function()` in a thread; if the task is cancelled, set cancel and still wait for its end."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    call = _AwaitedCall(partial(contextvars.copy_context().run, function))
    call.start()
    return await call.result(cancel)


def cancellable(
    method: Callable[Concatenate[S, P], T], begin: Callable[..., Begun[T] | None] | None = None
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the async form of a method that takes `cancel`; it calls the method that a subclass overrides.

    begin takes the same arguments and begins the call without blocking; if it returns None, a thread runs the method.
    """

    async def awaited(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)
        cancel = _add_cancel(options)
        if begin is not None and getattr(bound, "__func__", None) is method:
            if _asyncio_loop() is None:  # asyncio's own check comes with the first await, and ends what was begun
                await anyio.lowlevel.checkpoint_if_cancelled()
            if (pending := begin(self, *args, **options)) is not None:
                return await pending.result(cancel)
        return await in_thread(partial(bound, *args, **options), cancel)

    return _named(awaited, method)


def waited(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the async form of a method that cannot be cancelled: a cancelled task waits for its end."""

    async def awaited(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)
        return await in_thread(partial(bound, *args, **options))

    return _named(awaited, method)


def awaited(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async form of a function; a cancelled task waits for its end, and sets `cancel` if it takes it."""
    takes_cancel = "cancel" in inspect.signature(function).parameters

    async def call(*args: P.args, **options: P.kwargs) -> T:
        if takes_cancel:
            return await to_thread(function, *args, **options)
        return await in_thread(partial(function, *args, **options))

    return _named(call, function)


def is_short(timeout_s: float | None) -> bool:
    """Whether a time limit may pass before a thread checks it."""
    return timeout_s is not None and timeout_s <= AT_ONCE_S


def _named(awaited: Callable[P, T], method: Callable[..., object]) -> Callable[P, T]:
    update_wrapper(awaited, method)
    vars(awaited).pop("__isabstractmethod__", None)
    awaited.__name__ = f"a{method.__name__}"
    awaited.__qualname__ = method.__qualname__.removesuffix(method.__name__) + awaited.__name__
    return awaited


def _add_cancel(options: Any) -> threading.Event:
    """Replace the options' `cancel` by an event that is also set once theirs is, and return it."""
    options["cancel"] = cancel = _Cancel(options.get("cancel"))
    return cancel


class AsyncLifecycle(ABC):
    """`async with` for classes with `start` and `close`."""

    start_cancel: threading.Event | None = None
    """An event that makes `start` raise if it can; None: a cancelled `astart` waits for its end."""

    @abstractmethod
    def start(self) -> Self: ...  # noqa: D102

    @abstractmethod
    def close(self, *, keep: bool | None = None) -> None: ...  # noqa: D102

    @abstractmethod
    def is_alive(self) -> bool: ...  # noqa: D102

    async def astart(self) -> Self:
        """Await `start`. When cancelled, end a pull or build, await the rest, and close what it has started."""
        was_alive = await in_thread(self.is_alive)
        try:
            return await in_thread(self.start, self.start_cancel)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            if self.start_cancel is not None:
                self.start_cancel.clear()
            if not was_alive:
                await self.aclose()
            raise

    async def aclose(self, *, keep: bool | None = None) -> None:
        """Await `close`, to its end even if the task is cancelled."""
        with anyio.CancelScope(shield=True):
            await in_thread(partial(self.close, keep=keep))

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Cancel(threading.Event):
    """An event that is set once the task is cancelled or the caller's own event is set. Even `wait` polls it."""

    def __init__(self, theirs: threading.Event | None) -> None:
        """Omit an Event's lock and condition, which would be the slowest objects of an awaited call."""
        self._ours, self._theirs = False, theirs

    def is_set(self) -> bool:
        return self._ours or (self._theirs is not None and self._theirs.is_set())

    def set(self) -> None:
        self._ours = True

    def wait(self, timeout: float | None = None) -> bool:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
        return self.is_set()


class Signal:
    """Wakes the task that awaits it.

    It is created in an event loop and set from any thread; each wait consumes one signal.
    """

    def __init__(self) -> None:
        self._loop = _asyncio_loop()
        self._was_set = False
        self._wake: Callable[[], object] | None = None
        if self._loop is None:
            trio: Any = anyio.lowlevel.current_token().native_token
            self._soon: Callable[[Callable[[], None]], object] = trio.run_sync_soon
        else:
            self._soon = self._loop.call_soon_threadsafe

    def set(self) -> None:
        """Wake the task, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
            self._soon(self.set_here)

    def set_here(self) -> None:
        """Wake the task, from the event loop's thread."""
        self._was_set = True
        if self._wake is not None:
            self._wake()

    async def wait(self, *, at_once: bool = False) -> None:
        """Return once it is set; with at_once, also after AT_ONCE_S at least and twice that at most."""
        if not self._was_set and self._loop is None:
            event = anyio.Event()
            self._wake = event.set
            with anyio.move_on_after(AT_ONCE_S if at_once else None):
                await event.wait()
        elif not self._was_set and self._loop is not None:  # a future and a timer are faster than anyio's
            future = self._loop.create_future()
            self._wake = partial(_resolve, future)
            if at_once:
                _alarm_of(self._loop).watch(future)
            await future
        self._wake, self._was_set = None, False


class _Alarm:
    """Resolves futures of one event loop that have waited for AT_ONCE_S, with one timer for all of them.

    A timer for each call would cost 4 us, and nearly every call ends before it needs one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()

    def watch(self, future: asyncio.Future[None]) -> None:
        """Resolve the future after AT_ONCE_S, at most twice that."""
        if not self._waiting:
            self._look_later()
        self._waiting.append((time.monotonic() + AT_ONCE_S, future))

    def _look_later(self) -> None:
        if (loop := self._loop()) is not None:
            loop.call_later(AT_ONCE_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= now):
            _resolve(self._waiting.popleft()[1])
        if self._waiting:
            self._look_later()


_alarms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Alarm] = weakref.WeakKeyDictionary()


def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    if (alarm := _alarms.get(loop)) is None:
        alarm = _alarms[loop] = _Alarm(loop)
    return alarm


async def when_readable(descriptor: int, is_over: Callable[[], bool], signal: Signal) -> None:
    """Call is_over() whenever the descriptor can be read, until it returns True, for at most AT_ONCE_S seconds."""
    if (loop := _asyncio_loop()) is None:
        with anyio.move_on_after(AT_ONCE_S):
            await anyio.wait_readable(descriptor)
            while not is_over():
                await anyio.wait_readable(descriptor)
        return

    def arrived() -> None:
        if is_over():
            signal.set_here()

    loop.add_reader(descriptor, arrived)
    try:
        await signal.wait(at_once=True)
    finally:
        loop.remove_reader(descriptor)


class _AwaitedCall(Generic[T]):
    """A function that is run once, in a thread or in an event loop, where its end is awaited."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._todo = [function]
        self._outcome: Callable[[], T] | None = None
        self.signal = Signal()

    def claim(self) -> Callable[[], T] | None:
        """Return the function to the first caller, None to the others."""
        try:
            return self._todo.pop()
        except IndexError:
            return None

    def start(self) -> None:
        """Start a thread that runs the function, unless it runs already; from any thread."""
        if (function := self.claim()) is not None:
            _idle_or_new().calls.put((self, function))

    def run(self, function: Callable[[], T]) -> None:
        """Run the function, in the thread."""
        try:
            self._outcome = partial(_identity, function())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._outcome = partial(_raise, error)

    async def result(self, cancel: threading.Event | None) -> T:
        """Await and return the function's result; if the task is cancelled, set cancel and still await its end."""
        try:
            while self._outcome is None:
                await self.signal.wait()
        except BaseException:
            await self.give_up(cancel)
            raise
        outcome, self._outcome = self._outcome, None
        return outcome()

    async def give_up(self, cancel: threading.Event | None) -> None:
        """Set cancel, and await the end of the call in its thread."""
        if cancel is not None:
            cancel.set()
        self.start()
        with anyio.CancelScope(shield=True):
            while self._outcome is None:
                with contextlib.suppress(asyncio.CancelledError):  # asyncio: cancelled twice
                    await self.signal.wait()


class Begun(_AwaitedCall[T]):
    """A call that an event loop has begun.

    Another thread that waits for the call's end must `start` it, since the event loop may wait for that thread.
    """

    def __init__(self, ready: Callable[[Signal], Awaitable[bool]], finish: Callable[[], T]) -> None:
        """Store finish(), which completes the call; ready(signal) is awaited first: whether finish() then never blocks.

        ready may be cancelled at any time and raises no exception of its own.
        """
        super().__init__(finish)
        self._ready = ready

    async def result(self, cancel: threading.Event | None) -> T:
        """See `_AwaitedCall.result`."""
        try:
            is_ready = await self._ready(self.signal)
        except BaseException:
            await self.give_up(cancel)
            raise
        if is_ready and (function := self.claim()) is not None:
            return function()
        self.start()
        return await super().result(cancel)


class _Thread(threading.Thread):
    """Runs calls, one after another. It is a daemon thread: a call that hangs does not delay the program's end."""

    def __init__(self) -> None:
        super().__init__(name="ohsandbox-call", daemon=True)
        self.calls: queue.SimpleQueue[tuple[_AwaitedCall[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            try:
                call, function = self.calls.get(timeout=IDLE_S)
            except queue.Empty:
                with contextlib.suppress(ValueError):  # taken just now: a call is on its way
                    _idle.remove(self)
                    return
                continue
            call.run(function)
            _idle.append(self)
            call.signal.set()
            del call, function  # they hold the result


_idle: list[_Thread] = []


def _idle_or_new() -> _Thread:
    with contextlib.suppress(IndexError):
        while not (thread := _idle.pop()).is_alive():  # of the process that was forked
            pass
        return thread
    return _Thread()


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop of asyncio; None under another library, even if that runs as a guest of asyncio."""
    try:
        return asyncio.get_running_loop() if asyncio.current_task() else None
    except RuntimeError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _identity(value: T) -> T:
    return value


def _raise(error: BaseException) -> Any:
    raise error
