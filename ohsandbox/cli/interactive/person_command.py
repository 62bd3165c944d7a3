"""`PersonCommand`: a command that the person runs in the sandbox with `!`, and the end of its output so far."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import output

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.results import CommandObservation

PERSON = "person"
"""Session name of the shell for `!` commands; its directory is separate from the agent's."""
MAX_LIVE_ROWS, MAX_LIVE_CHARS = 6, 4000


class PersonCommand:
    """A `!` command, which runs from construction until it ends or is canceled."""

    def __init__(self, runtime: Runtime, command: str) -> None:
        self.command = command
        self.error: BaseException | None = None
        """The error that `execute` raised, once the command is over."""
        self.seen: CommandObservation | None = None
        """The command's result; None before it is over or after an error."""
        self.seconds = 0.0
        self._began, self._cancel, self._over = time.monotonic(), threading.Event(), threading.Event()
        self._tail = ""
        threading.Thread(target=self._run, args=(runtime,), name="ohsandbox-person", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True once the command has ended."""
        return self._over.is_set()

    @property
    def live(self) -> str:
        """Return the last rows of output so far, safe to print."""
        return "\n".join(output(self._tail).rstrip("\n").split("\n")[-MAX_LIVE_ROWS:])

    def wait(self, timeout_s: float) -> bool:
        """Wait up to timeout_s for the end; return whether it has come."""
        return self._over.wait(timeout_s)

    def cancel(self) -> None:
        """Cancel the command."""
        self._cancel.set()

    def _run(self, runtime: Runtime) -> None:
        try:
            self.seen = runtime.execute(self.command, session=PERSON, on_output=self._on_output, cancel=self._cancel)
        except BaseException as error:  # noqa: BLE001 - it is raised where the person waits
            self.error = error
        self.seconds = time.monotonic() - self._began
        self._over.set()

    def _on_output(self, text: str) -> None:
        self._tail = (self._tail + text)[-MAX_LIVE_CHARS:]
