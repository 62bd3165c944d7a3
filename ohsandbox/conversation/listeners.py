"""Telling callbacks what happened: in the log's order, one at a time, whatever they do."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Listeners(Generic[T]):
    """A queue of things to tell. A callback that fails is logged; one that speaks up itself is told after."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[T], None]] = []
        self._queue: deque[T] = deque()
        self._guard = threading.Lock()
        self._busy = False

    def register(self, callback: Callable[[T], None]) -> None:
        """Tell callback everything from now on, in whichever thread it happens."""
        with self._guard:
            self._callbacks.append(callback)

    def put(self, item: T) -> None:
        """Queue an item; `flush` tells it."""
        self._queue.append(item)

    def flush(self) -> None:
        """Tell what is queued; at once a no-op where another call is at it, which then tells this too."""
        while True:
            with self._guard:
                if self._busy or not self._queue:
                    return
                self._busy = True
                item = self._queue.popleft()
                callbacks = list(self._callbacks)
            try:
                self._tell(item, callbacks)
            finally:
                with self._guard:
                    self._busy = False

    def _tell(self, item: T, callbacks: list[Callable[[T], None]]) -> None:
        for callback in callbacks:
            try:
                callback(item)
            except Exception:  # noqa: BLE001 - a faulty callback must not end the run
                _log.exception("A callback failed; the conversation goes on.")
