"""Monitors of a running sandbox: of its disks, of its services, and of the life of this process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import OhsandboxError, SandboxGone, SandboxRefused
from ohsandbox.runtime.docker.channel import ProcessRequest
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.labels import SERVICE_OF_LABEL
from ohsandbox.runtime.docker.monitoring import disk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ohsandbox.runtime.docker.monitoring.service_writes import Services
    from ohsandbox.runtime.docker.runtime import DockerRuntime
    from ohsandbox.runtime.docker.sandbox import Sandbox
    from ohsandbox.runtime.docker.services.pods import Pod

log = logging.getLogger(__name__)


class SandboxMonitors:
    """The monitors of one runtime, started once its sandbox has been checked; the next result reports what they did."""

    def __init__(self, runtime: DockerRuntime) -> None:
        self._runtime = runtime
        self._has_run = False
        """Whether processes have run in the sandbox; one in which none has is refused if a disk is short of space."""
        self._disk: disk.DiskMonitor | None = None
        self._services: ServiceWatch | None = None
        self._watchdog: OwnerWatchdog | None = None

    def begin(self, sandbox: Sandbox, facts: Mapping[str, str], *, keep: bool) -> None:
        """Start the monitors that do not run; facts are the self-check's. A kept sandbox outlives this process.

        Raises:
            SandboxRefused: the sandbox is new, and a disk is below the minimum.
        """
        if self._disk is None:
            self.begin_disk(sandbox, facts)
        self.add_processes()
        if sandbox.pod is not None and self._services is None:
            listening = sandbox.listening_ports
            self._services = ServiceWatch(sandbox.pod, listening=listening, tell=self._runtime.add_notice)
        if sandbox.config is not None and sandbox.config.is_mapped and not keep:
            if self._watchdog is not None:
                self._watchdog.leave()
            self._watchdog = OwnerWatchdog(sandbox)

    def begin_disk(self, sandbox: Sandbox, facts: Mapping[str, str] | None = None) -> None:
        """Start monitoring the disks for what its services write; `begin` adds the sandbox's own processes.

        Raises:
            SandboxRefused: the sandbox is new, and a disk is below the minimum.
        """
        container, limits, services = sandbox.container, sandbox.options.limits, None
        if limits.free_bytes == 0:
            return
        places = disk.writable_file_systems(
            container.engine, container.found, facts or {}, sandbox.options.writable, self._runtime
        )
        if sandbox.pod is not None:
            from ohsandbox.runtime.docker.monitoring.service_writes import Services  # noqa: PLC0415 - few sandboxes have services

            places += disk.volumes_elsewhere(container.engine, container.found)
            services = Services(sandbox.pod.containers, sandbox.pod.stop)
        if sandbox.is_resumed:
            self._has_run = True
        self.watch(places, limits.free_bytes, services)

    def watch(self, places: Sequence[disk.FileSystem], least: int | None, services: Services | None) -> None:
        """Start monitoring these file systems for what the services write, and later the sandbox's own processes.

        Raises:
            SandboxRefused: the sandbox is new, and a disk is below the minimum.
        """
        if not self._has_run and (short := disk.first_shortage(places, least)) is not None:
            raise SandboxRefused(
                f"{short}.",
                remedy="Free some (`docker system df` shows what the engine holds), "
                "or say what must stay free with SandboxLimits(free_bytes=...).",
            )
        self._has_run = True
        self._disk = disk.DiskMonitor(places, self._runtime, least=least, services=services, has_processes=False)
        self._disk.start()

    def add_processes(self) -> None:
        """Monitor the sandbox's own processes, too."""
        if self._disk is not None:
            self._disk.has_processes = True

    def stop(self) -> None:
        """Stop all monitors. Calling it twice is fine; `begin` starts new ones."""
        monitor, self._disk = self._disk, None
        if monitor is not None:
            monitor.stop()
        if self._watchdog is not None:
            self._watchdog.leave()
        watch, self._services = self._services, None
        if watch is not None:
            watch.leave()


_WAIT_AND_END = "trap '' HUP INT QUIT PIPE; while read -r line; do :; done; kill -TERM 1"
"""Runs as root, so that an agent that runs as the calling user cannot signal it. PID 1 of such a container ends on
SIGTERM."""
_AGAIN_S = 0.1
"""Pause in seconds after the watchdog was killed: by an agent that is root itself, or by us when we end all
processes."""


class OwnerWatchdog:
    """Keeps a watchdog process in a sandbox: it ends the sandbox if this process dies."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Start the watchdog in a thread of its own, since it takes an exec of the engine."""
        self._sandbox = sandbox
        self._over = threading.Event()
        threading.Thread(target=self._keep, name="ohsandbox-host-watch", daemon=True).start()

    def leave(self) -> None:
        """Start no further watchdog. A running one ends with the container or with this process."""
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


MAX_RESTARTS, RESTARTS_S = 3, 60.0
"""Maximum number of restarts within so many seconds: a service that ends again at once is broken, or is being ended on
purpose."""
AGAIN_S = 5.0
"""Seconds after which an engine that failed or was restarted is asked again."""


class ServiceWatch:
    """Restarts services that end. Its thread listens to the engine's events, and sleeps while nothing ends."""

    def __init__(self, pod: Pod, *, listening: Callable[[], Collection[int]], tell: Callable[[str], None]) -> None:
        """Start the thread. listening: see `Pod.await_ready`; tell is called with a sentence, in the thread."""
        self._pod, self._listening, self._tell = pod, listening, tell
        self._over = threading.Event()
        self._events: Any = None
        self._restarts: dict[str, list[float]] = {}
        threading.Thread(target=self._watch, name="ohsandbox-services", daemon=True).start()

    def leave(self) -> None:
        """Restart no service from now on."""
        self._over.set()
        if self._events is not None:
            with contextlib.suppress(OSError, AttributeError):
                self._events.close()

    def _watch(self) -> None:
        last_error = ""
        while not self._over.is_set():
            try:
                self._listen()
            except SandboxGone:
                return
            except (OhsandboxError, ValueError) as error:  # `leave` closes the stream, which raises here
                if not self._over.is_set() and str(error) != last_error:
                    last_error = str(error)
                    log.warning("The services are not watched: %s It is tried again every %g s.", last_error, AGAIN_S)
            self._over.wait(AGAIN_S)

    def _listen(self) -> None:
        """Restart services that have ended or end now, until the engine's events end or `leave` is called."""
        engine = connect()
        try:
            with engine_errors("watching the services"):
                filters = {"label": [f"{SERVICE_OF_LABEL}={self._pod.lease_id}"], "event": ["die"]}
                self._events = engine.api.events(decode=True, filters=filters)
                self._look()  # services that ended before we listened
                for _ in () if self._over.is_set() else self._events:
                    self._look()
        finally:
            if self._events is not None:  # docker-py's stream has no method that also closes an ended connection
                self._events._response.close()  # noqa: SLF001 - as above
            engine.close()

    def _look(self) -> None:
        for name in () if self._over.is_set() else self._pod.ended():
            now = time.monotonic()
            recent = [restart for restart in self._restarts.get(name, []) if restart > now - RESTARTS_S]
            if len(recent) >= MAX_RESTARTS:
                if len(recent) == MAX_RESTARTS:  # report it once
                    self._tell(
                        f"Service {name!r} ended {MAX_RESTARTS + 1} times within {RESTARTS_S:g} s and is not started "
                        "again."
                    )
                self._restarts[name] = [*recent, now]
                continue
            self._restarts[name] = [*recent, now]
            try:
                notes = self._pod.restart_ended(listening=self._listening, only=[name])
            except OhsandboxError as error:
                if not self._over.is_set():
                    self._tell(str(error))
            else:
                for note in notes:
                    self._tell(note)
