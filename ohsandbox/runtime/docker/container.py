"""One container: created, monitored, restarted, removed."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import (
    EngineUnavailable,
    ImageUnavailable,
    OhsandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
)
from ohsandbox.runtime.docker import podman
from ohsandbox.runtime.docker.container_config import create_payload
from ohsandbox.runtime.docker.error_mapping import engine_errors, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.runtime.docker.container_config import ContainerConfig
    from ohsandbox.runtime.docker.engine import Engine

log = logging.getLogger(__name__)

RECONNECT_S = 30.0
"""How long to wait for a stopped engine: a restart of dockerd took 5 s with ten containers."""


USER_FILES = ("/etc/passwd", "/etc/group")
"""Engine 20.10 opens them on each start while it holds the container's lock: if one is a FIFO, neither inspect nor
remove of that container ever returns."""
_STAT = "X-Docker-Container-Path-Stat"
"""Header of HEAD /containers/ID/archive: base64 of JSON, with a mode in Go's bits (os.FileMode)."""
_GO_LINK = 1 << 27
_GO_WAITS = 1 << 25 | 1 << 26
"""ModeNamedPipe, ModeDevice."""


class Container:
    """A container by id. `started`, the engine's start time, tells a restart apart."""

    def __init__(self, engine: Engine, container_id: str, *, name: str, started: str = "") -> None:
        self.engine = engine
        self.id = container_id
        self.name = name
        self.started = started
        self.found: dict[str, Any] = {}
        """The engine's inspect result after the last start."""
        self._starting = 0
        self._frozen = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Context in which an exec starts; entering waits while the container is frozen.

        An exec that starts in a container paused by a commit keeps the engine's lock of the container until it is
        unpaused, and unpausing waits for that lock: engine 20.10 hangs for good, with commits and removals.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._frozen)
            self._starting += 1
        try:
            yield
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Context in which the engine pauses the container: waits for execs that are starting; none starts inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._frozen)
            self._frozen = True
            self._changed.wait_for(lambda: not self._starting)
        try:
            yield
        finally:
            with self._changed:
                self._frozen = False
                self._changed.notify_all()

    def inspect(self) -> dict[str, Any]:
        """Return the engine's description of the container.

        Raises:
            SandboxGone: the container no longer exists.
            EngineUnavailable: the engine does not answer.
        """
        with engine_errors(f"looking at sandbox {self.name!r}"):
            return dict(self.engine.api.inspect_container(self.id))

    def written_bytes(self) -> int:
        """Size in bytes of a copy of its own layer: a sparse file counts with its full length, hard links count once.

        Raises:
            SandboxUnavailable: the engine does not report it.
        """
        api = self.engine.api
        with engine_errors(f"measuring sandbox {self.name!r}"):
            url = api._url("/containers/{0}/json", self.id)  # noqa: SLF001 - docker-py has no parameter for it
            return int(api._result(api._get(url, params={"size": 1}), True).get("SizeRw") or 0)  # noqa: SLF001, FBT003

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause its processes, if it has any and the engine can (a rootless one may not).

        Raises:
            SandboxUnavailable: it cannot be unpaused.
        """
        try:
            with engine_errors(f"pausing sandbox {self.name!r}"):
                self.engine.api.pause(self.id)
        except SandboxUnavailable:
            yield
            return
        try:
            yield
        finally:
            with engine_errors(f"going on with sandbox {self.name!r}"):
                self.engine.api.unpause(self.id)

    def loss(self) -> SandboxUnavailable | None:
        """Return why the container cannot be used; None while it still runs as last started."""
        try:
            state = self.inspect()["State"]
        except SandboxUnavailable as error:
            return error
        if state.get("Paused"):
            return SandboxPaused(f"Sandbox {self.name!r} is paused. Remedy: `docker unpause {self.name}`.")
        if not state.get("Running"):
            return SandboxUnavailable(
                f"Sandbox {self.name!r} {how_it_ended(state)}. Remedy: start it again; files are kept."
            )
        if self.started and state.get("StartedAt") != self.started:
            return SandboxUnavailable(
                f"Sandbox {self.name!r} was restarted from outside. Remedy: open its shells again."
            )
        return None

    def start(self) -> None:
        """Start the container.

        Raises:
            SandboxUnavailable: the engine or the image cannot start it.
        """
        for path in USER_FILES:
            self._refuse_waiting(path)
        with engine_errors(f"starting sandbox {self.name!r}"):
            self.engine.api.start(self.id)

    def _refuse_waiting(self, path: str) -> None:
        """Refuse a path on which the engine's open would block. Takes 3 ms.

        Raises:
            SandboxUnavailable: path is, or leads to, a FIFO or a device.
        """
        api = self.engine.api
        with engine_errors(f"starting sandbox {self.name!r}"):
            said = api.head(
                f"{api.base_url}/v{api.api_version}/containers/{self.id}/archive",
                params={"path": path},
                timeout=api.timeout,
            )
        try:
            fact = json.loads(base64.b64decode(said.headers.get(_STAT, "")))
            mode, target = int(fact["mode"]), str(fact.get("linkTarget") or "")
        except (ValueError, TypeError, KeyError):  # the path does not exist, or a proxy forbids the request
            return
        if mode & _GO_LINK and target not in ("", path):
            self._refuse_waiting(target)  # the engine has resolved all links
        elif mode & _GO_WAITS:
            raise SandboxUnavailable(
                f"Sandbox {self.name!r} is not started: its {path} is a FIFO or a device, which the engine would wait "
                "for without end. Remedy: go back with `ohsandbox undo`, or use an image that has a file there."
            )

    def kill(self) -> None:
        """Send SIGKILL to all its processes; a container that has ended already is not an error.

        Raises:
            SandboxUnavailable: the engine failed, or the container is gone.
        """
        with engine_errors(f"killing sandbox {self.name!r}"):
            if not self.engine.api.inspect_container(self.id)["State"].get("Running"):
                return
            from docker.errors import APIError  # noqa: PLC0415 - slow import, needed only with an engine

            try:
                self.engine.api.kill(self.id)
            except APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:  # it ended between the two requests
                    raise

    def note_start(self) -> None:
        """Store the start time and the engine's description: 3 ms now, 50 ms while an exec starts.

        Raises:
            SandboxUnavailable: the engine does not report them.
        """
        self.found = self.inspect()
        self.started = str(self.found["State"].get("StartedAt", ""))

    def revive(self) -> str:
        """Start a container that ended; return a sentence for the model that says what happened.

        Waits up to 30 s for an engine that is down.

        Raises:
            EngineUnavailable, SandboxPaused, SandboxGone: it cannot be started.
            SandboxUnavailable: it ends again at once.
        """
        state = self._state_patiently()
        if state.get("Paused"):
            raise SandboxPaused(f"Sandbox {self.name!r} is paused. Remedy: `docker unpause {self.name}`.")
        if state.get("Running"):
            reason = "was restarted from outside"
        else:
            reason = how_it_ended(state)
            self.start()
        self.note_start()
        return f"The sandbox {reason} and was started again: files are kept; processes, variables and /run are lost."

    def _state_patiently(self) -> dict[str, Any]:
        deadline = time.monotonic() + RECONNECT_S
        while True:
            try:
                return dict(self.inspect()["State"])
            except EngineUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.5)

    def remove(self) -> None:
        """Remove it with its anonymous volumes; a container that is gone already is not an error.

        Raises:
            SandboxUnavailable: the engine failed.
        """
        remove(self.engine, self.id)


def create(engine: Engine, spec: ContainerConfig) -> Container:
    """Create and start the container of spec. On any failure, Ctrl-C included, it is removed.

    Raises:
        UsageError: the name is taken, the runtime is unknown, a limit is refused.
        ImageUnavailable: the image has no /bin/sh, or is for another architecture.
        SandboxUnavailable: the engine failed.
    """
    try:
        return _create_once(engine, spec)
    except SandboxUnavailable as error:
        if _RLIMIT_REFUSED not in str(error) or spec.open_files is None or spec.limits.open_files is not None:
            raise
        return _create_once(engine, spec.model_copy(update={"open_files": None}))


_RLIMIT_REFUSED = "error setting rlimit type 7"
"""Error of runc 1.1.5 under an engine that has a lower RLIMIT_NOFILE itself and lacks CAP_SYS_RESOURCE."""


def _create_once(engine: Engine, spec: ContainerConfig) -> Container:
    try:
        with engine_errors(f"creating sandbox {spec.name!r}"):
            payload = create_payload(spec)
            if podman.is_podman(engine):
                payload = podman.translate(payload, engine)
            made = engine.api.create_container_from_config(payload, spec.name)
    except OhsandboxError:
        raise
    except BaseException:  # Ctrl-C, SIGTERM: the engine may have created it; the name was free, so it is ours
        _forget(engine, spec.name)
        raise
    container = Container(engine, str(made["Id"]), name=spec.name)
    try:
        _heed(made.get("Warnings") or [], spec)
        container.start()
        container.note_start()
    except BaseException:
        _forget(engine, container.id)
        raise
    return container


def _heed(warnings: Sequence[str], spec: ContainerConfig) -> None:
    """Log the warnings of the create call; "Limitation discarded" means that a limit is not in force.

    Raises:
        SandboxUnavailable: a limit was discarded, and limits.enforced is set.
    """
    for warning in warnings:
        if "discarded" in warning and spec.limits.enforced:
            raise SandboxUnavailable(
                f"Sandbox {spec.name!r} is not as strict as asked: the engine warns: {one_line(warning)}. "
                "Remedy: `ohsandbox doctor`; Limits(enforced=False) accepts it."
            )
        log.warning("sandbox %s: the engine warns: %s", spec.name, one_line(warning))


def remove(engine: Engine, container: str) -> None:
    """Run `docker rm -f -v`; a container that is gone, or being removed, is not an error."""
    try:
        with engine_errors(f"removing container {container[:12]!r}"):
            engine.api.remove_container(container, force=True, v=True)
    except SandboxGone:
        return
    except SandboxUnavailable as error:
        if "already in progress" not in str(error):
            raise


def _forget(engine: Engine, container: str) -> None:
    with contextlib.suppress(OhsandboxError):
        remove(engine, container)


def how_it_ended(state: dict[str, Any]) -> str:
    """Return a verb phrase: 'was killed (out of memory)', 'ended with exit code 1'."""
    code = state.get("ExitCode")
    if state.get("OOMKilled"):
        return "was killed because it ran out of memory"
    if state.get("Status") == "created":
        return "was never started"
    if code == 137:  # noqa: PLR2004 - 128 + SIGKILL
        return "was killed (exit code 137)"
    if code == 143:  # noqa: PLR2004 - 128 + SIGTERM: see sandbox.OwnerWatchdog
        return "ended with the process that held it"
    if error := str(state.get("Error") or ""):
        return f"ended with exit code {code}: {error[:200]}"
    return f"ended with exit code {code}"


def ended_at_once(container: Container, platform: str) -> SandboxUnavailable | None:
    """Return the error for an image whose first process could not start and whose container has ended; else None."""
    try:
        state = container.inspect()["State"]
    except SandboxUnavailable:
        return None
    if state.get("Running") or state.get("OOMKilled") or state.get("ExitCode") == 137:  # noqa: PLR2004
        return None
    return ImageUnavailable(
        f"The image's /bin/sh ended at once ({how_it_ended(state)}; the image is for {platform}). "
        "Remedy: use an image whose /bin/sh is a POSIX shell for the engine's processor."
    )
