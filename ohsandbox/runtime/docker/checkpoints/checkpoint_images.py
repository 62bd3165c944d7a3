"""Checkpoints of a container: its file system, committed as an image of our own, and how long each is kept.

Each checkpoint image has one tag per owner, and each tag has a record in the state directory, written before the tag is
created. An image without a record here belongs to somebody else and is never touched. Labels prove nothing: images
inherit them, and anybody may write them. Removing the last tag removes the image.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ohsandbox.errors import ImageUnavailable, SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.runtime import owners
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.config.container_config import GIB
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.labels import (
    CHECKPOINT_LABEL,
    CHECKPOINT_REPOSITORY,
    CHECKPOINT_SERVICES_LABEL,
    CONVERSATION_LABEL,
    IMAGE_LABEL,
    USER_LABEL,
)
from ohsandbox.runtime.results import Checkpoint
from ohsandbox.strict_json import MAX_INTEGER
from ohsandbox.text import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.docker.services.pods import Pod

REPOSITORY = CHECKPOINT_REPOSITORY
_MAX_LABEL_CHARS = 200

MAX_EACH = 20
_MAX_EACH_BYTES = 4 * GIB
"""Size limit for one owner's checkpoints. The first checkpoint is always kept, since all comparisons start from it."""
_MAX_ALL = 200
MAX_ALL_BYTES = 20 * GIB
"""Size limit for the checkpoints of all owners of this state directory together."""
UNFINISHED_S = 3600.0
"""A record that has no image after this time belongs to a process that died while creating it."""
_TAG = re.compile(r"^[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$")
_OF_SERVICE = re.compile(r"-[a-z0-9_-]{1,63}(?:\.[0-9]{1,4})?")
"""The end of the tag of a service's image, or of the image of one of its volumes."""
_LAST_TIME_S = 253402300799
"""The end of the year 9999, the last one of `datetime`."""


def commit_container(
    container: Container,
    *,
    label: str,
    conversation: str | None,
    owner: Path | None,
    room: Callable[[], int | None],
    pod: Pod | None = None,
) -> Checkpoint:
    """Commit the container; it is paused meanwhile (0.1 s for a few files, 0.8 s for 5,000).

    Checkpoints over the retention limits are released. The checkpoint includes the services of pod. owner is a
    directory: once it was deleted, the checkpoint may be removed. room returns the bytes that may be written, None if
    unknown: the engine also writes the holes of sparse files, so a sandbox that wrote nothing (`truncate -s 16G`) could
    fill the disk.

    Raises:
        SandboxUnavailable: the engine failed, for example for lack of space, or the container is gone.
        UsageError: label is too long or not a single line; or the state directory cannot be written.
    """
    if len(label) > _MAX_LABEL_CHARS or not label.isprintable():
        raise UsageError(
            f"Invalid label {label!r} of a checkpoint. Use one line of at most {_MAX_LABEL_CHARS} characters."
        )
    api, name = container.engine.api, container.name
    marks = [f"LABEL {CHECKPOINT_LABEL}=1", f"LABEL {CONVERSATION_LABEL}={conversation or ''}"]
    record = begin(container.engine, owner=owner, pod=pod)
    beside = 0
    try:
        # if the engine's disk is on another machine, the sandbox is asked, so it must run
        space = room()
        with (
            container.paused(),
            contextlib.nullcontext() if pod is None else pod.paused(),
            engine_errors(f"keeping the files of sandbox {name!r}"),
        ):
            _require_room(container, space)
            services = ""
            if pod is not None:
                room_left = None if space is None else space - container.written_bytes()
                services, beside = pod.commit(REPOSITORY, record.tag, room=room_left)
            marks.append(f'LABEL {CHECKPOINT_SERVICES_LABEL}="{services}"')
            committed = api.commit(container.id, repository=REPOSITORY, tag=record.tag, message=label, changes=marks)
            inspected, layers = api.inspect_image(committed["Id"]), api.history(committed["Id"])
    except SandboxUnavailable:
        _discard(container.engine, record)
        raise
    made_at = datetime.fromisoformat(str(inspected["Created"]).rstrip("Z")[:26]).replace(tzinfo=UTC)
    done = Checkpoint(
        str(inspected["Id"]), str(inspected.get("Comment") or ""), made_at, int(layers[0].get("Size") or 0) + beside
    )
    _write(record.model_copy(update={"id": done.id, "size_bytes": done.size_bytes}))
    with contextlib.suppress(SandboxUnavailable):  # ignored: the next checkpoint tries again
        prune(container.engine, owner=owner)
    return done


def _require_room(container: Container, room: int | None) -> None:
    if room is not None and (size := container.written_bytes()) > room:
        raise SandboxUnavailable(
            f"Keeping the files of sandbox {container.name!r} would write {size / GIB:.1f} GiB, sparse files at their "
            f"full length, and the engine's disk has room for {max(room, 0) / GIB:.1f}. Delete large files."
        )


def restore(
    container: Container, config: ContainerConfig, checkpoint: str, *, prepare: Callable[[Container], None]
) -> Container:
    """Create a container of the same name with the checkpoint's files; the old one is removed once the new one runs.

    Raises:
        SandboxUnavailable: the checkpoint does not exist or the engine failed; the old container is unchanged.
    """
    engine = container.engine
    image = require(engine, checkpoint)
    with engine_errors(f"putting sandbox {container.name!r} aside"):
        engine.api.rename(container.id, f"{container.name[:100]}-{secrets.token_hex(4)}")
    new_container: Container | None = None
    try:
        new_config = config.model_copy(update={"image": image, "name": container.name})
        new_container = containers.create(engine, new_config, egress=container.egress)
        prepare(new_container)
    except BaseException:
        if new_container is not None:
            new_container.force_remove()
        with contextlib.suppress(SandboxUnavailable), engine_errors("putting it back"):
            engine.api.rename(container.id, container.name)
        raise
    container.force_remove()
    return new_container


def drop(engine: Engine, checkpoint: str) -> None:
    """Remove a checkpoint for all its owners; one that is gone is not an error.

    Raises:
        SandboxUnavailable: the engine failed, or a running container uses the checkpoint.
    """
    with contextlib.suppress(SandboxGone, ImageUnavailable):
        image = require(engine, checkpoint)
        with engine_errors(f"removing checkpoint {checkpoint[:19]!r}"):
            engine.api.remove_image(image, force=True)
    for record in records(engine):
        if record.id == checkpoint:
            _discard(engine, record)


def require(engine: Engine, checkpoint: str) -> str:
    """Return the id of the checkpoint's image. Raises as `facts`."""
    return facts(engine, checkpoint).id


def facts(engine: Engine, checkpoint: str) -> engine_images.ImageFacts:
    """Return the image facts needed to create a sandbox from the checkpoint; nothing is ever pulled.

    Raises:
        ImageUnavailable: the image does not exist, or is not a checkpoint.
    """
    try:
        with engine_errors(f"looking for checkpoint {checkpoint[:19]!r}"):
            inspected = engine.api.inspect_image(checkpoint)
    except SandboxUnavailable as error:
        raise ImageUnavailable(f"Checkpoint {checkpoint[:19]!r} does not exist any more. Use another.") from error
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    if labels.get(CHECKPOINT_LABEL) != "1":
        raise ImageUnavailable(f"Image {checkpoint[:19]!r} is not a checkpoint. Name one that checkpoint() returned.")
    # the image's own user is root: see create_payload
    user, image = str(labels.get(USER_LABEL) or ""), str(labels.get(IMAGE_LABEL) or "")
    return engine_images.facts_of_image(inspected)._replace(user=user, checkpoint_of=image)


# --- retention ---


class CheckpointRecord(BaseModel):
    """One tag of one checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tag: str = Field(pattern=_TAG.pattern)
    engine: str
    """The engine's address; images of other engines are never removed."""
    made_at: float = Field(ge=0, le=_LAST_TIME_S)
    """Seconds since the epoch; only shown, since a clock may be set back."""
    number: int = Field(0, ge=0, le=MAX_INTEGER)
    """Higher than that of each checkpoint that was there when this one was begun; 0 in records of earlier versions."""
    owner: str | None = None
    """Name of a directory, see `owners`: the checkpoint may be removed once that was deleted. None: it stays until it
    is dropped."""
    id: str = Field("", pattern=rf"^({engine_images.IMAGE_ID.pattern})?$")
    """Image id; empty until the image is created."""
    size_bytes: int = Field(0, ge=0, le=MAX_BYTES)
    services: tuple[str, ...] = ()
    """Tags of the images with the files of its services."""

    @model_validator(mode="after")
    def _own_tags(self) -> Self:
        """Refuse the tag of anything else: a request to remove an image with `/../` in its name removes a container."""
        if not all(
            name.startswith(f"{self.tag}-") and _OF_SERVICE.fullmatch(name[len(self.tag) :]) for name in self.services
        ):
            raise ValueError("a service's tag does not begin with the checkpoint's")
        return self

    @property
    def name(self) -> str:
        """Image name with tag, as the engine knows it."""
        return f"{REPOSITORY}:{self.tag}"

    @property
    def is_orphan(self) -> bool:
        """Whether the checkpoint is no longer needed."""
        unfinished = not self.id and time.time() - self.made_at > UNFINISHED_S
        return unfinished or (self.owner is not None and owners.is_deleted(self.owner))

    @property
    def is_lost(self) -> bool:
        """Whether its owner cannot be found, though nobody deleted it."""
        return not self.is_orphan and self.owner is not None and not owners.is_there(self.owner)

    def belongs_to(self, owner: Path) -> bool:
        """Whether this is the directory of its owner."""
        return self.owner is not None and owners.owner_directory(self.owner).resolve() == owner.resolve()


def begin(engine: Engine, *, owner: Path | None, pod: Pod | None = None) -> CheckpointRecord:
    """Write a record for a checkpoint before it is created."""
    tag = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    owner_path = None if owner is None else owners.owner_name(owner)
    services = () if pod is None else pod.checkpoint_tags(tag)
    number = 1 + max((record.number for record in all_records()), default=0)
    return _write(
        CheckpointRecord(
            tag=tag, engine=engine.address.url, made_at=time.time(), number=number, owner=owner_path, services=services
        )
    )


def _write(record: CheckpointRecord) -> CheckpointRecord:
    path = subdirectory("checkpoints") / record.tag
    try:
        write_atomically(path, record.model_dump_json().encode(), durable=False)
    except OSError as error:
        raise UsageError(
            f"The checkpoint's record {path} cannot be written: {error}. Free space, or set OHSANDBOX_HOME."
        ) from error
    return record


def forget(record: CheckpointRecord) -> None:
    """Remove the record; the image and its tag stay."""
    (subdirectory("checkpoints") / record.tag).unlink(missing_ok=True)


def records(engine: Engine) -> list[CheckpointRecord]:
    """Return all records of this engine and state directory, oldest first; damaged ones are skipped."""
    return [record for record in all_records() if record.engine == engine.address.url]


def all_records() -> list[CheckpointRecord]:
    """Return the records of all engines, as `records` does."""
    pending_records = []
    for path in subdirectory("checkpoints").iterdir():
        with contextlib.suppress(OSError, ValidationError):
            record = CheckpointRecord.model_validate_json(read_regular(path))
            if _TAG.fullmatch(path.name) and record.tag == path.name:
                pending_records.append(record)
    return sorted(pending_records, key=lambda record: (record.number, record.made_at, record.tag))


def also_for(engine: Engine, image: str, *, owner: Path) -> None:
    """Keep a checkpoint for one more owner; does nothing if the checkpoint no longer exists."""
    of_image = [record for record in records(engine) if record.id == image]
    size, before = max((record.size_bytes for record in of_image), default=0), of_image[0] if of_image else None
    record = begin(engine, owner=owner)
    if before is not None and before.services:
        tags = tuple(record.tag + tag.removeprefix(before.tag) for tag in before.services)
        record = _write(record.model_copy(update={"services": tags}))
    try:
        with engine_errors(f"keeping checkpoint {image[:19]!r}"):
            engine.api.tag(image, REPOSITORY, record.tag)
            for tag, old in zip(record.services, before.services if before else (), strict=True):
                engine.api.tag(f"{REPOSITORY}:{old}", REPOSITORY, tag)
    except ImageUnavailable:
        _discard(engine, record)
    else:
        _write(record.model_copy(update={"id": image, "size_bytes": size}))


def release(engine: Engine, record: CheckpointRecord) -> bool:
    """Remove the tag and the record, and the image with its last tag; False while a container uses the image."""
    try:
        with engine_errors(f"removing checkpoint {record.tag!r}"):
            engine.api.remove_image(record.name)
    except ImageUnavailable:
        pass  # the tag is gone already
    except SandboxUnavailable:
        with contextlib.suppress(SandboxUnavailable), engine_errors("looking for its containers"):
            if engine.api.containers(all=True, filters={"ancestor": record.id or record.name}):
                return False
        raise
    _discard(engine, record)
    return True


def _discard(engine: Engine, record: CheckpointRecord) -> None:
    """Remove the record and the images of its services; an image that a container uses loses only its name."""
    for tag in record.services:
        with contextlib.suppress(SandboxUnavailable, ImageUnavailable), engine_errors(f"removing checkpoint {tag!r}"):
            engine.api.remove_image(f"{REPOSITORY}:{tag}", force=True)
    forget(record)


def prune(engine: Engine, *, owner: Path | None) -> None:
    """Release checkpoints over the limits: the owner's oldest except its first, then the oldest of all owners."""
    everything = [record for record in records(engine) if record.id]
    if owner is not None:
        own = [record for record in everything if record.belongs_to(owner)]
        for record in _over_limits(own[1:], count=MAX_EACH - 1, size_bytes=_MAX_EACH_BYTES):
            release(engine, record)
            everything.remove(record)
    for record in _over_limits(
        [record for record in everything if record.owner], count=_MAX_ALL, size_bytes=MAX_ALL_BYTES
    ):
        release(engine, record)


def _over_limits(of_owner: list[CheckpointRecord], *, count: int, size_bytes: int) -> list[CheckpointRecord]:
    """Return those of of_owner (oldest first) that exceed count or size_bytes, counted from the newest, which stays."""
    total = 0
    for number, record in enumerate(reversed(of_owner)):
        total += record.size_bytes
        if number and (number >= count or total > size_bytes):
            return of_owner[: len(of_owner) - number]
    return []
