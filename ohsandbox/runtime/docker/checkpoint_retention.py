"""Retention of checkpoints: their owners, their limits in number and size, and their release.

Each checkpoint image has one tag per owner, and each tag has a record in the state directory, written before the tag is
created. An image without a record here belongs to somebody else and is never touched: labels are inherited, and anybody
may write them. Removing the last tag removes the image.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.runtime.docker.error_mapping import engine_errors

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine

REPOSITORY = "ohsandbox-checkpoint"

MAX_EACH = 20
MAX_EACH_BYTES = 4 * 1024**3
"""Per owner. The first checkpoint is always kept: it is the base of all comparisons."""
MAX_ALL = 200
MAX_ALL_BYTES = 20 * 1024**3
"""For all owners of this state directory together."""

UNFINISHED_S = 3600.0
"""A record that has no image after this time belongs to a process that died while creating it."""


_TAG = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")


class CheckpointRecord(BaseModel):
    """One tag of one checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tag: str
    engine: str
    """The engine's address; images of other engines are never removed."""
    made_at: float
    owner: str | None = None
    """A directory; the checkpoint may be removed once it is gone. None: the checkpoint stays until it is dropped."""
    id: str = ""
    """Image id; empty until the image is created."""
    size_bytes: int = 0

    @property
    def name(self) -> str:
        """Image name with tag, as the engine knows it."""
        return f"{REPOSITORY}:{self.tag}"

    @property
    def is_orphan(self) -> bool:
        """Whether nobody needs the checkpoint any more."""
        unfinished = not self.id and time.time() - self.made_at > UNFINISHED_S
        return unfinished or (self.owner is not None and not Path(self.owner).is_dir())


def begin(engine: Engine, *, owner: Path | None) -> CheckpointRecord:
    """Write a record for a checkpoint before it is created.

    Raises:
        UsageError: the state directory cannot be written.
    """
    tag = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    place = None if owner is None else str(owner.absolute())
    return _write(CheckpointRecord(tag=tag, engine=engine.address.url, made_at=time.time(), owner=place))


def finish(record: CheckpointRecord, *, image: str, size_bytes: int) -> CheckpointRecord:
    """Complete the record once the image exists.

    Raises:
        UsageError: the state directory cannot be written.
    """
    return _write(record.model_copy(update={"id": image, "size_bytes": size_bytes}))


def also_for(engine: Engine, image: str, *, owner: Path) -> None:
    """Keep a checkpoint for one more owner; a checkpoint that no longer exists is skipped.

    Raises:
        SandboxUnavailable: the engine failed.
        UsageError: the state directory cannot be written.
    """
    size = max((record.size_bytes for record in records(engine) if record.id == image), default=0)
    record = begin(engine, owner=owner)
    try:
        with engine_errors(f"keeping checkpoint {image[:19]!r}"):
            engine.api.tag(image, REPOSITORY, record.tag)
    except ImageUnavailable:
        forget(record)
        return
    finish(record, image=image, size_bytes=size)


def records(engine: Engine) -> list[CheckpointRecord]:
    """Return all records of this engine and state directory, oldest first."""
    found = [_read(path) for path in subdirectory("checkpoints").iterdir() if _TAG.fullmatch(path.name)]
    ours = [record for record in found if record is not None and record.engine == engine.address.url]
    return sorted(ours, key=lambda record: (record.made_at, record.tag))


def release(engine: Engine, record: CheckpointRecord) -> bool:
    """Remove the tag and the record, and the image with its last tag; False while a container uses the image.

    Raises:
        SandboxUnavailable: the engine failed.
    """
    try:
        with engine_errors(f"removing checkpoint {record.tag!r}"):
            engine.api.remove_image(record.name)
    except ImageUnavailable:
        pass  # gone already
    except SandboxUnavailable:
        if not _is_in_use(engine, record):
            raise
        return False
    forget(record)
    return True


def forget(record: CheckpointRecord) -> None:
    """Remove only the record."""
    _path(record.tag).unlink(missing_ok=True)


def prune(engine: Engine, *, owner: Path | None) -> None:
    """Release checkpoints over the limits: the owner's oldest except its first, then the oldest of all owners.

    Raises:
        SandboxUnavailable: the engine failed.
    """
    everything = [record for record in records(engine) if record.id]
    if owner is not None:
        own = [record for record in everything if record.owner == str(owner.absolute())]
        for record in _beyond(own[1:], count=MAX_EACH - 1, size_bytes=MAX_EACH_BYTES):
            release(engine, record)
            everything.remove(record)
    for record in _beyond([record for record in everything if record.owner], count=MAX_ALL, size_bytes=MAX_ALL_BYTES):
        release(engine, record)


def _beyond(found: list[CheckpointRecord], *, count: int, size_bytes: int) -> list[CheckpointRecord]:
    """Return the oldest of found (oldest first) that exceed count or size_bytes; never the newest."""
    total = 0
    for number, record in enumerate(reversed(found)):
        total += record.size_bytes
        if number and (number >= count or total > size_bytes):
            return found[: len(found) - number]
    return []


def _is_in_use(engine: Engine, record: CheckpointRecord) -> bool:
    with contextlib.suppress(SandboxUnavailable), engine_errors("looking for its containers"):
        return bool(engine.api.containers(all=True, filters={"ancestor": record.id or record.name}))
    return False


def _path(tag: str) -> Path:
    return subdirectory("checkpoints") / tag


def _read(path: Path) -> CheckpointRecord | None:
    try:
        record = CheckpointRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return record if record.tag == path.name else None


def _write(record: CheckpointRecord) -> CheckpointRecord:
    path = _path(record.tag)
    try:
        write_atomically(path, record.model_dump_json().encode(), durable=False)
    except OSError as error:
        raise UsageError(
            f"The checkpoint's record {path} cannot be written: {error}. Remedy: free space, or set OHSANDBOX_HOME."
        ) from error
    return record
