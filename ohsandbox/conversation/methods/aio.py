"""The async methods of a conversation, and a run as a stream of events."""

from __future__ import annotations

import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio

from ohsandbox.arguments import check_wait
from ohsandbox.conversation.methods.time_travel import TimeTravel
from ohsandbox.conversation.run.run_thread import STOP_TIMEOUT_S
from ohsandbox.runtime.aio import in_thread, to_thread
from ohsandbox.runtime.process.cancellation import LOOK_EVERY_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from ohsandbox.conversation.run.result import RunResult
    from ohsandbox.conversation.run.run_thread import RunThread
    from ohsandbox.events import ConversationStatus, SDKEvent


class AsyncConversation(TimeTravel, ABC):
    """Async forms of the blocking methods of a conversation, for asyncio and trio: `async with`, `arun`, `stream`..."""

    _run_thread: RunThread

    # What `Conversation` implements, declared for mypy --strict: it accepts no other type of self in a base class
    # than a protocol, which would repeat the same signatures.

    @abstractmethod
    def start(self) -> Self: ...  # noqa: D102

    @abstractmethod
    def close(self) -> None: ...  # noqa: D102

    @abstractmethod
    def send_message(self, text: str, images: Sequence[str] = ()) -> None: ...  # noqa: D102

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> RunResult: ...  # noqa: D102

    @abstractmethod
    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> ConversationStatus: ...  # noqa: D102

    async def astart(self) -> Self:
        """Await `start`; if the task is cancelled meanwhile, close the conversation."""
        try:
            return await in_thread(self.start)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Await `close`; it completes even if the task is cancelled."""
        with anyio.CancelScope(shield=True):
            await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return await self.astart()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def asend_message(self, text: str, images: Sequence[str] = ()) -> None:
        """Await `send_message`. The run continues even if the task is cancelled: see `astop`."""
        await in_thread(partial(self.send_message, text, images))

    async def astop(self, timeout_s: float = STOP_TIMEOUT_S) -> ConversationStatus:
        """Await `stop`."""
        return await in_thread(partial(self.stop, timeout_s))

    async def afork(self, at: int | SDKEvent | None = None, *, workspace: Path | str | None = None) -> Self:
        """Await `fork`; it completes even if the task is cancelled."""
        return await in_thread(partial(self.fork, at, workspace=workspace))

    async def aundo(self, turns: int = 1) -> Self:
        """Await `undo`; it completes even if the task is cancelled."""
        return await in_thread(partial(self.undo, turns))

    async def aredo(self) -> Self:
        """Await `redo`; it completes even if the task is cancelled."""
        return await in_thread(self.redo)

    async def adiff(self, since: int | SDKEvent | None = None, until: int | SDKEvent | None = None) -> bytes:
        """Await `diff`; it completes even if the task is cancelled."""
        return await in_thread(partial(self.diff, since, until))

    async def arun(self, text: str, timeout_s: float | None = None) -> RunResult:
        """Await `run`; if the task is cancelled meanwhile, stop the run (`stop`) and wait for its end.

        Raises:
            OhsandboxError: as for `send_message`.
        """
        return await to_thread(self._run_until, text, timeout_s)

    async def stream(self, text: str) -> AsyncGenerator[SDKEvent, None]:
        """Send a message; yield each event after it is stored, from the message to the end of the run.

        Closing the generator (`aclose`, or `contextlib.aclosing`) or cancelling its task stops the run. So does leaving
        `async for` early, since asyncio closes the generator soon after.

        Raises:
            OhsandboxError: as for `send_message`.
        """
        items: queue.SimpleQueue[SDKEvent | BaseException | None] = queue.SimpleQueue()
        cancel = threading.Event()

        def run() -> None:
            try:
                self._run_until(text, None, cancel=cancel)
                items.put(None)
            except BaseException as error:  # noqa: BLE001 - raised by the generator
                items.put(error)

        thread = threading.Thread(target=run, name="ohsandbox-stream", daemon=True)
        self._log.listeners.register(items.put)
        try:
            thread.start()
            while (item := await to_thread(_next, items)) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            cancel.set()
            self._log.listeners.unregister(items.put)
            with anyio.CancelScope(shield=True):
                await in_thread(thread.join)

    def _run_until(self, text: str, timeout_s: float | None, *, cancel: threading.Event | None = None) -> RunResult:
        """Send a message and wait as `run` does, but stop once cancel is set."""
        check_wait(timeout_s=timeout_s)
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if cancel is None or not cancel.is_set():
            self.send_message(text)
        while not self._run_thread.wait(max(0.0, min(LOOK_EVERY_S, until - time.monotonic()))):
            if cancel is not None and cancel.is_set():
                self.stop()
                break
            if time.monotonic() >= until:
                break
        return self.wait(0)


def _next(
    items: queue.SimpleQueue[SDKEvent | BaseException | None], *, cancel: threading.Event | None = None
) -> SDKEvent | BaseException | None:
    while cancel is None or not cancel.is_set():
        try:
            return items.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            continue
    return None
