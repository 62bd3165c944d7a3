"""Checkpoints of a container: its file system, committed as an image that only we use."""

from __future__ import annotations

import contextlib
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import ImageUnavailable, SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker import checkpoint_retention, images
from ohsandbox.runtime.docker import container as containers
from ohsandbox.runtime.docker.checkpoint_retention import REPOSITORY
from ohsandbox.runtime.docker.container_config import GIB
from ohsandbox.runtime.docker.error_mapping import engine_errors
from ohsandbox.runtime.results import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.docker.container import Container
    from ohsandbox.runtime.docker.container_config import ContainerConfig
    from ohsandbox.runtime.docker.engine import Engine

LABEL = "ohsandbox.checkpoint"
CONVERSATION_LABEL = "ohsandbox.conversation"

MAX_LABEL_CHARS = 200


def take(
    container: Container,
    *,
    label: str,
    conversation: str | None,
    owner: Path | None = None,
    room: Callable[[], int | None] = lambda: None,
) -> Checkpoint:
    """Commit the container; it is paused meanwhile (0.1 s for a few files, 0.8 s for 5,000).

    Checkpoints over the retention limits are released.

    Args:
        container: the container.
        label: a name for people.
        conversation: id of the conversation it belongs to.
        owner: a directory of ours; the checkpoint may be removed once it is gone.
        room: returns the bytes that may be written, None if unknown. The engine also writes the holes of sparse files,
            so a sandbox that wrote nothing (`truncate -s 16G`) could fill the disk.

    Raises:
        SandboxUnavailable: the engine failed: no space, or the container is gone.
        UsageError: label is too long or not a single line.
    """
    if len(label) > MAX_LABEL_CHARS or not label.isprintable():
        raise UsageError(f"A checkpoint's label is one line of at most {MAX_LABEL_CHARS} characters, not {label!r}.")
    engine = container.engine
    marks = [f"LABEL {LABEL}=1", f"LABEL {CONVERSATION_LABEL}={conversation or ''}"]
    record = checkpoint_retention.begin(engine, owner=owner)
    try:
        with container.frozen(), container.paused(), engine_errors(f"keeping the files of sandbox {container.name!r}"):
            _check_room(container, room())
            made = engine.api.commit(container.id, repository=REPOSITORY, tag=record.tag, message=label, changes=marks)
            done = _checkpoint(engine.api.inspect_image(made["Id"]), engine.api.history(made["Id"]))
    except SandboxUnavailable:
        checkpoint_retention.forget(record)
        raise
    checkpoint_retention.finish(record, image=done.id, size_bytes=done.size_bytes)
    with contextlib.suppress(SandboxUnavailable):  # the next checkpoint tries again
        checkpoint_retention.prune(engine, owner=owner)
    return done


def _check_room(container: Container, room: int | None) -> None:
    """Check that the copy fits.

    Raises:
        SandboxUnavailable: it does not fit.
    """
    if room is not None and (size := container.written_bytes()) > room:
        raise SandboxUnavailable(
            f"Keeping the files of sandbox {container.name!r} would write {size / GIB:.1f} GiB, sparse files at their "
            f"full length, and the engine's disk has room for {max(room, 0) / GIB:.1f}. Remedy: delete large files."
        )


def restore(
    container: Container, spec: ContainerConfig, checkpoint: str, *, prepare: Callable[[Container], None]
) -> Container:
    """Create a container of the same name with the checkpoint's files; the old one is removed once the new one runs.

    Raises:
        ImageUnavailable: the checkpoint does not exist; the old container is unchanged.
        SandboxUnavailable: the engine failed; the old container is unchanged.
    """
    engine = container.engine
    image = require(engine, checkpoint)
    aside = f"{container.name[:100]}-{secrets.token_hex(4)}"
    with engine_errors(f"putting sandbox {container.name!r} aside"):
        engine.api.rename(container.id, aside)
    made: Container | None = None
    try:
        made = containers.create(engine, spec.model_copy(update={"image": image, "name": container.name}))
        prepare(made)
    except BaseException:
        if made is not None:
            made.remove()
        with contextlib.suppress(SandboxUnavailable), engine_errors("putting it back"):
            engine.api.rename(container.id, container.name)
        raise
    container.remove()
    return made


def listed(engine: Engine, *, conversation: str | None = None) -> list[Checkpoint]:
    """Return all checkpoints, or those of one conversation, oldest first.

    Raises:
        SandboxUnavailable: the engine failed.
    """
    wanted = [f"{LABEL}=1"] + ([f"{CONVERSATION_LABEL}={conversation}"] if conversation is not None else [])
    with engine_errors("listing checkpoints"):
        images = engine.api.images(REPOSITORY, filters={"label": wanted})
        found = [
            _checkpoint(engine.api.inspect_image(image["Id"]), engine.api.history(image["Id"])) for image in images
        ]
    return sorted(found, key=lambda each: each.made_at)


def drop(engine: Engine, checkpoint: str) -> None:
    """Remove a checkpoint for all its owners; one that is gone, or that a container still uses, is not an error.

    Raises:
        SandboxUnavailable: the engine failed.
    """
    with contextlib.suppress(SandboxGone, ImageUnavailable):
        image = require(engine, checkpoint)
        with engine_errors(f"removing checkpoint {checkpoint[:19]!r}"):
            engine.api.remove_image(image, force=True)
    for record in checkpoint_retention.records(engine):
        if record.id == checkpoint:
            checkpoint_retention.forget(record)


def require(engine: Engine, checkpoint: str) -> str:
    """Return the id of the checkpoint's image, after a check that it is one of our checkpoints.

    Raises:
        ImageUnavailable: it does not exist, or is not a checkpoint.
    """
    try:
        with engine_errors(f"looking for checkpoint {checkpoint[:19]!r}"):
            found = engine.api.inspect_image(checkpoint)
    except SandboxUnavailable as error:
        raise _gone(checkpoint) from error
    if ((found.get("Config") or {}).get("Labels") or {}).get(LABEL) != "1":
        raise ImageUnavailable(
            f"Image {checkpoint[:19]!r} is not a checkpoint. Remedy: name one that checkpoint() returned."
        )
    return str(found["Id"])


def facts(engine: Engine, checkpoint: str) -> images.ImageFacts:
    """Return the image facts that a sandbox made from the checkpoint needs; nothing is ever pulled.

    Raises:
        ImageUnavailable: the checkpoint does not exist.
        SandboxUnavailable: the engine failed.
    """
    image = require(engine, checkpoint)
    found = images.look(engine, image)
    if found is None:
        raise _gone(checkpoint)
    with engine_errors(f"looking at checkpoint {checkpoint[:19]!r}"):
        labels = engine.api.inspect_image(image)["Config"].get("Labels") or {}
    return found._replace(user=str(labels.get("ohsandbox.user") or ""))  # its own is root: see create_payload


def _gone(checkpoint: str) -> ImageUnavailable:
    return ImageUnavailable(f"Checkpoint {checkpoint[:19]!r} does not exist any more. Remedy: use another.")


def _checkpoint(image: dict[str, Any], history: list[dict[str, Any]]) -> Checkpoint:
    made_at = datetime.fromisoformat(str(image["Created"]).rstrip("Z")[:26]).replace(tzinfo=UTC)
    return Checkpoint(str(image["Id"]), str(image.get("Comment") or ""), made_at, int(history[0].get("Size") or 0))
