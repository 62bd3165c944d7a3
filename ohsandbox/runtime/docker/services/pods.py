"""The services of a sandbox: containers in its network namespace, which start, become ready, and end with it.

A container of ours owns the namespace (`open_network.make_owner`), so that it outlives restarts of the sandbox and of
each service. All of these containers share the sandbox's lease, whose id is their label: removing the sandbox, also by
`gc`, removes its services.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ohsandbox.errors import OhsandboxError, SandboxRefused, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.config import selfcheck
from ohsandbox.runtime.docker.config.container_config import (
    ContainerConfig,
    SandboxLimits,
    create_payload,
)
from ohsandbox.runtime.docker.config.resolve import hostile_names, open_files, processor_count
from ohsandbox.runtime.docker.container import Container, how_it_ended
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.engine.wire import wrap
from ohsandbox.runtime.docker.labels import LABEL, SERVICE_LABEL, SERVICE_OF_LABEL
from ohsandbox.runtime.docker.network.proxy_clients import proxy_environment
from ohsandbox.runtime.docker.services import service_checkpoints
from ohsandbox.runtime.docker.services.service_images import (
    ServiceImage,
    images_of_checkpoint,
)
from ohsandbox.runtime.docker.services.service_inventory import (
    found_services,
    read_log,
)
from ohsandbox.runtime.port_numbers import PROXY_PORT
from ohsandbox.runtime.process.cancellation import check_not_cancelled
from ohsandbox.runtime.results import PullProgress
from ohsandbox.runtime.service_options import Service, check_ports
from ohsandbox.secrets import Secrets
from ohsandbox.text import quoted_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.ownership.lease import LeaseRecord

T = TypeVar("T")

_LOG_LINES = 8
"""Number of lines of a failed service's output that a message quotes."""
_MAX_LOG_CHARS = 800
_LOG_DRIVER = "json-file"
_LOG = {"Type": _LOG_DRIVER, "Config": {"max-size": "1m", "max-file": "2"}}
"""Log options: 2 MB on the engine's disk at most, however much a service prints."""
_CORRECT = "Correct its image, command or environment."
_POLL_S = 0.1
_CHECK_S = 10.0
"""Time limit for one call of a health check."""
_STARTS = 4
"""Number of services that are started concurrently."""


class _ServiceContainer(NamedTuple):
    """A service with its container."""

    service: Service
    container: Container
    ports: tuple[int, ...]
    healthcheck: tuple[str, ...]


class Pod:
    """The services of one running sandbox. All its state is in the engine, from which `find` restores it."""

    def __init__(self, engine: Engine, lease_id: str, *, sandbox: str, owner: str) -> None:
        """Create a pod without services. owner is the id of the container that owns the namespace."""
        self.engine, self.lease_id, self.sandbox, self.owner = engine, lease_id, sandbox, owner
        self.running: dict[str, _ServiceContainer] = {}
        self._stopped: set[str] = set()
        """Services that `stop` stopped, which are not restarted."""

    def create(self, service: Service, image: ServiceImage, options: DockerOptions) -> None:
        """Create a service's container and start it.

        Raises:
            UsageError: a secret is missing, or the engine refuses a value.
            SandboxRefused: the container is less isolated than requested.
            SandboxUnavailable: the engine or the image cannot start it.
        """
        config = self._config(service, image, options)
        payload = service_payload(config, service)
        with engine_errors(f"creating service {service.name!r}"):
            made = self.engine.api.create_container_from_config(payload, config.name)
        container = Container(self.engine, str(made["Id"]), name=config.name)
        self.running[service.name] = _ServiceContainer(service, container, image.ports, image.healthcheck)
        try:
            service_checkpoints.fill(self.engine, container.id, image.volumes)
            container.start(image_id=image.facts.id)
            container.note_start()
            _refuse_weaker(service, container.found, config)
        except BaseException:
            del self.running[service.name]
            with contextlib.suppress(OhsandboxError):
                container.force_remove()
            raise

    def _config(self, service: Service, image: ServiceImage, options: DockerOptions) -> ContainerConfig:
        facts = image.facts
        limits = SandboxLimits(
            memory_bytes=service.memory, cpus=service.cpus, pids=service.pids, cpuset=options.limits.cpuset,
            open_files=options.limits.open_files, enforced=options.limits.enforced,
        )  # fmt: skip
        env = {**_proxy_variables(options, service), **service.env, **Secrets.load(service.secrets).environment()}
        resolved = service.model_copy(update={"ports": image.ports, "healthcheck": image.healthcheck})
        described = resolved.model_dump(mode="json", exclude_defaults=True)
        return ContainerConfig(
            name=f"{self.sandbox}-{service.name}", image=facts.id, workdir="/", env=env,
            user=facts.user if service.user is None else service.user,
            unset=tuple(name for name in hostile_names(facts.env) if name not in env),
            network=options.network, network_owner=self.owner, limits=limits,
            cpus=processor_count(limits, self.engine), open_files=open_files(limits, self.engine),
            architecture=facts.platform.split("/")[-1], runtime=options.runtime,
            labels={LABEL: "1", SERVICE_OF_LABEL: self.lease_id, SERVICE_LABEL: json.dumps(described)},
        )  # fmt: skip

    def await_ready(
        self, names: Iterable[str], *, listening: Callable[[], Collection[int]], tell: Callable[[str, str], None],
        cancel: threading.Event | None,
    ) -> None:  # fmt: skip
        """Wait until these services are ready; listening returns the ports on which a program listens.

        Raises:
            SandboxUnavailable: a service ended or was not ready in time; the message has its last lines of output.
            CallCancelledError: cancel was set.
        """
        began, waiting = time.monotonic(), [self.running[name] for name in names]
        while True:
            waiting = [one for one in waiting if one.service.name not in self._stopped]
            for one in [*waiting]:
                left = one.service.start_timeout_s - (time.monotonic() - began)
                if self._is_ready(one, listening, check_s=min(_CHECK_S, max(_POLL_S, left))):
                    waiting.remove(one)
                    tell(one.service.name, "ready")
            if not waiting:
                return
            waited = time.monotonic() - began
            for one in waiting:
                if waited > one.service.start_timeout_s:
                    raise self._failure(one, f"is not ready after {one.service.start_timeout_s:g} s{_why(one)}")
                tell(one.service.name, f"starting, {waited:.0f} s")
            check_not_cancelled(cancel, "starting the services")
            (cancel or threading.Event()).wait(_POLL_S)

    def _is_ready(self, one: _ServiceContainer, listening: Callable[[], Collection[int]], *, check_s: float) -> bool:
        state = one.container.inspect()["State"]
        if not state.get("Running"):
            if (state.get("ExitCode") == 0 and one.service.run_once) or one.service.name in self._stopped:
                return True
            how = how_it_ended(state)
            remedy = (
                _CORRECT
                if state.get("ExitCode")
                else f"Say run_once if it is to end, or {_CORRECT[0].lower()}{_CORRECT[1:]}"
            )
            raise self._failure(one, how, remedy)
        if one.service.run_once:
            return False
        if one.healthcheck:
            return exit_code(one.container, one.healthcheck, limit_s=check_s) == 0
        return {*one.ports} <= {*listening()}

    def _failure(self, one: _ServiceContainer, how: str, remedy: str = _CORRECT) -> SandboxUnavailable:
        said = quoted_line(read_log(self.engine, one.container.id, lines=_LOG_LINES), limit_chars=_MAX_LOG_CHARS)
        told = f" It printed: {said}" if said else " It printed nothing."
        return SandboxUnavailable(f"Service {one.service.name!r} {how}.{told}", remedy=remedy)

    @property
    def ports(self) -> frozenset[int]:
        """The ports of all services."""
        return frozenset(port for one in self.running.values() for port in one.ports)

    def describe(self) -> str:
        """Return names and ports of the services, for a system prompt."""
        told = [
            f"{name} at {', '.join(f'{name}:{port}' for port in one.ports)}" if one.ports else f"{name} (no port)"
            for name, one in self.running.items()
        ]
        return f"{'; '.join(told)}. Each name is 127.0.0.1, which they share with the sandbox"

    def containers(self) -> dict[str, Container]:
        """Return the containers of the services by name, without those that were stopped."""
        return {name: one.container for name, one in [*self.running.items()] if name not in self._stopped}

    def stop(self, name: str) -> None:
        """Kill a service; nothing but a resume starts it again."""
        self._stopped.add(name)
        self.running[name].container.kill()

    def ended(self) -> list[str]:
        """Return the names of services that should run and do not.

        Raises:
            SandboxUnavailable: the engine fails.
        """
        ended = [name for name, one in self.running.items() if _how_it_ended(one) is not None]
        return [name for name in ended if name not in self._stopped]

    @contextlib.contextmanager
    def paused(self, *, waits: bool = True) -> Iterator[None]:
        """Context in which all services are paused, as far as the engine can; waits as in `Container.paused`."""
        with contextlib.ExitStack() as held:
            for one in self.running.values():
                held.enter_context(one.container.paused(waits=waits))
            yield

    def kill(self) -> None:
        """Kill all services."""
        for one in self.running.values():
            one.container.kill()

    def start(
        self,
        found: Mapping[str, ServiceImage],
        options: DockerOptions,
        *,
        listening: Callable[[], Collection[int]],
        progress: Callable[[PullProgress], None] | None,
        cancel: threading.Event | None,
    ) -> None:
        """Start all services of the options, each after its dependencies are ready; found has their images.

        Raises:
            SandboxUnavailable, SandboxRefused, UsageError, CallCancelledError: as `create` and `await_ready`.
        """
        check_ports({name: image.ports for name, image in found.items()}, network=options.network)

        def report(name: str, detail: str) -> None:
            if progress is not None:
                progress(PullProgress(f"service {name}", "starting", detail=detail))

        for stage in _stages(options.services):
            _in_parallel(lambda one: self.create(one, found[one.name], options), stage)
            names = [one.name for one in stage]
            self.await_ready(names, listening=listening, tell=report, cancel=cancel)
        if options.network == "allowlist" and PROXY_PORT in listening():
            raise UsageError(
                f"A service listens on port {PROXY_PORT}, which is that of the allowlist's proxy.",
                remedy="Have it listen elsewhere, or use another network.",
            )

    @classmethod
    def find(cls, engine: Engine, record: LeaseRecord, *, owner: str) -> Pod:
        """Return the services of a resumed sandbox, running or not; owner as for `Pod`.

        Raises:
            SandboxUnavailable: the engine fails.
        """
        pod = cls(engine, record.id, sandbox=record.container, owner=owner)
        for service, one in found_services(engine, record):
            container = Container(engine, str(one["Id"]), name=str(one["Names"][0]).lstrip("/"))
            pod.running[service.name] = _ServiceContainer(
                service, container, service.ports or (), service.healthcheck or ()
            )
        return pod

    def restart_ended(
        self, *, listening: Callable[[], Collection[int]], only: Collection[str] | None = None
    ) -> list[str]:
        """Restart services that have ended, or whose network was replaced; return a sentence for each.

        Raises:
            SandboxUnavailable: a service does not start, or the engine fails.
        """
        with engine_errors("looking at the network of the services"):
            since = str(self.engine.api.inspect_container(self.owner)["State"].get("StartedAt"))
        notes = []
        candidates = [one for name, one in self.running.items() if name not in self._stopped]
        wanted = [container for container in candidates if only is None or container.service.name in only]
        for stage in _stages([container.service for container in wanted]):
            started = []
            for one in [self.running[service.name] for service in stage]:
                how = _how_it_ended(one, since=since)
                if how is None:
                    continue
                one.container.restart()
                started.append(one.service.name)
                notes.append(
                    f"Service {one.service.name!r} {how} and was started again: its files are kept, what it held in "
                    "memory and connections to it are lost."
                )
            self.await_ready(started, listening=listening, tell=lambda *_: None, cancel=None)
        return notes

    def checkpoint_tags(self, tag: str) -> tuple[str, ...]:
        """Return the tags for the images of a checkpoint's services, before the images are created."""
        return service_checkpoints.names_of(tag, self)

    def commit(self, repository: str, tag: str, *, room: int | None) -> tuple[str, int]:
        """Commit all services, which are paused: the value of the checkpoint's label, and the bytes written.

        Raises:
            SandboxUnavailable: the engine failed, or there is no room.
        """
        return service_checkpoints.commit(self, repository, tag, room=room)

    @contextlib.contextmanager
    def replaced(
        self,
        checkpoint: str,
        options: DockerOptions,
        *,
        listening: Callable[[], Collection[int]],
        before_start: Callable[[Pod], None],
    ) -> Iterator[Pod]:
        """Context in which a checkpoint's services run in place of those of this pod; yields their own pod.

        before_start is called with that pod.

        At its end the old services are removed; on an error they are restored, and the new ones are removed. A
        checkpoint without services leaves the old ones unchanged.

        Raises:
            SandboxUnavailable: the engine fails, or a service does not start.
        """
        kept_services = service_checkpoints.kept(self.engine, checkpoint)
        if not kept_services:
            yield self
            return
        new = Pod(self.engine, self.lease_id, sandbox=self.sandbox, owner=self.owner)
        aside = [service.container for service in self.running.values()]
        with contextlib.ExitStack() as undo:
            for container in aside:
                container.kill()
                undo.callback(_put_back, container, container.name)
                with engine_errors(f"putting service {container.name!r} aside"):
                    self.engine.api.rename(container.id, f"{container.name[:100]}-{secrets.token_hex(4)}")
            undo.callback(_remove_all, new)
            services = [service.service for service in self.running.values() if service.service.name in kept_services]
            images = images_of_checkpoint(self.engine, kept_services, services)
            restored_options = options.model_copy(update={"services": tuple(services)})
            before_start(new)
            new.start(images, restored_options, listening=listening, progress=None, cancel=None)
            yield new
            undo.pop_all()
        for container in aside:
            with contextlib.suppress(OhsandboxError):
                container.force_remove()


def _in_parallel(act: Callable[[T], object], ones: Iterable[T]) -> None:
    """Call act with each item, _STARTS at a time; raise the error of the first that fails."""
    with ThreadPoolExecutor(_STARTS) as pool:
        for _ in pool.map(act, ones):
            pass


def _put_back(container: Container, name: str) -> None:
    with contextlib.suppress(OhsandboxError), engine_errors(f"putting service {name!r} back"):
        container.engine.api.rename(container.id, name)
        container.start()


def _remove_all(pod: Pod) -> None:
    for service in pod.running.values():
        with contextlib.suppress(OhsandboxError):
            service.container.force_remove()


def service_payload(config: ContainerConfig, service: Service) -> dict[str, Any]:
    """Return the body of the create call: a sandbox's with the service's program, without sandbox-only parts."""
    payload = create_payload(config)
    for name in ("Entrypoint", "Cmd", "StopSignal", "StopTimeout", "WorkingDir", "User"):
        payload.pop(name, None)
    host = payload["HostConfig"] | {"LogConfig": _LOG, "Tmpfs": {}}
    own: dict[str, Any] = {
        "Entrypoint": None if service.entrypoint is None else list(service.entrypoint),
        "Cmd": None if service.command is None else list(service.command),
        "WorkingDir": service.workdir,
        "User": config.user,
        "Volumes": {path: {} for path in service.volumes} or None,
    }
    return payload | {name: value for name, value in own.items() if value is not None} | {"HostConfig": host}


def exit_code(container: Container, words: Sequence[str], *, limit_s: float) -> int | None:
    """Run a command in a container; return its exit code, None if it took too long or could not start."""
    api = container.engine.api
    try:
        with container.starting(), engine_errors(f"checking {container.name!r}"):
            created = api.exec_create(container.id, list(words))
            wire = wrap(api.exec_start(created["Id"], socket=True))
        try:
            deadline, buffer = time.monotonic() + limit_s, memoryview(bytearray(4096))
            while wire.readable(deadline):
                if not wire.recv_into(buffer):
                    break
                if time.monotonic() > deadline:  # for a command that prints without end
                    return None
        finally:
            wire.close()
        with engine_errors(f"checking {container.name!r}"):
            code = api.exec_inspect(created["Id"]).get("ExitCode")
    except (SandboxUnavailable, OSError):
        return None
    return None if code is None else int(code)


def _how_it_ended(container: _ServiceContainer, *, since: str = "") -> str | None:
    """Return how a service failed, or that its network is older than since; None if it is as it should be."""
    state = container.container.inspect()["State"]
    if state.get("Running"):
        return "had lost its network" if str(state.get("StartedAt")) < since else None
    return None if container.service.run_once and state.get("ExitCode") == 0 else how_it_ended(state)


def _refuse_weaker(service: Service, inspected: Mapping[str, Any], config: ContainerConfig) -> None:
    if (wrong := next(selfcheck.added(inspected, config, log=_LOG_DRIVER), None)) is not None:
        raise SandboxRefused(
            f"Service {service.name!r} is not as strict as asked: {wrong}.", remedy="Run `ohsandbox doctor`."
        )


def _stages(services: Sequence[Service]) -> list[list[Service]]:
    """Return the services in groups, each of which depends only on earlier groups."""
    stages, remaining, ready = list[list[Service]](), [*services], set[str]()
    while remaining:
        stage = [service for service in remaining if {*service.depends_on} <= ready]
        stages.append(stage)
        ready |= {service.name for service in stage}
        remaining = [service for service in remaining if service.name not in ready]
    return stages


def _proxy_variables(options: DockerOptions, service: Service) -> dict[str, str]:
    """Return the variables that point a service to the allowlist's proxy, with the services' names excepted."""
    if options.network != "allowlist":
        return {}
    variables = proxy_environment(service.env, hosts=[service.name for service in options.services])
    variables.pop("NODE_OPTIONS", None)  # it names a file that only the sandbox has
    return variables


def _why(container: _ServiceContainer) -> str:
    if container.service.run_once:
        return ": it still runs"
    if container.healthcheck:
        return f": its check {quoted_line(' '.join(container.healthcheck), limit_chars=80)!r} fails"
    return f": nothing listens on {', '.join(map(str, container.ports))}" if container.ports else ""
