"""A sandbox with a bound workspace ends with the process that holds it, however that dies.

What an agent put into the background would else go on changing a person's files, unseen, for as long as the container
waits to be resumed. A process in the container waits for the end of its standard input, which the engine closes when
our connection breaks (kill -9 too), and then ends PID 1, and with it all processes. The container's files stay.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.sandbox import Sandbox

_WAIT_AND_END = "trap '' HUP INT QUIT PIPE; while read -r line; do :; done; kill -TERM 1"
"""As root, whom an agent that runs as the person cannot signal. PID 1 of such a container obeys TERM (spec.py)."""

_AGAIN_S = 0.1
"""After the watch was killed: by an agent that is root itself, or by us when we end all processes."""


class HostWatch:
    """Keeps one in a sandbox while we live."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Nothing is started yet."""
        self._sandbox = sandbox
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ohsandbox-host-watch", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own: it takes an exec of the engine."""
        self._thread.start()

    def leave(self) -> None:
        """Begin no more. One that is there ends with the container, or with us."""
        self._over.set()

    def _keep(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(OhsandboxError, OSError),
                self._sandbox.open_as_root(["/bin/sh", "-c", _WAIT_AND_END]) as channel,
            ):
                while channel.read():
                    pass
            if self._over.wait(_AGAIN_S) or self._sandbox.container.loss() is not None:
                return
