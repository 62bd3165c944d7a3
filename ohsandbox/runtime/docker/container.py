"""One container: created, monitored, restarted, removed."""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import (
    EngineUnavailable,
    ImageUnavailable,
    OhsandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
)
from ohsandbox.runtime.docker.config.container_config import create_payload, podman_payload
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors, printable_line
from ohsandbox.runtime.docker.engine.own_container import as_we_name, for_engine
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.engine.connection import Engine

log = logging.getLogger(__name__)

RECONNECT_S = 30.0
"""Seconds to wait for a stopped engine: a restart of dockerd took 5 s with ten containers."""
_RECONNECT_PERIOD_S = 0.5
_USER_FILES = ("/etc/passwd", "/etc/group")
"""The engine reads them on each start of a container or of a process in it. If one is a FIFO, engine 20.10 never comes
back: from a container's start it holds that container's lock, so neither inspect nor remove returns."""
_USER_FILE_BYTES = 1024 * 1024
"""Maximum size of such a file: engine 20.10 took 800 MB of its own memory, and 44 s, for 30 MB of lines that name
root's group. 10,000 users take 700 KB."""
_LOOK_TIMEOUT_S = 10.0
"""Time limit of the request for the kind of a file, which takes 3 ms."""
_DETACHED_TIMEOUT_S = 20.0
"""Time limit of the start of a detached process: the engine answers once it runs, after 0.1 s, on a busy machine 3."""
_LOSS_SHOWS_S = 2.0
"""Seconds within which an engine reports a killed container as such: some 10 ms after its execs have ended, on a busy
machine over 300 ms."""
_LOSS_PERIOD_S = 0.02
_STAT = "X-Docker-Container-Path-Stat"
"""Header of the response to HEAD /containers/ID/archive: base64 of JSON, with a mode in Go's bits (os.FileMode)."""
_GO_WAITS = 1 << 25 | 1 << 26
"""Go's ModeNamedPipe and ModeDevice: files whose opening may block."""
_images_looked_at = set[str]()
"""Ids of images whose `_USER_FILES` an engine can read; the check takes 9 ms per container."""


class EgressRules(NamedTuple):
    """What a container reaches through the open network, and where that was last set."""

    allow: tuple[str, ...] = ()
    """Addresses that it reaches in addition to the public ones."""
    since: str | None = None
    """Start time of the container in whose namespace they were set: the next start loses them. "" if they were set in
    the namespace of an owner, which keeps them; None if they were set nowhere."""
    before_joining: Callable[[], object] | None = None
    """Called before the container is connected to the open network."""


class Container:
    """A container by id. `started`, its start time by the engine, shows whether it was restarted."""

    def __init__(self, engine: Engine, container_id: str, *, name: str, egress: EgressRules | None = None) -> None:
        self.engine = engine
        self.id = container_id
        self.name = name
        self.started = ""
        self.found: dict[str, Any] = {}
        """The engine's inspect result after the last start."""
        self.egress = egress or EgressRules()
        self._starting = 0
        self._frozen = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Context in which an exec starts; entering it waits while we have the container paused.

        An exec that starts in a container paused by a commit keeps the engine's lock of the container until it is
        unpaused, and unpausing waits for that lock: engine 20.10 then hangs forever, and with it commits and removals.
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
    def paused(self, *, waits: bool = True) -> Iterator[None]:
        """Context in which the container's processes are paused, if the engine can pause (a rootless one may not).

        Entering it waits for execs that are starting, and for other such contexts; no exec starts within it. Leaving it
        waits up to RECONNECT_S for an engine whose connection is lost.

        Raises:
            SandboxPaused: another such context has it paused, and waits is False.
        """
        with self._changed:
            if self._frozen and not waits:
                raise self._paused()
            self._changed.wait_for(lambda: not self._frozen)
            self._frozen = True
        is_paused = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._starting)
            try:
                with engine_errors(f"pausing sandbox {self.name!r}"):
                    self.engine.api.pause(self.id)
                    is_paused = True
            except EngineUnavailable:
                self._unpause(lost=True)  # the engine may have done it before the connection was lost
                raise
            except SandboxUnavailable:
                pass
            yield
        finally:
            try:
                if is_paused:
                    self._unpause()
            finally:
                with self._changed:
                    self._frozen = False
                    self._changed.notify_all()

    def _unpause(self, *, lost: bool = False) -> None:
        """Unpause the container. After a try, or with `lost` a pause, whose answer was lost, it may run already."""
        deadline = time.monotonic() + RECONNECT_S
        while True:
            try:
                if lost and not self.inspect()["State"].get("Paused"):
                    return
                with engine_errors(f"going on with sandbox {self.name!r}"):
                    self.engine.api.unpause(self.id)
            except EngineUnavailable:
                if time.monotonic() >= deadline:
                    raise
                lost = True
                time.sleep(_RECONNECT_PERIOD_S)
            else:
                return

    def inspect(self) -> dict[str, Any]:
        """Return the engine's description of the container; raise SandboxGone if it no longer exists."""
        with engine_errors(f"looking at sandbox {self.name!r}"):
            return as_we_name(dict(self.engine.api.inspect_container(self.id)), self.engine)

    def written_bytes(self) -> int:
        """Return the bytes of a copy of its own layer; sparse files count in full length, and hard links once."""
        api = self.engine.api
        with engine_errors(f"measuring sandbox {self.name!r}"):
            url = api._url("/containers/{0}/json", self.id)  # noqa: SLF001 - docker-py has no parameter for it
            return int(api._result(api._get(url, params={"size": 1}), True).get("SizeRw") or 0)  # noqa: SLF001, FBT003

    def _paused(self) -> SandboxPaused:
        return SandboxPaused(f"Sandbox {self.name!r} is paused.", remedy=f"Run `docker unpause {self.name}`.")

    def loss(self) -> SandboxUnavailable | None:
        """Return why the container cannot be used; None while it still runs as last started."""
        try:
            state = self.inspect()["State"]
        except SandboxUnavailable as error:
            return error
        return self.loss_by(state)

    def loss_by(self, state: dict[str, Any]) -> SandboxUnavailable | None:
        """Return `loss` by the state of an inspect result."""
        if state.get("Paused"):
            return self._paused()
        if not state.get("Running"):
            return SandboxUnavailable(
                f"Sandbox {self.name!r} {how_it_ended(state)}.", remedy="Start it again; files are kept."
            )
        if self.started and state.get("StartedAt") != self.started:
            return SandboxUnavailable(
                f"Sandbox {self.name!r} was restarted from outside.", remedy="Open its shells again."
            )
        return None

    def loss_soon(self) -> SandboxUnavailable | None:
        """Return `loss`, asked after the end of one of its processes, which may have been killed with the container.

        The engine may still report a killed container as running. If a process can start in it after that end, it runs
        on, or runs again, which its start time shows.
        """
        deadline = time.monotonic() + _LOSS_SHOWS_S
        while (loss := self.loss()) is None and not self._starts_a_process() and time.monotonic() < deadline:
            time.sleep(_LOSS_PERIOD_S)
        return loss or self.loss()

    def _starts_a_process(self) -> bool:
        def create() -> str:
            command = ["/bin/sh", "-c", ":"]
            return str(self.engine.api.exec_create(self.id, command, stdout=False, stderr=False, workdir="/")["Id"])

        with contextlib.suppress(OhsandboxError), engine_errors(f"checking sandbox {self.name!r}"):
            self.start_detached(create)
            return True
        return False

    def start_detached(self, create: Callable[[], str]) -> None:
        """Start the exec that create makes, without its streams; return once it runs.

        Raises:
            SandboxUnavailable: it does not run within 20 s, as when the engine waits for a file of the sandbox.
        """
        api = self.engine.api
        with self.starting():
            url = api._url("/exec/{0}/start", create())  # noqa: SLF001 - docker-py's own call has no time limit
            data = {"Tty": False, "Detach": True}
            api._result(api._post_json(url, data=data, timeout=_DETACHED_TIMEOUT_S))  # noqa: SLF001

    def start(self, *, image_id: str | None = None) -> None:
        """Start the container; raise SandboxUnavailable if the engine or the image cannot start it.

        image_id is the image of a new container, whose files are still the image's: an image is checked only once.
        """
        if image_id is None or image_id not in _images_looked_at:
            self._refuse_user_files()
        is_open = image_id is None and self._is_kept_from_network()
        if image_id is not None:
            _images_looked_at.add(image_id)
        if self.engine.while_starting is not None:
            self.engine.while_starting()
        with engine_errors(f"starting sandbox {self.name!r}"):
            self.engine.api.start(self.id)
        if is_open:
            self.join_open_network(self.egress.allow)

    def _is_kept_from_network(self) -> bool:
        """Disconnect the open network, so that no process starts before its rules are set; return if it was joined."""
        found = self.inspect()
        if owner := open_network.owner_of(found):
            open_network.revive_owner(self.engine, owner, self.egress.allow)
            return False
        is_open = open_network.NETWORK in (found["NetworkSettings"].get("Networks") or {})
        if is_open:
            open_network.disconnect(self.engine, self.id)
        return is_open

    def join_open_network(self, allow: tuple[str, ...]) -> None:
        """Connect the container to the open network, after setting the rules in its namespace.

        allow are the addresses that it reaches in addition to the public ones.
        """
        owner = open_network.owner_of(self.found or self.inspect())
        rules = self.egress._replace(allow=allow, since="" if owner else str(self.inspect()["State"].get("StartedAt")))
        if self.egress != rules:
            open_network.set_rules(self.engine, owner or self.id, allow)
            self.egress = rules
        if rules.before_joining is not None:
            rules.before_joining()
        open_network.connect(self.engine, owner or self.id, allow)

    def leave_open_network(self) -> None:
        """Disconnect the open network; its rules are set again when it is reconnected."""
        self.egress = self.egress._replace(allow=(), since=None)
        open_network.close(self.engine, open_network.owner_of(self.found or self.inspect()) or self.id)

    def _refuse_user_files(self) -> None:
        """Look at the files that the engine reads by name before it starts anything: 3 ms each.

        Only for a container that does not run: to look, engine 20.10 mounts the container's binds by path on this
        machine. A process in it that swaps a directory for a link meanwhile gets them mounted elsewhere on this machine
        (after 52 requests, for a bind at /data/x).

        The engine reads the files in the container's own layer, while its archive API also sees the container's mounts,
        and tells the target of a link with U+FFFD for each byte that is not UTF-8. Such links are refused.

        Raises:
            SandboxUnavailable: a file would block or burden the engine, or it cannot be told which file it is.
        """
        if directory := self._stat("/etc").get("linkTarget"):
            self._refuse_hidden("/etc", str(directory))
        for path in _USER_FILES:
            facts = self._stat(path)
            if target := facts.get("linkTarget"):
                self._refuse_hidden(path, str(target))
                facts = self._stat(str(target))  # the engine has already resolved all links
            if int(facts.get("mode") or 0) & _GO_WAITS:
                raise self._refused(f"{path} is a FIFO or a device, and the engine would wait for it forever")
            if (size := int(facts.get("size") or 0)) > _USER_FILE_BYTES:
                raise self._refused(
                    f"{path} has {size} bytes, more than {_USER_FILE_BYTES}, and the engine would read all of it"
                )

    def _refuse_hidden(self, path: str, target: str) -> None:
        if "\ufffd" in target:
            raise self._refused(f"{path} is a link to a name that is not UTF-8")
        for mount in self.inspect().get("Mounts") or []:
            if PurePosixPath(target).is_relative_to(str(mount.get("Destination"))):
                raise self._refused(f"{path} is a link into a mount, and the engine would read what lies below that")

    def _refused(self, reason: str) -> SandboxUnavailable:
        return SandboxUnavailable(
            f"Sandbox {self.name!r} is not started: its {reason}.",
            remedy="Go back with `ohsandbox undo`, or use an image that has a small file there.",
        )

    def _stat(self, path: str) -> dict[str, Any]:
        """Return the archive API's description of a file; empty if there is none, or a proxy forbids the request."""
        api = self.engine.api
        with engine_errors(f"starting sandbox {self.name!r}"):
            url = f"{api.base_url}/v{api.api_version}/containers/{self.id}/archive"
            said = api.head(url, params={"path": path}, timeout=_LOOK_TIMEOUT_S)
        try:
            facts = load_json(base64.b64decode(said.headers.get(_STAT, "")))
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}

    def kill(self) -> None:
        """Send SIGKILL to all its processes; a container that has ended already is not an error."""
        with engine_errors(f"killing sandbox {self.name!r}"):
            if not self.engine.api.inspect_container(self.id)["State"].get("Running"):
                return
            from docker.errors import APIError  # noqa: PLC0415 - slow import, needed only with an engine

            try:
                self.engine.api.kill(self.id)
            except APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:  # it ended between the two requests
                    raise

    def note_start(self, found: dict[str, Any] | None = None) -> None:
        """Store the start time and the engine's description, found or asked for now.

        Asking takes 3 ms, or 50 ms while an exec starts.
        """
        self.found = self.inspect() if found is None else found
        self.started = str(self.found["State"].get("StartedAt", ""))

    def restart(self) -> None:
        """Kill all its processes and start it again."""
        self.kill()
        self.start()
        self.note_start()

    def revive(self) -> str:
        """Start a container that ended; return a sentence for the model that says what happened.

        Waits up to 30 s for an engine that is down.

        Raises:
            EngineUnavailable, SandboxPaused, SandboxGone, SandboxUnavailable: it cannot be started.
        """
        deadline = time.monotonic() + RECONNECT_S
        while True:
            try:
                state = self.inspect()["State"]
                break
            except EngineUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RECONNECT_PERIOD_S)
        if state.get("Paused"):
            raise self._paused()
        if state.get("Running") and self.started and state.get("StartedAt") == self.started:
            return (
                "The connection to the sandbox's engine was lost and restored: files are kept; commands in shells and "
                "calls in progress have ended."
            )
        if state.get("Running"):
            reason = "was restarted from outside"
            found = self.inspect()
            if open_network.NETWORK in (found["NetworkSettings"].get("Networks") or {}):
                self.join_open_network(self.egress.allow)  # the rules are lost with each start
        else:
            reason = how_it_ended(state)
            self.start()
        self.note_start()
        return f"The sandbox {reason} and was started again: files are kept; processes, variables and /run are lost."

    def force_remove(self) -> None:
        """Remove the container with its anonymous volumes; one that no longer exists is not an error."""
        force_remove(self.engine, self.id)


_RLIMIT_REFUSED = "error setting rlimit type 7"
"""Error of runc 1.1.5 under an engine whose own RLIMIT_NOFILE is lower and which lacks CAP_SYS_RESOURCE."""


def create(engine: Engine, config: ContainerConfig, *, egress: EgressRules, image_id: str | None = None) -> Container:
    """Create and start the container of config. On any failure, including Ctrl-C, the container is removed.

    egress are the rules of its namespace; image_id is the id of its image, if known.

    Raises:
        UsageError: the name is taken, the runtime is unknown, or a limit is refused.
        ImageUnavailable: the image has no /bin/sh, or is for another architecture.
        SandboxUnavailable: the engine failed, or discarded a limit although limits.enforced is set.
    """
    try:
        return _create_once(engine, config, egress, image_id)
    except SandboxUnavailable as error:
        if _RLIMIT_REFUSED not in str(error) or config.open_files is None or config.limits.open_files is not None:
            raise
        return _create_once(engine, config.model_copy(update={"open_files": None}), egress, image_id)


def _create_once(engine: Engine, config: ContainerConfig, egress: EgressRules, image_id: str | None) -> Container:
    made: dict[str, Any] = {}
    try:
        with engine_errors(f"creating sandbox {config.name!r}"):
            payload = create_payload(config)
            if engine.is_podman:
                payload = podman_payload(payload, engine)
            payload = for_engine(payload, engine)
            made = engine.api.create_container_from_config(payload, config.name)
        container = Container(engine, str(made["Id"]), name=config.name, egress=egress)
        _heed(made.get("Warnings") or [], config)
        container.start(image_id=image_id)
        container.note_start()
    except BaseException as error:
        # after Ctrl-C or SIGTERM the engine may have created it; the name was free, so it is ours
        if made or not isinstance(error, OhsandboxError):
            with contextlib.suppress(OhsandboxError):
                force_remove(engine, str(made.get("Id") or config.name))
        raise
    return container


def _heed(warnings: Sequence[str], config: ContainerConfig) -> None:
    """Log the warnings of the create call; raise if a limit was discarded although limits.enforced is set."""
    for warning in warnings:
        if "discarded" in warning and config.limits.enforced:
            raise SandboxUnavailable(
                f"Sandbox {config.name!r} is not as strict as asked: the engine warns: {printable_line(warning)}.",
                remedy="Run `ohsandbox doctor`, or accept it with SandboxLimits(enforced=False).",
            )
        log.warning("sandbox %s: the engine warns: %s", config.name, printable_line(warning))


def force_remove(engine: Engine, container: str) -> None:
    """Run `docker rm -f -v`; a container that is gone, or being removed, is not an error."""
    try:
        with engine_errors(f"removing container {container[:12]!r}"):
            engine.api.remove_container(container, force=True, v=True)
    except SandboxGone:
        return
    except SandboxUnavailable as error:
        if "already in progress" not in str(error):
            raise


def how_it_ended(state: dict[str, Any]) -> str:
    """Return a verb phrase such as 'was killed because it ran out of memory' or 'ended with exit code 1'."""
    if state.get("OOMKilled"):
        return "was killed because it ran out of memory"
    if state.get("Status") == "created":
        return "was never started"
    match code := state.get("ExitCode"):
        case 137:  # 128 + SIGKILL
            return "was killed (exit code 137)"
        case 143:  # 128 + SIGTERM: see monitors.OwnerWatchdog
            return "ended with the process that held it"
    error = str(state.get("Error") or "")
    return f"ended with exit code {code}" + (f": {error[:200]}" if error else "")


def start_failure(container: Container, platform: str) -> SandboxUnavailable | None:
    """Return the error for a container that ended because its image's first process could not start; else None."""
    try:
        state = container.inspect()["State"]
    except SandboxUnavailable:
        return None
    if state.get("Running") or state.get("OOMKilled") or state.get("ExitCode") == 137:  # noqa: PLR2004
        return None
    return ImageUnavailable(
        f"The image's /bin/sh ended at once ({how_it_ended(state)}; the image is for {platform}).",
        remedy="Use an image whose /bin/sh is a POSIX shell for the engine's processor.",
    )
