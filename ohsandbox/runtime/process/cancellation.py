"""Ending a call from outside: calls and transfers take `cancel`, a `threading.Event` that any thread may set.

    stop = threading.Event()
    threading.Timer(5, stop.set).start()
    sandbox.run(["make"], cancel=stop).cancelled

The event is polled: setting it never blocks, and one event may be passed to many calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ohsandbox.errors import CallCancelledError, OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.channel import Channel

T = TypeVar("T")

LOOK_EVERY_S = 0.05
"""Twenty polls a second cost 0.1 % of a core; a cancelled process has to be gone within a second."""


@contextlib.contextmanager
def killing(cancel: threading.Event | None) -> Iterator[Callable[[Channel], Channel]]:
    """Yield a function that registers a channel; once cancel is set, the registered channels' processes are killed.

    Raises:
        CallCancelledError: cancel was set before the start, or the body failed after it was set.
    """
    if cancel is None:
        yield lambda channel: channel
        return
    channels: list[Channel] = []
    over = threading.Event()
    if cancel.is_set():
        raise CallCancelledError("Cancelled before it began; nothing was copied")
    threading.Thread(target=_kill_once, args=(cancel, channels, over), name="ohsandbox-cancel", daemon=True).start()
    try:
        yield partial(_kept, channels)
    except (OhsandboxError, OSError) as error:
        if cancel.is_set():
            raise CallCancelledError("Cancelled while it was copied; a part of it may have arrived") from error
        raise
    finally:
        over.set()


def _kept(channels: list[Channel], channel: Channel) -> Channel:
    channels.append(channel)
    return channel


def _kill_once(cancel: threading.Event, channels: list[Channel], over: threading.Event) -> None:
    while not over.wait(LOOK_EVERY_S):
        if cancel.is_set() and channels:
            for channel in channels:
                with contextlib.suppress(OhsandboxError, OSError):
                    channel.kill()
            return


async def to_thread(function: Callable[..., T], /, *args: Any, **options: Any) -> T:
    """Await `function(*args, **options)` in a thread of its own; cancelling the task ends the call in the sandbox.

    function takes `cancel`, as `sandbox.run` and `sandbox.execute` do. CancelledError is raised after the call has
    ended, so nothing of it still runs then. No thread of asyncio's pool is used: the pool has few, and a call that
    waits for one could not be cancelled.
    """
    cancel, loop = threading.Event(), asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    call = partial(contextvars.copy_context().run, partial(function, *args, **options, cancel=cancel))
    threading.Thread(target=_settle, args=(loop, done, call), name="ohsandbox-call", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        cancel.set()
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):  # cancelled twice: the call ends within a second
                await asyncio.wait([done])
        done.exception()  # retrieved: asyncio logs an exception that is never retrieved
        raise


def _settle(loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], call: Callable[[], T]) -> None:
    try:
        finish = partial(done.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        finish = partial(done.set_exception, error)
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits the result
        loop.call_soon_threadsafe(finish)
