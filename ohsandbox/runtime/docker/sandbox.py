"""`Sandbox`: one container of ours, or one that was joined, and what every process in it gets."""

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
    """As the container is; where it was made earlier, that may not be what is asked for now."""
    user: str
    workdir: str
    lease: Lease | None = None
    plan: ResolvedSandbox | None = None
    facts: ImageFacts | None = None
    exec_env: Mapping[str, str] = {}
    """For every process, above the container's own."""
    unset: tuple[str, ...] = ()
    state_dir: str = PRIVATE_DIR
    exposed: tuple[str, ...] = ()
    """What one that was joined reaches beyond itself."""
    left_out: Mapping[str, str] = {}
    """What of the directory that was copied into it stayed behind, and why."""

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
        """Start a process; check has it tell what `selfcheck` judges.

        Raises:
            UnknownUserError, WorkdirMissingError, WorkdirNotADirectoryError: as their names say.
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
        """How set-up steps run: as root, in the root directory."""
        return self.open(argv, user="0", workdir="/")

    def open_as_user(self, argv: Sequence[str]) -> DockerChannel:
        """As the user, in the root directory, on a terminal."""
        return self.open(argv, workdir="/", tty=True)


_WAIT_AND_END = "trap '' HUP INT QUIT PIPE; while read -r line; do :; done; kill -TERM 1"
"""Runs as root, which an agent that runs as the calling user cannot signal. PID 1 of such a container obeys TERM."""

_AGAIN_S = 0.1
"""After the watch was killed: by an agent that is root itself, or by us when we end all processes."""


class OwnerWatchdog:
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
