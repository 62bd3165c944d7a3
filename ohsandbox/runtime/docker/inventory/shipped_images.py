"""Images in an engine: building those with a shipped Dockerfile, and listing and removing those that ohsandbox made."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.runtime import owners
from ohsandbox.runtime.build_options import Build, resolved_build
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import build
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.inventory import SHIPPED_IMAGES, StoredImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ohsandbox.runtime.docker.checkpoints.checkpoint_images import CheckpointRecord
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.inventory import ImageKind
    from ohsandbox.runtime.results import PullProgress

_OF_OTHERS = "another user or state directory made it"
_IN_WHEEL = Path(__file__).parents[1] / "shipped"
_IN_REPOSITORY = Path(__file__).parents[4] / "images"
_SECRETS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""Variables of pip that may contain a password."""
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Files with the certificates that the machine trusts: Debian's, Fedora's, and Alpine's and macOS's."""


def _tag_of(name: str) -> str:
    """Return the name of a shipped image in the engine."""
    return f"ohsandbox-{name}"


def _directory_of(name: str) -> Path:
    """Return the directory of a shipped image's Dockerfile.

    Raises:
        UsageError: there is no image of that name.
    """
    if name not in SHIPPED_IMAGES:
        raise UsageError(f"Unknown image {name!r}. Choose one of: {', '.join(SHIPPED_IMAGES)}.")
    shipped = _IN_WHEEL / name
    return shipped if shipped.is_dir() else _IN_REPOSITORY / name


def build_shipped(
    engine: Engine, name: str, *, base: str | None = None, progress: Callable[[PullProgress], None] | None = None
) -> str:
    """Build a shipped image, on another base if one is given, and return its name.

    This machine's certificates and pip's settings are used for the build and stay out of the image.

    Raises:
        UsageError: there is no such image, the base is not Debian-based, or BuildKit is missing.
        ImageUnavailable: the base cannot be obtained.
        SandboxUnavailable: the engine failed.
    """
    args = {} if base is None else {"BASE_IMAGE": base}
    image = build.ensure(
        engine, resolved_build(Build(_directory_of(name), args=args, secrets=_secrets())), progress=progress
    )
    with engine_errors(f"naming image {image}"):
        engine.api.tag(image, _tag_of(name))
    return _tag_of(name)


def list_made(engine: Engine) -> list[StoredImage]:
    """Return all images that ohsandbox made in this engine, for any user, the newest first."""
    with engine_errors("listing the images"):
        used = {str(container["ImageID"]) for container in engine.api.containers(all=True)}
        records = {record.name: record for record in checkpoint_images.records(engine)}
        own = {name for _, name in build.records(engine)}
        images = [made_image for image in engine.api.images() for made_image in _made(image, used)]
    images = [_with_claims(image, own, records) for image in images]
    return sorted(images, key=lambda made_image: made_image.created_at, reverse=True)


def _with_claims(image: StoredImage, own: set[str], records: Mapping[str, CheckpointRecord]) -> StoredImage:
    match image.kind:
        case "checkpoint":
            needed, stays = _claims_of(records.get(image.name))
            return image._replace(needed=needed, stays=stays)
        case "built" if image.name not in own:
            return image._replace(stays=_OF_OTHERS)
        case "network":
            return image._replace(stays="all open networks of the engine share it")
        case "shipped":
            return image._replace(stays="`images build` made it")
    return image


def of_record(record: CheckpointRecord) -> StoredImage:
    """Return a checkpoint as its record describes it."""
    made_at = datetime.fromtimestamp(record.made_at, UTC)
    return StoredImage(record.name, "checkpoint", record.size_bytes, made_at, False, *_claims_of(record))  # noqa: FBT003


def _claims_of(record: CheckpointRecord | None) -> tuple[str, str]:
    """Return what a checkpoint is needed for, and why it is removed only by its name."""
    if record is None:
        return "", _OF_OTHERS
    if record.owner is None:
        return "", "nobody owns it"
    if record.is_orphan:
        return "", ""
    place = str(owners.owner_directory(record.owner))
    return ("", f"its owner {place!r} cannot be found") if record.is_lost else (f"{place!r} goes back to it", "")


def remove(engine: Engine, name: str) -> bool:
    """Remove an image that we made; return False if a container uses it.

    Raises:
        UsageError: there is no such image of ours, or it is needed.
    """
    image = next((one for one in list_made(engine) if one.name == name), None)
    if image is None:
        raise UsageError(f"{name!r} is not an image of ohsandbox. Choose one that `ohsandbox images list` shows.")
    if image.needed:
        raise UsageError(f"{name!r} stays: {image.needed}. Delete that with `ohsandbox conversations delete`.")
    if image.in_use:
        return False
    for record in checkpoint_images.records(engine):
        if record.name == name:
            return checkpoint_images.release(engine, record)
    with engine_errors(f"removing image {name}"):
        engine.api.remove_image(name)
    return True


def _made(image: dict[str, Any], used: set[str]) -> Iterator[StoredImage]:
    kinds: dict[str, ImageKind] = {
        build.REPOSITORY: "built", checkpoint_images.REPOSITORY: "checkpoint", open_network.REPOSITORY: "network",
        **dict.fromkeys(map(_tag_of, SHIPPED_IMAGES), "shipped"),
    }  # fmt: skip
    for tag in image.get("RepoTags") or []:
        if (kind := kinds.get(str(tag).rpartition(":")[0])) is not None:
            made_at = datetime.fromtimestamp(int(image.get("Created") or 0), UTC)
            yield StoredImage(str(tag), kind, int(image.get("Size") or 0), made_at, str(image["Id"]) in used)


def _secrets() -> dict[str, str]:
    bundle = next((path for path in (os.environ.get("SSL_CERT_FILE", ""), *_BUNDLES) if Path(path).is_file()), None)
    secrets = {} if bundle is None else {"ca": f"file:{bundle}"}
    if Path(config := os.environ.get("PIP_CONFIG_FILE", "")).is_file():
        secrets["pip.conf"] = f"file:{config}"
    return secrets | {name: f"env:{name}" for name in _SECRETS if os.environ.get(name)}
