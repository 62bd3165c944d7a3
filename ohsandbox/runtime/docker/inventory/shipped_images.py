"""Images in an engine: building those with a shipped Dockerfile, and listing and removing those that ohsandbox made."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import UsageError
from ohsandbox.runtime.build_options import Build, resolved_build
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import build
from ohsandbox.runtime.docker.network import open_network
from ohsandbox.runtime.inventory import SHIPPED_IMAGES, StoredImage, removal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.inventory import GcResult, ImageKind
    from ohsandbox.runtime.results import PullProgress

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
        images = [made_image for image in engine.api.images() for made_image in _made(image, used)]
    return sorted(images, key=lambda made_image: made_image.created_at, reverse=True)


def prune(engine: Engine) -> Iterator[GcResult]:
    """Remove images that we built and that no container uses.

    Checkpoints belong to conversations, and are removed with them; shipped images stay.
    """
    for image in list_made(engine):
        if not image.in_use and image.kind in {"built", "network"}:
            yield from removal(image.name, "", "no container uses it", partial(_remove, engine, image.name))


def _remove(engine: Engine, name: str) -> None:
    with engine_errors(f"removing image {name}"):
        engine.api.remove_image(name)


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
