"""`Deadline`: ends what a run waits for when its time is up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

CUT_EVERY_S = 0.5
"""A cut can come before the command it is meant for; it is repeated until the run has ended."""


class Deadline:
    """While entered: once the time has passed, cuts again and again until it is left."""

    def __init__(self, seconds: float | None, cut: Callable[[], None]) -> None:
        """Call cut, in a thread of our own, when so many seconds have passed; None never does. cut must end soon."""
        self.passed = False
        self._seconds = seconds
        self._cut = cut
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="ohsandbox-deadline", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """No cut comes after this."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        wait_s = min(max(0.0, self._seconds or 0.0), threading.TIMEOUT_MAX)
        while not self._left.wait(wait_s):
            self.passed = True
            self._cut()
            wait_s = CUT_EVERY_S
