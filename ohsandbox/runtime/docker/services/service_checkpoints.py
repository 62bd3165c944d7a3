"""The files of services in checkpoints: each service is committed beside its sandbox, and its volumes with it.

A commit does not include volumes. A volume's files are copied as an archive through the engine's API into an image of
their own, and at a restore from that image into the new container's volume before it starts. Data that a service holds
only in memory is not kept.
"""

from __future__ import annotations

import contextlib
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.labels import CHECKPOINT_REPOSITORY, CHECKPOINT_SERVICES_LABEL, SERVICE_OF_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.services.pods import Pod

_CHUNK_BYTES = 1024 * 1024


class KeptService(NamedTuple):
    """A service in a checkpoint."""

    image: str
    """The id of the image with its files."""
    volumes: tuple[str, ...] = ()
    """Ids of the images with the files of its volumes, in the order of their mount points."""


def names_of(tag: str, pod: Pod) -> tuple[str, ...]:
    """Return the tags for the images of a checkpoint's services, before the images are created."""
    tags = []
    for name, service in pod.running.items():
        tags.append(f"{tag}-{name}")
        tags += [f"{tag}-{name}.{number}" for number, _ in enumerate(_volumes(service.container.inspect()))]
    return tuple(tags)


def commit(pod: Pod, repository: str, tag: str, *, room: int | None) -> tuple[str, int]:
    """Commit all services, which are paused; return the value of the checkpoint's label and the bytes written.

    room is the maximum number of bytes; None is no limit.

    Raises:
        SandboxUnavailable: the engine failed, there is no room, or a service with volumes was not paused: its processes
            could lead the engine's archive API elsewhere on this machine (`Container.start`).
    """
    api, entries, size = pod.engine.api, list[str](), 0
    for name, running in pod.running.items():
        size += running.container.written_bytes()
        if room is not None and size > room:
            raise SandboxUnavailable(
                f"Keeping the files of service {name!r} needs more room than the engine's disk has."
            )
        blank = [f'ENV {secret}=""' for secret in running.service.secrets]
        with engine_errors(f"keeping the files of service {name!r}"):
            committed = api.commit(
                running.container.id,
                repository=repository,
                tag=f"{tag}-{name}",
                changes=[*blank, f"LABEL {SERVICE_OF_LABEL}="],
            )
            ids = [str(committed["Id"])]
            inspected = running.container.inspect()
            state, volumes = inspected["State"], _volumes(inspected)
            if volumes and state.get("Running") and not state.get("Paused"):
                raise SandboxUnavailable(
                    f"The volumes of service {name!r} are not kept, since the engine did not pause it.",
                    remedy="Use an engine that can pause containers, or no checkpoints.",
                )
            for number, volume_path in enumerate(volumes):
                target = f"{tag}-{name}.{number}"
                with _archive(pod.engine, running.container.id, volume_path) as archive:
                    counted = _Counted(archive, None if room is None else room - size)
                    api.import_image_from_stream(counted, repository=repository, tag=target)
                size += counted.bytes
                ids.append(str(api.inspect_image(f"{repository}:{target}")["Id"]))
        entries.append(f"{name}={','.join(ids)}")
    return " ".join(entries), size


@contextlib.contextmanager
def _archive(engine: Engine, container: str, path: str) -> Iterator[Iterator[bytes]]:
    """Context with the archive of a directory, whose connection is closed however much of it was read.

    docker-py's `get_archive` leaves it open, and engine 20.10 holds the container's lock until it is closed.
    """
    api = engine.api
    url = api._url("/containers/{0}/archive", container)  # noqa: SLF001 - docker-py's own call hides the response
    response = api._get(url, params={"path": path}, stream=True, headers={"Accept-Encoding": "identity"})  # noqa: SLF001 - as above
    with contextlib.closing(response):
        yield api._stream_raw_result(response, _CHUNK_BYTES, False)  # noqa: SLF001, FBT003 - as above


class _Counted:
    """Reads an archive, and raises an error once it exceeds the available room."""

    def __init__(self, chunks: Iterator[bytes], room: int | None) -> None:
        self._chunks, self._room, self.bytes = chunks, room, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.bytes += len(chunk)
            if self._room is not None and self.bytes > self._room:
                raise SandboxUnavailable("Keeping a service's volume needs more room than the engine's disk has.")
            yield chunk


def kept(engine: Engine, checkpoint: str) -> dict[str, KeptService]:
    """Return the services in a checkpoint, by name; empty if it has none.

    Raises:
        SandboxUnavailable: the engine fails, or the checkpoint is gone.
    """
    with engine_errors(f"looking at checkpoint {checkpoint[:19]!r}"):
        labels = (engine.api.inspect_image(checkpoint).get("Config") or {}).get("Labels") or {}
    by_service = {}
    for entry in str(labels.get(CHECKPOINT_SERVICES_LABEL) or "").split():
        name, _, ids = entry.partition("=")
        image, *volumes = ids.split(",")
        for one in (image, *volumes):
            _check_kept(engine, one, checkpoint)
        by_service[name] = KeptService(image, tuple(volumes))
    return by_service


def _check_kept(engine: Engine, image: str, checkpoint: str) -> None:
    """Pass if an image that a checkpoint's label names is one of ours: anybody may write a label into an image."""
    if engine_images.IMAGE_ID.fullmatch(image):
        with engine_errors(f"looking at a service of checkpoint {checkpoint[:19]!r}"):
            tags = engine.api.inspect_image(image).get("RepoTags") or ()
        if any(str(tag).startswith(f"{CHECKPOINT_REPOSITORY}:") for tag in tags):
            return
    raise SandboxUnavailable(
        f"Checkpoint {checkpoint[:19]!r} names {image[:80]!r} as a service's files, which is no checkpoint's image.",
        remedy="Use another checkpoint.",
    )


def fill(engine: Engine, container: str, volumes: tuple[str, ...]) -> None:
    """Copy the files of volumes into those of a container that was created but not started.

    Raises:
        SandboxUnavailable: the engine fails.
    """
    with engine_errors("restoring the volumes of a service"):
        places = _volumes(engine.api.inspect_container(container))
    for volume_path, image in zip(places, volumes, strict=False):
        with engine_errors("restoring the volumes of a service"):
            holder = str(engine.api.create_container_from_config({"Image": image, "Cmd": ["none"]})["Id"])
        try:
            with (
                engine_errors("restoring the volumes of a service"),
                _archive(engine, holder, f"/{posixpath.basename(volume_path)}") as archive,
            ):
                engine.api.put_archive(container, posixpath.dirname(volume_path), archive)
        finally:
            with contextlib.suppress(OhsandboxError), engine_errors("removing a holder of files"):
                engine.api.remove_container(holder, force=True)


def _volumes(inspected: Mapping[str, Any]) -> list[str]:
    """Return the mount points of a container's volumes, sorted."""
    return sorted(str(mount["Destination"]) for mount in inspected.get("Mounts") or [] if mount.get("Type") == "volume")
