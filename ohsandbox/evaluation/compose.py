"""A sandbox that is one service of a Compose project; the other services run beside it, in networks of their own.

Each trial has a project: its containers, networks and volumes are named by run, task and attempt, labelled with leases
as all sandboxes are, and removed with the sandbox; what a killed process leaves, `gc` removes.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ohsandbox import DockerRuntime, SandboxLimits
from ohsandbox.errors import OhsandboxError, SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.evaluation.compose_client import docker_compose
from ohsandbox.evaluation.formats.compose import IDLE
from ohsandbox.evaluation.results import ServiceResult, file_name
from ohsandbox.runtime.docker.config.container_config import CAPABILITIES, PID_1, PRIVATE_DIR
from ohsandbox.runtime.docker.config.seccomp import ARCHITECTURES, profile_json
from ohsandbox.runtime.docker.container import Container, force_remove
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.labels import IMAGE_LABEL, LABEL, LABELS_LABEL, LEASE_LABEL, USER_LABEL, complete
from ohsandbox.runtime.docker.monitoring import disk
from ohsandbox.runtime.docker.monitoring.service_writes import Services
from ohsandbox.runtime.docker.monitoring.usage import read_stats
from ohsandbox.runtime.docker.ownership import lease
from ohsandbox.runtime.docker.ownership.project import remove_shared
from ohsandbox.strict_yaml import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.evaluation.images import Images
    from ohsandbox.evaluation.task import ComposeProject, Network, TaskEnvironment
    from ohsandbox.runtime.docker.engine.connection import Engine

NO_ALLOWLIST = "A task of several services cannot have an allowlist. Set its network to none or open."
OUTSIDE = "ohsandbox-outside"
"""The project's network that leads outside; services join it while their phase has the network `open`."""
_POLL_S = 0.1
_LAST_LINES = 5
_NO_HOST = {"com.docker.network.bridge.inhibit_ipv4": "true"}
"""The bridge of an internal network has an address of the host, at which its servers could be reached; not so here."""


class ProjectOptions(NamedTuple):
    """Options of a project."""

    name: str
    network: Network
    limits: SandboxLimits
    """Limits of the sandbox; the processors are shared by all services."""
    labels: Mapping[str, str]
    cancel: threading.Event
    """Cancels a start once it is set."""


def project_name(run_id: str, task: str, attempt: str) -> str:
    """Return a fresh project name for a trial."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")[:30]
    return f"ohsandbox-{run_id}-{slug}-{attempt}-{secrets.token_hex(2)}"


class ServiceRuntime(DockerRuntime):
    """The sandbox of a project: `start` starts all of its services, `close` removes them."""

    def __init__(
        self,
        environment: TaskEnvironment,
        images: Images,
        options: ProjectOptions,
        *,
        env: Mapping[str, str],
        workdir: str | None,
        ca_bundle: str | None,
    ) -> None:
        """Create the runtime without starting it. images supplies the services' images.

        Raises:
            UsageError: as `DockerRuntime`; or the environment has no project.
        """
        if environment.compose is None:
            raise UsageError("The environment has no Compose project. Use DockerRuntime.")
        self._project: ComposeProject = environment.compose
        super().__init__(
            attach=_container(options.name, self._project.main), env=env, workdir=workdir, ca_bundle=ca_bundle
        )
        # the container is joined, and yet of our own making
        self.private_processes = self.ends_processes = True
        self._environment, self._images, self._asked = environment, images, options
        self._network_mode = options.network
        self._leases: dict[str, lease.Lease] = {}
        self._removing = threading.Lock()
        self._monitor_engine: Engine | None = None
        self._stopped: set[str] = set()
        """Services that filled a disk."""

    def start(self) -> Self:
        """Pull and build the images, start all services and wait until they run, or are healthy where they say so.

        Raises:
            SandboxUnavailable: a service did not start, did not become healthy, or ended with another code than 0.
            CallCancelledError: the project was cancelled.
            ImageUnavailable, EngineUnavailable, UsageError: as `Images.held` and `DockerRuntime.start`.
        """
        if self.id:
            return self
        with closing(connect()) as engine:
            try:
                self._compose_up(engine)
                super().start()
                self._monitors.add_processes()
            except BaseException:
                self._monitors.stop()
                self._remove(engine)
                raise
        return self

    def _watch_disk(self) -> None:
        """Monitor the engine's disk for what the services write, from before they start until `close`."""
        engine = self._monitor_engine = connect()
        names = [name for name in self._project.services if name != self._project.main]
        containers = {name: Container(engine, _container(self._asked.name, name), name=name) for name in names}

        def stop(name: str) -> None:
            self._stopped.add(name)
            containers.pop(name).kill()

        found = {"ResolvConfPath": engine.info().get("DockerRootDir")}
        places = disk.writable_file_systems(engine, found, {}, (), self) + disk.volumes_elsewhere(engine, found)
        self._monitors.watch(places, self._asked.limits.free_bytes, Services(lambda: {**containers}, stop))

    def _compose_up(self, engine: Engine) -> None:
        with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="ohsandbox-compose-") as directory:
            names = {
                service: stack.enter_context(self._images.held(self._of(service))).name
                for service in self._project.services
            }
            seccomp, file = Path(directory, "seccomp.json"), Path(directory, "compose.json")
            seccomp.write_text(profile_json())
            for service, image in names.items():
                self._leases[service] = lease.acquire(
                    container=_container(self._asked.name, service), engine=engine.address.url, image=image
                )
            file.write_text(json.dumps(self._model(engine, names, seccomp)))
            if self._asked.limits.free_bytes != 0:
                self._watch_disk()
            deadline = time.monotonic() + self._environment.build_timeout_s
            # the file names its directories in full; the engine is the one that we use, however it was found
            try:
                result = docker_compose(
                    ["-p", self._asked.name, "-f", str(file), "up", "--detach", "--no-build", "--quiet-pull"],
                    env={} if engine.address.tls else {"DOCKER_HOST": _host(engine)},
                    limit_s=self._environment.build_timeout_s, cancel=self._asked.cancel,
                )  # fmt: skip
            except TimeoutError as error:
                raise SandboxUnavailable(
                    f"The task's services did not start: {error}.{self._service_logs(engine)}"
                ) from None
            if result.exit_code != 0:
                last_line = result.stderr.strip().rpartition("\n")[2]
                raise SandboxUnavailable(
                    f"The task's services did not start: {last_line[:500]}.{self._service_logs(engine)}"
                )
            self._await(engine, deadline)

    def _of(self, service: str) -> TaskEnvironment:
        if service == self._project.main:
            return self._environment
        timeout_s = self._environment.build_timeout_s
        return self._project.environments[service].model_copy(update={"build_timeout_s": timeout_s})

    def _model(self, engine: Engine, images: Mapping[str, str], seccomp: Path) -> dict[str, Any]:
        """Return the file that Compose is given: the checked model, with the settings of every sandbox added."""
        labels = {"labels": {LEASE_LABEL: self._leases[self._project.main].id}}
        networks: dict[str, Any] = {
            name: {"internal": True, "driver_opts": _NO_HOST, **labels} for name in self._project.networks
        }
        if self._network_mode == "open":
            networks[OUTSIDE] = {"name": self._outside, **labels}
        return {
            "services": {name: self._service(engine, name, image, seccomp) for name, image in images.items()},
            "networks": networks,
            "volumes": dict.fromkeys(self._project.volumes, labels),
        }

    def _service(self, engine: Engine, name: str, image: str, seccomp: Path) -> dict[str, Any]:
        service_config, limits, service_environment = self._project.services[name], self._asked.limits, self._of(name)
        image_facts = engine_images.inspect(engine, image)
        dropped = service_config.get("cap_drop") or []
        capabilities = (
            [] if isinstance(dropped, list) and "ALL" in dropped else sorted(CAPABILITIES.keys() - {*_texts(dropped)})
        )
        security = ["no-new-privileges:true"]
        if image_facts is not None and image_facts.platform.rpartition("/")[2] in ARCHITECTURES:
            security.append(f"seccomp:{seccomp}")
        is_main = name == self._project.main
        memory = limits.memory_bytes if is_main else service_environment.memory_bytes or SandboxLimits().memory_bytes
        labels = {
            LABEL: "1", LEASE_LABEL: self._leases[name].id, IMAGE_LABEL: image,
            LABELS_LABEL: " ".join(self._asked.labels), **self._asked.labels,
        }  # fmt: skip
        resolved: dict[str, Any] = {
            **service_config, "image": image, "pull_policy": "never",
            "container_name": _container(self._asked.name, name),
            "labels": complete(labels), "cap_drop": ["ALL"], "cap_add": capabilities, "security_opt": security,
            "restart": "no",
            "pids_limit": limits.pids, "mem_limit": memory, "memswap_limit": memory, "oom_score_adj": 500,
            "cpus": min(limits.cpus or 2.0, service_environment.cpus or limits.cpus or 2.0),
            "logging": {"driver": "json-file", "options": {"max-size": "1m"}},
            "ulimits": {**mapping_or_empty(service_config.get("ulimits")), "core": 0},
        }  # fmt: skip
        if limits.cpuset is not None:
            resolved["cpuset"] = limits.cpuset
        if self._network_mode == "open" and "networks" in resolved:
            resolved["networks"] = {**mapping_or_empty(resolved["networks"]), OUTSIDE: {}}
        if is_main:
            user = str(service_config.get("user") or (image_facts.user if image_facts else ""))
            resolved["labels"] |= {USER_LABEL: user}
            private = f"{PRIVATE_DIR}:rw,nosuid,nodev,noexec,size={limits.private_bytes},mode=1777"
            resolved["tmpfs"] = [*_texts(service_config.get("tmpfs") or []), private]
            resolved["shm_size"] = service_config.get("shm_size") or limits.shm
            if self._is_idle:  # as in every sandbox; uid 0, else no process has a capability
                resolved |= {"entrypoint": ["/bin/sh", "-c", PID_1.replace("$", "$$")], "command": [], "user": "0:0"}
        return resolved

    @property
    def _is_idle(self) -> bool:
        """Whether the sandbox's service only waits for commands."""
        service_config = self._project.services[self._project.main]
        words = " ".join(_texts(service_config.get("command") or []))
        return not service_config.get("entrypoint") and (not words or bool(IDLE.fullmatch(words)))

    @property
    def _outside(self) -> str:
        return f"{self._asked.name}_outside"

    def _await(self, engine: Engine, deadline: float) -> None:
        """Wait until every service runs, is healthy, or has ended as it should."""
        waiting = [*self._project.services]
        while True:
            waiting = [service for service in waiting if not self._is_ready(engine, service)]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise SandboxUnavailable(
                    f"The task's service {waiting[0]!r} is not healthy after "
                    f"{self._environment.build_timeout_s:g} s.{self._service_logs(engine)}"
                )
            if self._asked.cancel.wait(_POLL_S):
                raise SandboxUnavailable("The start of the task's services was cancelled.")

    def _is_ready(self, engine: Engine, service: str) -> bool:
        if service in self._stopped:
            return True
        with engine_errors(f"looking at service {service!r}"):
            state = engine.api.inspect_container(_container(self._asked.name, service))["State"]
        health = (state.get("Health") or {}).get("Status", "none")
        if health == "unhealthy" or state["Status"] in {"exited", "dead"}:
            if state["Status"] == "exited" and state["ExitCode"] == 0 and service != self._project.main:
                return True  # it prepared something for the others
            state_text = "is unhealthy" if health == "unhealthy" else f"ended with exit code {state['ExitCode']}"
            raise SandboxUnavailable(f"The task's service {service!r} {state_text}.{self._service_logs(engine)}")
        return state["Status"] == "running" and health in {"none", "healthy"}

    def _service_logs(self, engine: Engine) -> str:
        """Return the last output of each service, for a message."""
        report = ""
        for service in self._project.services:
            try:
                with engine_errors(f"reading the log of service {service!r}"):
                    text = engine.api.logs(_container(self._asked.name, service), tail=_LAST_LINES)
            except SandboxUnavailable:
                continue
            if words := " ".join(text.decode(errors="replace").split())[-300:]:
                report += f" {service} said: {words}"
        return report

    def save_services(self, directory: Path) -> list[ServiceResult]:
        """Write what each service beside the sandbox has printed into directory; returns how each is.

        The engine keeps up to 1 MB of what a service prints. One that cannot be asked is left out.
        """
        engine, results = self._require_sandbox().container.engine, list[ServiceResult]()
        for service in self._project.services.keys() - {self._project.main}:
            name = _container(self._asked.name, service)
            try:
                with engine_errors(f"looking at service {service!r}"):
                    state, printed = engine.api.inspect_container(name)["State"], engine.api.logs(name, timestamps=True)
            except SandboxUnavailable:
                continue
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{file_name(service)}.log").write_bytes(printed)
            runs = bool(state.get("Running"))
            used = read_stats(engine, name, until=math.inf) if runs else None
            results.append(ServiceResult(
                name=service, status=str(state["Status"]), exit_code=None if runs else state.get("ExitCode"),
                oom_killed=bool(state.get("OOMKilled")), cpu_s=used.cpu_s if used else None,
                memory_bytes=used.memory_bytes if used else None,
            ))  # fmt: skip
        return sorted(results, key=lambda result: result.name)

    def joined(self, service: str) -> DockerRuntime:
        """Return a runtime for another service of the project, not started; closing it leaves the service as it is."""
        return DockerRuntime(attach=_container(self._asked.name, service))

    def set_network(self, network: Network, *, allow: Sequence[str] | None = None) -> None:
        """Connect all services of the project to a network that leads outside, or disconnect them.

        They reach each other in any case.

        Raises:
            UsageError: it is the allowlist.
            SandboxUnavailable: the engine refuses, or a service is gone.
        """
        if network == "allowlist" or allow:
            raise UsageError(NO_ALLOWLIST)
        if network == self._network_mode:
            return
        api = self._require_sandbox().container.engine.api
        with engine_errors(f"changing the network of {self._asked.name!r} to {network!r}"):
            if network == "open" and not api.networks(names=[self._outside]):
                labels = {LEASE_LABEL: self._leases[self._project.main].id}
                api.create_network(self._outside, driver="bridge", labels=labels)
            for service, service_config in self._project.services.items():
                name = _container(self._asked.name, service)
                details = api.inspect_container(name)
                is_in = self._outside in (details["NetworkSettings"].get("Networks") or {})
                if is_in == (network == "open") or "network_mode" in service_config or not details["State"]["Running"]:
                    continue
                (api.disconnect_container_from_network if is_in else api.connect_container_to_network)(
                    name, self._outside
                )
        self._network_mode = network

    def end_processes(self) -> None:
        """End every process of the sandbox; the other services go on.

        A service with a command of its own is restarted, for that may need the processes that it began.
        """
        if self._is_idle:
            super().end_processes()
            return
        sandbox = self._require_sandbox()
        sandbox.container.restart()
        self._await(sandbox.container.engine, time.monotonic() + self._environment.build_timeout_s)

    def _close(self) -> None:
        super()._close()
        with self._removing:
            if not self._leases:
                return
        with closing(connect()) as engine:
            self._remove(engine)

    def _remove(self, engine: Engine) -> None:
        """Remove everything of the project. What cannot be removed now is left to `gc`."""
        if self._monitor_engine is not None:
            self._monitor_engine.close()
        with self._removing:
            leases, self._leases = self._leases, {}
        if not leases:
            return
        is_whole = True
        for service_lease in leases.values():
            try:
                force_remove(engine, service_lease.record.container)
            except SandboxGone:
                pass
            except OhsandboxError:
                is_whole = False
        shared = remove_shared(engine, {leases[self._project.main].id})
        is_whole &= all(removal.outcome != "failed" for removal in shared)
        for service_lease in leases.values():
            service_lease.release() if is_whole else service_lease.abandon()


def _container(project: str, service: str) -> str:
    return f"{project}-{service}"


def _host(engine: Engine) -> str:
    return engine.address.url.replace("http+unix://", "unix://")


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
