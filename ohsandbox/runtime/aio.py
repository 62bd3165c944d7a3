"""The async face of blocking methods: each awaited call runs in a thread of its own, and ends when it is cancelled.

There is one implementation, the blocking one. The threads are ours: `anyio.to_thread` takes longer to hand a call over.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from abc import ABC, abstractmethod
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

IDLE_S = 10.0
"""How long a thread waits for another call before it ends."""


async def to_thread(function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Await `function(*args, **options)` in a thread of its own; cancelling the task ends the call in the sandbox.

    function takes `cancel`, as `sandbox.run` and `sandbox.execute` do. The cancellation is raised after the call has
    ended, so nothing of it still runs then. Any number of calls run at once. For asyncio and trio.
    """
    cancel = threading.Event()
    given: Any = options.get("cancel")
    options["cancel"] = cancel if given is None else _EitherEvent(cancel, given)
    return await in_thread(partial(function, *args, **options), cancel)


async def in_thread(function: Callable[[], T], cancel: threading.Event | None = None) -> T:
    """Await `function()` in a thread; where the task is cancelled set cancel, and wait for its end all the same."""
    call = _Call(function)
    await call.begin()
    try:
        await call.wait()
    except BaseException:
        if cancel is not None:
            cancel.set()
        with anyio.CancelScope(shield=True):
            while not call.ended:
                with contextlib.suppress(asyncio.CancelledError):  # asyncio: cancelled twice
                    await call.wait()
        raise
    return call.result()


def cancellable(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The async form of a method that takes `cancel`; a subclass that overrides the method has it, too."""

    async def awaited(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)
        return await to_thread(bound, *args, **options)

    return _named(awaited, method)


def waited(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The async form of a method that cannot be cancelled: a cancelled task waits for its end."""

    async def awaited(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)
        return await in_thread(partial(bound, *args, **options))

    return _named(awaited, method)


def awaited(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The async form of a function; cancelling the task ends it where it takes `cancel`, else its end is waited for."""
    takes_cancel = "cancel" in inspect.signature(function).parameters

    async def call(*args: P.args, **options: P.kwargs) -> T:
        if takes_cancel:
            return await to_thread(function, *args, **options)
        return await in_thread(partial(function, *args, **options))

    return _named(call, function)


def _named(awaited: Callable[P, T], method: Callable[..., object]) -> Callable[P, T]:
    update_wrapper(awaited, method)
    vars(awaited).pop("__isabstractmethod__", None)
    awaited.__name__ = f"a{method.__name__}"
    awaited.__qualname__ = method.__qualname__.removesuffix(method.__name__) + awaited.__name__
    return awaited


class AsyncLifecycle(ABC):
    """`async with` for what has `start` and `close`."""

    start_cancel: threading.Event | None = None
    """Once it is set, `start` raises where it can; else a cancelled `astart` waits for its end."""

    @abstractmethod
    def start(self) -> Self: ...  # noqa: D102

    @abstractmethod
    def close(self, *, keep: bool | None = None) -> None: ...  # noqa: D102

    @abstractmethod
    def is_alive(self) -> bool: ...  # noqa: D102

    async def astart(self) -> Self:
        """Await `start`. Cancelled, it ends a pull or build, awaits the rest, and closes what it has started."""
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
        """Await `close`, to its end also where the task is cancelled."""
        with anyio.CancelScope(shield=True):
            await in_thread(partial(self.close, keep=keep))

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _EitherEvent(threading.Event):
    """Set once the task is cancelled or the caller's own event is set."""

    def __init__(self, ours: threading.Event, theirs: threading.Event) -> None:
        super().__init__()
        self._both = ours, theirs

    def is_set(self) -> bool:
        return any(event.is_set() for event in self._both)


class _Call(Generic[T]):
    """A function on its way through a thread, and its end, of which the event loop is told."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._context = function, contextvars.copy_context()
        self._loop = _asyncio_loop()
        self._outcome: Callable[[], T] | None = None
        self.ended = False

    async def begin(self) -> None:
        """Hand the function to a thread. `wait` follows before anything else is awaited."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._loop is None:
            self._token = anyio.lowlevel.current_token()
            self._event = anyio.Event()
        _idle_or_new().calls.put(self)

    async def wait(self) -> None:
        """Return at the end of the call."""
        if self._loop is None:
            await self._event.wait()
        else:
            self._woken = self._loop.create_future()
            await self._woken

    def result(self) -> T:
        """What the function returned; raises what it raised."""
        outcome, self._outcome = self._outcome, None
        assert outcome is not None  # noqa: S101 - the call has ended
        return outcome()

    def run(self) -> None:
        """Run the function, in the thread."""
        try:
            self._outcome = partial(_identity, self._context.run(self._function))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._outcome = partial(_raise, error)

    def tell(self) -> None:
        """Wake the task, from the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the result
            if self._loop is None:
                anyio.from_thread.run_sync(self._end, token=self._token)
            else:
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.ended = True
        if self._loop is None:
            self._event.set()
        elif not self._woken.done():
            self._woken.set_result(None)


class _Thread(threading.Thread):
    """Runs calls, one after another. A daemon: a call that hangs does not hold up the end of the program."""

    def __init__(self) -> None:
        super().__init__(name="ohsandbox-call", daemon=True)
        self.calls: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_S)
            except queue.Empty:
                with contextlib.suppress(ValueError):  # taken just now: a call is on its way
                    _idle.remove(self)
                    return
                continue
            call.run()
            _idle.append(self)
            call.tell()
            del call  # it holds the result


_idle: list[_Thread] = []


def _idle_or_new() -> _Thread:
    with contextlib.suppress(IndexError):
        while not (thread := _idle.pop()).is_alive():  # of the process that was forked
            pass
        return thread
    return _Thread()


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop of asyncio; None under another library, also one that is a guest of asyncio."""
    try:
        return asyncio.get_running_loop() if asyncio.current_task() else None
    except RuntimeError:
        return None


def _identity(value: T) -> T:
    return value


def _raise(error: BaseException) -> Any:
    raise error
