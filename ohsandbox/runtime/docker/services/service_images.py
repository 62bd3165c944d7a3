"""The images of services: pulled, built, or taken from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import ImageUnavailable, SandboxRefused
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.services import service_checkpoints
from ohsandbox.runtime.docker.services.service_inventory import described_service
from ohsandbox.text import natural_number

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.results import PullProgress
    from ohsandbox.runtime.service_options import Service


class ServiceImage(NamedTuple):
    """The facts of an image from which a service's container is created."""

    facts: engine_images.ImageFacts
    ports: tuple[int, ...]
    healthcheck: tuple[str, ...]
    """The words of its health check; empty if it has none."""
    volumes: tuple[str, ...] = ()
    """From a checkpoint: ids of the images with the files of its volumes."""


def images_of_checkpoint(
    engine: Engine, kept: Mapping[str, service_checkpoints.KeptService], services: Sequence[Service]
) -> dict[str, ServiceImage]:
    """Return the images of those services that the checkpoint contains.

    Raises:
        ImageUnavailable: an image no longer exists.
    """
    images = {}
    for service in services:
        if (kept_service := kept.get(service.name)) is None:
            continue
        with engine_errors(f"looking for the files of service {service.name!r}"):
            described = engine.api.inspect_image(kept_service.image)
        was = described_service((described.get("Config") or {}).get("Labels") or {}) or service
        image_facts = engine_images.facts_of_image(described)
        images[service.name] = ServiceImage(image_facts, was.ports or (), was.healthcheck or (), kept_service.volumes)
    return images


def find_images(
    engine: Engine,
    services: Sequence[Service],
    *,
    checkpoint: str | None,
    progress: Callable[[PullProgress], None] | None,
    cancel: threading.Event | None,
) -> dict[str, ServiceImage]:
    """Return the services' images, from the checkpoint if it contains them; others are pulled or built if missing.

    Raises:
        SandboxRefused: the engine is Podman.
        ImageUnavailable, UsageError, CallCancelledError: as `engine_images.ensure` and `build.ensure`.
    """
    if services and engine.is_podman:
        raise SandboxRefused("Services are not available with Podman. Use a Docker engine.")
    kept_services = service_checkpoints.kept(engine, checkpoint) if services and checkpoint else {}
    images = images_of_checkpoint(engine, kept_services, services)
    for service in services:
        if service.name in images:
            continue
        name = service.image
        try:
            if service.build is not None:
                from ohsandbox.runtime.docker.images import build  # noqa: PLC0415 - few services build

                name = build.ensure(engine, service.build, progress=progress, cancel=cancel)
            engine_images.ensure(engine, str(name), progress=progress, cancel=cancel)
        except ImageUnavailable as error:
            raise ImageUnavailable(f"Service {service.name!r}: {error}") from error
        images[service.name] = _image_of(engine, str(name), service)
    return images


def _image_of(engine: Engine, name: str, service: Service) -> ServiceImage:
    """Return the facts of a local image that a service needs.

    Raises:
        ImageUnavailable: the image is missing.
    """
    with engine_errors(f"looking at image {name!r}"):
        described = engine.api.inspect_image(name)
    config = described.get("Config") or {}
    exposed = [port.partition("/") for port in config.get("ExposedPorts") or {}]
    numbers = (natural_number(port) for port, _, kind in exposed if kind in {"", "tcp"})
    ports = tuple(sorted(number for number in numbers if number is not None))
    check = service.healthcheck
    if check is None:
        check = tuple((config.get("Healthcheck") or {}).get("Test") or ())
    match check:
        case ("CMD", *words):
            check = tuple(words)
        case ("CMD-SHELL", *words):
            check = ("/bin/sh", "-c", " ".join(words))
        case ("NONE", *_):
            check = ()
    own = ports if service.ports is None else service.ports
    return ServiceImage(engine_images.facts_of_image(described), own, check)
