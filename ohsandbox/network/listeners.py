"""`Listeners`: functions that are called for each event.

Every sandbox has some, most of them without the modules of the network that call them, which import idna.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Generic, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
_logger = logging.getLogger(__name__)


class Listeners(Generic[P]):
    """Functions that are called for each event, in the order in which they were added. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._all: tuple[Callable[P, object], ...] = ()

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        with self._guard:
            self._all = (*self._all, listener)

        def remove() -> None:
            with self._guard:
                self._all = tuple(registered for registered in self._all if registered is not listener)

        return remove

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners in this thread; an exception of one is logged, and the others are called."""
        for listener in self._all:
            try:
                listener(*args, **kwargs)
            except Exception:
                _logger.exception("A listener of the network failed")
