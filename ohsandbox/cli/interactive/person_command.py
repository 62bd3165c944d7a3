"""A command that the person runs in the sandbox with `!`: in a thread, so that nothing else waits for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import output

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import CommandObservation

PERSON = "person"
"""The shell of `!` commands: it has a directory of its own, and the agent's is left alone."""
MAX_LIVE_ROWS, MAX_LIVE_CHARS = 6, 4000


class PersonCommand:
    """It runs from the beginning until it has ended, or was canceled."""

    def __init__(self, runtime: Runtime, command: str) -> None:
        self.command = command
        self.error: BaseException | None = None
        """What `execute` raised; once it is over."""
        self.seen: CommandObservation | None = None
        """What it gave; None before it is over, or after an error."""
        self.seconds = 0.0
        self._began, self._cancel, self._over = time.monotonic(), threading.Event(), threading.Event()
        self._tail = ""
        threading.Thread(target=self._run, args=(runtime,), name="ohsandbox-person", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """It has ended."""
        return self._over.is_set()

    @property
    def live(self) -> str:
        """The last rows that it has printed so far, safe to print."""
        return "\n".join(output(self._tail).rstrip("\n").split("\n")[-MAX_LIVE_ROWS:])

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it has come."""
        return self._over.wait(timeout_s)

    def cancel(self) -> None:
        """Have it end."""
        self._cancel.set()

    def _run(self, runtime: Runtime) -> None:
        try:
            self.seen = runtime.execute(self.command, session=PERSON, on_output=self._hear, cancel=self._cancel)
        except BaseException as error:  # noqa: BLE001 - it is raised where the person waits
            self.error = error
        self.seconds = time.monotonic() - self._began
        self._over.set()

    def _hear(self, text: str) -> None:
        self._tail = (self._tail + text)[-MAX_LIVE_CHARS:]
