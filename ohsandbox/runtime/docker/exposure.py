"""What a container that was not made by us reaches beyond itself, by the engine's own description of it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock", "dockershim.sock", "buildkitd.sock")
"""Whoever may write to one of these is root of the engine's machine."""
_SOCKET_PLACES = ("/run", "/var/run", "/var", "/")
"""Directories that hold one, on most machines."""
_NAMESPACES = {"NetworkMode": "network", "PidMode": "processes", "IpcMode": "shared memory"}
_UNCONFINED = ("seccomp=unconfined", "apparmor=unconfined", "label=disable", "label:disable", "systempaths=unconfined")


def exposures(found: Mapping[str, Any]) -> list[str]:
    """Each way out, in words, the worst first; empty for a container that keeps to itself."""
    host: Mapping[str, Any] = found.get("HostConfig") or {}
    return [*_rights(host), *_namespaces(host), *_paths(found), *_engines(found)]


def _rights(host: Mapping[str, Any]) -> Iterator[str]:
    if host.get("Privileged"):
        yield "it is privileged"
    if added := host.get("CapAdd"):
        yield f"added capabilities ({', '.join(map(str, added))})"
    devices = [str(one.get("PathOnHost")) for one in host.get("Devices") or []]
    if devices or host.get("DeviceRequests") or host.get("DeviceCgroupRules"):
        yield f"devices of the machine ({', '.join(devices) or 'by request or rule'})"
    yield from (one for one in host.get("SecurityOpt") or [] if one in _UNCONFINED)


def _namespaces(host: Mapping[str, Any]) -> Iterator[str]:
    for field, what in _NAMESPACES.items():
        mode = str(host.get(field) or "")
        if mode == "host":
            yield f"the machine's {what}"
        elif mode.startswith("container:"):
            yield f"another container's {what}"


def _paths(found: Mapping[str, Any]) -> Iterator[str]:
    """Bound paths, without those that lie in another of the same place."""
    binds = [one for one in found.get("Mounts") or [] if one.get("Type") == "bind"]
    pairs = {PurePosixPath(str(one.get("Destination"))): PurePosixPath(str(one.get("Source"))) for one in binds}
    for target, source in sorted(pairs.items()):
        if any(above in target.parents and source.is_relative_to(pairs[above]) for above in pairs):
            continue
        if source.name in SOCKETS:
            yield f"the engine's socket {source}"
        elif str(source) in _SOCKET_PLACES:
            yield f"{source} of the machine, with the engine's socket"
        else:
            yield f"{source} of the machine, as {target}"


def _engines(found: Mapping[str, Any]) -> Iterator[str]:
    for entry in (found.get("Config") or {}).get("Env") or []:
        name, _, value = str(entry).partition("=")
        if name in {"DOCKER_HOST", "CONTAINER_HOST"} and value:
            yield f"an engine, by its variable {name}"
