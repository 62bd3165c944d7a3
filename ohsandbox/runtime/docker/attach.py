"""Attaching to a running container that somebody else created, and describing its access beyond itself."""

from __future__ import annotations

import contextlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.config.container_config import PRIVATE_DIR
from ohsandbox.runtime.docker.config.options import check_environment, sane_workdir, workdir_of
from ohsandbox.runtime.docker.config.resolve import hostile_names
from ohsandbox.runtime.docker.container import Container
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.labels import USER_LABEL
from ohsandbox.runtime.docker.provision import copy_ca_bundle
from ohsandbox.runtime.docker.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine

SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock", "dockershim.sock", "buildkitd.sock")
"""Sockets of engines: write access to one is root access to the engine's machine."""
_SOCKET_PLACES = ("/run", "/var/run", "/var", "/")
"""Directories that contain these sockets on most machines."""
_NAMESPACES = {"NetworkMode": "network", "PidMode": "processes", "IpcMode": "shared memory"}
_UNCONFINED = ("seccomp=unconfined", "apparmor=unconfined", "label=disable", "label:disable", "systempaths=unconfined")


def join(engine: Engine, options: DockerOptions) -> Sandbox:
    """Return the running container named by attach=, whoever created it.

    Raises:
        UsageError: the container does not exist, or its environment is too large.
        SandboxUnavailable: it is not running, or the ca_bundle cannot be written.
    """
    try:
        inspected = Container(engine, str(options.attach), name=str(options.attach)).inspect()
    except SandboxGone:
        raise UsageError(f"Container {options.attach!r} does not exist. Choose one that `docker ps` lists.") from None
    container = Container(engine, str(inspected["Id"]), name=str(inspected["Name"]).lstrip("/"))
    container.note_start(inspected)
    if (loss := container.loss_by(inspected["State"])) is not None:
        raise loss
    config = inspected["Config"]
    exec_env = options.ca_environment | options.env
    check_environment(config.get("Env") or [], exec_env, whose=f"Container {container.name!r} with env=")
    has_ours = PRIVATE_DIR in (inspected["HostConfig"].get("Tmpfs") or {})
    joined = Sandbox(
        container=container,
        options=options,
        user=options.user or _own_user(config) or config.get("User") or "",
        workdir=sane_workdir(options.workdir) or workdir_of(config),
        exec_env=exec_env,
        unset=hostile_names(config.get("Env") or []),
        state_dir=PRIVATE_DIR if has_ours else "/tmp",  # noqa: S108 - in the container; every image has it
        exposed=tuple(exposures(inspected | {"Mounts": _resolved(engine, inspected.get("Mounts") or [])})),
    )
    copy_ca_bundle(joined)
    return joined


def _own_user(config: Mapping[str, Any]) -> str:
    """Return the user of processes by our label; empty for a container whose creator chose another user than we do."""
    return str((config.get("Labels") or {}).get(USER_LABEL) or "") if config.get("User") == "0:0" else ""


def _resolved(engine: Engine, mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mounts, with volumes backed by a host directory (`--opt o=bind`) as bind mounts of it."""
    resolved = []
    for mount in mounts:
        options: Mapping[str, str] = {}
        if mount.get("Type") == "volume" and mount.get("Name"):
            with contextlib.suppress(SandboxUnavailable), engine_errors(f"looking at volume {mount['Name']!r}"):
                options = engine.api.inspect_volume(mount["Name"]).get("Options") or {}
        device = str(options.get("device") or "")
        resolved.append(mount | {"Type": "bind", "Source": device} if device.startswith("/") else mount)
    return resolved


def exposures(found: Mapping[str, Any]) -> list[str]:
    """Describe each access beyond the container, the worst first; empty for an isolated container."""
    host: Mapping[str, Any] = found.get("HostConfig") or {}
    environment = (str(entry).partition("=") for entry in (found.get("Config") or {}).get("Env") or [])
    engines = [name for name, _, value in environment if name in {"DOCKER_HOST", "CONTAINER_HOST"} and value]
    return [*_rights(host), *_paths(found), *(f"an engine, by its variable {name}" for name in engines)]


def _rights(host: Mapping[str, Any]) -> Iterator[str]:
    if host.get("Privileged"):
        yield "it is privileged"
    if added := host.get("CapAdd"):
        yield f"added capabilities ({', '.join(map(str, added))})"
    devices = [str(device.get("PathOnHost")) for device in host.get("Devices") or []]
    if devices or host.get("DeviceRequests") or host.get("DeviceCgroupRules"):
        yield f"devices of the machine ({', '.join(devices) or 'by request or rule'})"
    yield from (option for option in host.get("SecurityOpt") or [] if option in _UNCONFINED)
    for field, namespace in _NAMESPACES.items():
        mode = str(host.get(field) or "")
        if mode == "host":
            yield f"the machine's {namespace}"
        elif mode.startswith("container:"):
            yield f"another container's {namespace}"


def _paths(inspected: Mapping[str, Any]) -> Iterator[str]:
    """Yield the bound paths, except those that lie in another bound path of the same kind."""
    binds = [mount for mount in inspected.get("Mounts") or [] if mount.get("Type") == "bind"]
    pairs = {PurePosixPath(str(bind.get("Destination"))): PurePosixPath(str(bind.get("Source"))) for bind in binds}
    for target, source in sorted(pairs.items()):
        if any(above in target.parents and source.is_relative_to(pairs[above]) for above in pairs):
            continue
        if source.name in SOCKETS:
            yield f"the engine's socket {source}"
        elif str(source) in _SOCKET_PLACES:
            yield f"{source} of the machine, with the engine's socket"
        else:
            yield f"{source} of the machine, as {target}"
