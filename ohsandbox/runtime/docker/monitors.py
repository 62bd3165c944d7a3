"""What watches a sandbox of ours while it runs: its disks, its services, and that this process lives."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError, SandboxRefused
from ohsandbox.runtime.docker import disk, provision
from ohsandbox.runtime.docker.channel import ProcessRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.docker.runtime import DockerRuntime
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.docker.service_watch import ServiceWatch


class SandboxMonitors:
    """The monitors of one runtime, begun once its sandbox is checked; what they do is told with the next result."""

    is_new = True
    """No process has run in the sandbox yet: it does not start where a disk is short already."""

    def __init__(self, runtime: DockerRuntime) -> None:
        self._runtime = runtime
        self._disk: disk.DiskMonitor | None = None
        self._services: ServiceWatch | None = None
        self._watchdog: OwnerWatchdog | None = None

    def begin(self, sandbox: Sandbox, facts: Mapping[str, str], *, keep: bool) -> None:
        """Begin those that do not run; facts are of the first process. A kept sandbox lives on without this process.

        Raises:
            SandboxRefused: the sandbox is new, and a disk is below the minimum.
        """
        if self._disk is None:
            self._watch_disk(sandbox, facts)
        if sandbox.pod is not None and self._services is None:
            from ohsandbox.runtime.docker.service_watch import ServiceWatch  # noqa: PLC0415 - few sandboxes have services

            listening = partial(provision.listening_in, sandbox)
            self._services = ServiceWatch(sandbox.pod, listening=listening, tell=self._runtime.tell)
        if sandbox.config is not None and sandbox.config.is_mapped and not keep:
            if self._watchdog is not None:
                self._watchdog.leave()
            self._watchdog = OwnerWatchdog(sandbox)

    def _watch_disk(self, sandbox: Sandbox, facts: Mapping[str, str]) -> None:
        least = sandbox.options.limits.free_bytes
        if least == 0:
            return
        container, writable = sandbox.container, sandbox.options.writable
        where = disk.writable_file_systems(container.engine, container.found, facts, writable, self._runtime)
        if self.is_new and (short := disk.first_shortage(where, least)) is not None:
            raise SandboxRefused(
                f"{short}. Remedy: free some (`docker system df` shows what the engine holds), "
                "or say what must stay free with SandboxLimits(free_bytes=...)."
            )
        self.is_new = False
        self._disk = disk.DiskMonitor(where, self._runtime, least=least)
        self._disk.start()

    def stop(self) -> None:
        """End them all. Twice is fine; `begin` begins new ones."""
        monitor, self._disk = self._disk, None
        if monitor is not None:
            monitor.stop()
        if self._watchdog is not None:
            self._watchdog.leave()
        watch, self._services = self._services, None
        if watch is not None:
            watch.leave()


_WAIT_AND_END = "trap '' HUP INT QUIT PIPE; while read -r line; do :; done; kill -TERM 1"
"""Runs as root, which an agent that runs as the calling user cannot signal. PID 1 of such a container ends on TERM."""
_AGAIN_S = 0.1
"""Pause after the watchdog was killed: by an agent that is root itself, or by us when we end all processes."""


class OwnerWatchdog:
    """Keeps a watchdog process in a sandbox while our process lives."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Start in a thread of its own, since this takes an exec of the engine."""
        self._sandbox = sandbox
        self._over = threading.Event()
        threading.Thread(target=self._keep, name="ohsandbox-host-watch", daemon=True).start()

    def leave(self) -> None:
        """Start no further watchdog. A running one ends with the container or with our process."""
        self._over.set()

    def _keep(self) -> None:
        ours = self._sandbox
        while not self._over.is_set():
            with (
                contextlib.suppress(OhsandboxError, OSError),
                ours.open(ProcessRequest(["/bin/sh", "-c", _WAIT_AND_END], user="0", workdir="/")) as channel,
            ):
                while channel.read():
                    pass
            if self._over.wait(_AGAIN_S) or ours.container.loss() is not None:
                return
