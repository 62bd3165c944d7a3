"""Finds by itself that a server in the sandbox has begun to listen, and tells it once, in one line."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ohsandbox.runtime.base import Runtime

LOOKS_S = (0.3, 1.0, 3.0)
"""After a call began or ended: a server needs a moment to start. A look takes 5 ms."""
SLOW_S = 3.0
"""Between looks while the agent works."""
CLOSE_S = 1.0
"""So long a look is waited for at the end; it takes longer only where the sandbox hangs."""
MAX_TOLD = 64
"""A sandbox that opens more ports wants to be noticed, and is looked at no more."""
MAX_IN_A_LINE = 6
FIRST_EPHEMERAL = 32768
"""From here on the kernel chooses ports by itself (ip_local_port_range): nobody asked for such a one by its number."""


class PortWatch:
    """Looks at the sandbox's ports in a thread of its own while the agent works, and for a moment after each call.

    Where nothing is called, nothing is asked.
    """

    def __init__(
        self,
        runtime: Runtime,
        tell: Callable[[str], None],
        *,
        is_running: Callable[[], bool],
        forwarded: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Start nothing yet.

        Args:
            runtime: a sandbox that runs.
            tell: is given a line, in the watch's thread.
            is_running: whether calls may run, so that it goes on looking.
            forwarded: ports that need not be told.
        """
        self._runtime, self._tell, self._is_running, self._forwarded = runtime, tell, is_running, forwarded
        self._told: set[int] = set()
        self._looks: list[float] = []
        """When to look, by the monotonic clock."""
        self._changed = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def nudge(self) -> None:
        """A call has begun or ended: a server that it starts is on its way."""
        now = time.monotonic()
        with self._changed:
            self._looks = [now + later for later in LOOKS_S]
            self._changed.notify()
            if self._thread is None and not self._is_over:
                self._thread = threading.Thread(target=self._watch, name="ohsandbox-ports", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Look no more. A look that is under way is waited for, where the sandbox answers."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _watch(self) -> None:
        while self._is_due():
            with contextlib.suppress(OhsandboxError):  # who uses the sandbox is told, in words
                if self._runtime.is_alive():  # a dead one is brought back by who uses it
                    self.look()

    def _is_due(self) -> bool:
        """Wait for the next look; False where there is none any more."""
        with self._changed:
            while not self._is_over and len(self._told) < MAX_TOLD:
                now = time.monotonic()
                if not self._looks and self._is_running():
                    self._looks = [now + SLOW_S]
                if self._looks and self._looks[0] <= now:
                    self._looks = [one for one in self._looks if one > now]
                    return True
                self._changed.wait(self._looks[0] - now if self._looks else None)
        return False

    def look(self) -> None:
        """Tell what listens and was not told before.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        found = [port for port in self._runtime.listening_ports() if port < FIRST_EPHEMERAL and port not in self._told]
        self._told.update(found)
        ports = [port for port in found if port not in self._forwarded()]
        if ports and not self._is_over:
            self._tell(listening_line(ports))


def listening_line(ports: Collection[int]) -> str:
    """What a person is told of ports on which somebody has begun to listen."""
    first, *_ = ports
    if len(ports) == 1:
        return f"listening on {first}: /forward {first} shows it to your browser"
    shown = ", ".join(map(str, [*ports][:MAX_IN_A_LINE]))
    more = f" and {len(ports) - MAX_IN_A_LINE} more" if len(ports) > MAX_IN_A_LINE else ""
    return f"listening on {shown}{more}: /forward {first} shows one to your browser"
