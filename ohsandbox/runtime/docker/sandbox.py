"""`Sandbox`: one container, ours or attached, and the settings of every process in it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime.docker.channel import DockerChannel
from ohsandbox.runtime.docker.container_config import PRIVATE_DIR
from ohsandbox.runtime.docker.exec import Exec, ExecRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.images import ImageFacts
    from ohsandbox.runtime.docker.lease import Lease
    from ohsandbox.runtime.docker.resolve import DockerOptions, ResolvedSandbox


class Sandbox(NamedTuple):
    """A container, and how processes are started in it. An attached one has lease, plan and facts None."""

    container: Container
    options: DockerOptions
    """The container's actual options; one created earlier may differ from the options requested now."""
    user: str
    workdir: str
    lease: Lease | None = None
    plan: ResolvedSandbox | None = None
    facts: ImageFacts | None = None
    exec_env: Mapping[str, str] = {}
    """Variables for every process, on top of the container's own."""
    unset: tuple[str, ...] = ()
    state_dir: str = PRIVATE_DIR
    exposed: tuple[str, ...] = ()
    """Access of an attached container beyond itself."""
    left_out: Mapping[str, str] = {}
    """Files of the copied directory that were left out, and the reason."""

    def open(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        workdir: str | None = None,
        check: bool = False,
    ) -> DockerChannel:
        """Start a process; check makes it report the facts for `selfcheck`.

        Raises:
            UnknownUserError, WorkdirMissingError, WorkdirNotADirectoryError: as named.
            UsageError: an argument holds a NUL or is over 128 KiB.
            SandboxUnavailable: the container is paused, stopped or gone.
        """
        start = ExecRequest(
            argv,
            tty=tty,
            env={**self.exec_env, **(env or {})},
            user=self.user if user is None else str(user),
            workdir=str(Path(self.workdir or "/") / (workdir or "")),
            elsewhere=workdir is None,
            unset=self.unset,
            check=check,
        )
        ours = self.container
        return DockerChannel(Exec(ours.engine, ours.id, start, loss=ours.loss, starting=ours.starting))

    def open_as_root(self, argv: Sequence[str]) -> DockerChannel:
        """Start a set-up step as root, in the root directory."""
        return self.open(argv, user="0", workdir="/")

    def open_as_user(self, argv: Sequence[str]) -> DockerChannel:
        """Start a process as the user, in the root directory, on a terminal."""
        return self.open(argv, workdir="/", tty=True)


_WAIT_AND_END = "trap '' HUP INT QUIT PIPE; while read -r line; do :; done; kill -TERM 1"
"""Runs as root, which an agent that runs as the calling user cannot signal. PID 1 of such a container ends on TERM."""

_AGAIN_S = 0.1
"""Pause after the watchdog was killed: by an agent that is root itself, or by us when we end all processes."""


class OwnerWatchdog:
    """Keeps a watchdog process in a sandbox while our process lives."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Start nothing yet."""
        self._sandbox = sandbox
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ohsandbox-host-watch", daemon=True)

    def start(self) -> None:
        """Start, in a separate thread, since this takes an exec of the engine."""
        self._thread.start()

    def leave(self) -> None:
        """Start no further watchdog. A running one ends with the container or with our process."""
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
