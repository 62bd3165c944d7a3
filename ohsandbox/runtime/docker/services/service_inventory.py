"""The services of sandboxes as the engine lists them: found by label, described, and removed with their lease."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.labels import SERVICE_LABEL, SERVICE_OF_LABEL
from ohsandbox.runtime.inventory import ServiceInfo
from ohsandbox.runtime.service_options import Service
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.ownership.lease import LeaseRecord

_REMOVALS = 4
"""Number of concurrent removals."""


def described_service(labels: Mapping[str, str]) -> Service | None:
    """Return the service that a container's labels describe; None if they describe none."""
    with contextlib.suppress(UsageError, ValueError, TypeError):
        return Service(**load_json(labels.get(SERVICE_LABEL) or ""))
    return None


def found_services(engine: Engine, record: LeaseRecord) -> list[tuple[Service, dict[str, Any]]]:
    """Return the services of a lease, running or not, with the engine's descriptions of their containers."""
    pairs = ((described_service(container.get("Labels") or {}), container) for container in _containers(engine, record))
    return [(service, container) for service, container in pairs if service is not None]


def _containers(engine: Engine, record: LeaseRecord) -> list[dict[str, Any]]:
    if not record.services:
        return []
    with engine_errors("looking for the services of a sandbox"):
        listed = engine.api.containers(all=True, filters={"label": f"{SERVICE_OF_LABEL}={record.id}"})
    prefix = f"{record.container}-"  # an image committed from a service has its labels as well
    return [
        container for container in listed if str((container.get("Names") or ["/"])[0]).lstrip("/").startswith(prefix)
    ]


def remove(engine: Engine, record: LeaseRecord) -> None:
    """Remove all services of a lease, with their volumes.

    Raises:
        SandboxUnavailable: the engine fails.
    """
    ids = [str(container["Id"]) for container in _containers(engine, record)]
    with ThreadPoolExecutor(_REMOVALS) as pool:
        for _ in pool.map(partial(containers.force_remove, engine), ids):
            pass


def infos(engine: Engine, record: LeaseRecord) -> list[ServiceInfo]:
    """Return the state of each service of a lease."""
    services = []
    for service, container in found_services(engine, record):
        image = service.image or f"built from {service.build.context if service.build else ''}"
        state = str(container.get("State") or "")
        detail = "" if state == "running" else str(container.get("Status") or "")
        place = record.container, service.name, image, state
        services.append(ServiceInfo(*place, service.ports or (), record.conversation, str(container["Id"]), detail))
    return services


def read_log(engine: Engine, container: str, *, lines: int | None = None) -> str:
    """Return the last lines of a container's output; with lines=None, all output that the engine has kept."""
    with engine_errors(f"reading the log of {container[:64]!r}"):
        text = engine.api.logs(container, tail="all" if lines is None else lines)
    return bytes(text).decode(errors="replace")
