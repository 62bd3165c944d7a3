"""Images of the engine: facts about those present, and pulling missing ones."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import ImageUnavailable
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import locked
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors, foreign_errors, translate_error
from ohsandbox.runtime.process.cancellation import check_not_cancelled
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ohsandbox.runtime.docker.engine.connection import Engine

IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_PULL_ATTEMPTS = 5
FIRST_PAUSE_S = 2.0
"""Maximum of the first pause between attempts. It doubles each time, with full jitter: at most 2, 4, 8, 16 s. A
registry's rate limit lasts hours, a burst of errors lasts seconds."""
_PASSING = (
    "toomanyrequests", "rate limit", "too many requests", "i/o timeout", "connection reset", "503", "tls handshake",
)  # fmt: skip
_MAX_ASKED = 20
"""Maximum number of missing images that are looked up in their registries: where pulls are limited, a query may count
as one."""
_NOT_GIVEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
_LAYER_DONE = {"Pull complete", "Already exists", "Download complete"}


class ImageFacts(NamedTuple):
    """The facts about a local image that a sandbox needs."""

    id: str
    digest: str | None
    """repository@sha256:..., if a registry gave one; a run's record pins the image by it."""
    user: str
    env: list[str]
    workdir: str | None
    platform: str
    """os/architecture."""
    checkpoint_of: str = ""
    """Of a checkpoint: the image that its sandbox was created from."""


class PullFailed(Exception):  # noqa: N818 - never leaves this module
    """A pull's stream reported an error."""


class _Layer(NamedTuple):
    done: int = 0
    total: int = 0
    complete: bool = False
    extracting: bool = False


def ensure(
    engine: Engine,
    image: str,
    *,
    platform: str | None = None,
    progress: Callable[[PullProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> ImageFacts:
    """Return the image's facts, pulling it first if missing. Each image is pulled by one thread of all processes.

    An image of another platform (os/architecture[/variant]) than the given one counts as missing.

    Raises:
        ImageUnavailable: it is missing and cannot be pulled; the message holds the remedy.
        CallCancelledError: cancel was set; the pull was stopped.
    """
    if (image_facts := _local(engine, image, platform)) is not None:
        return image_facts
    tell = progress or (lambda _: None)
    lock = subdirectory("pulls") / hashlib.sha256(image.encode()).hexdigest()[:32]
    with locked(lock, on_wait=lambda: tell(PullProgress(image, "waiting")), cancel=cancel):
        if (image_facts := _local(engine, image, platform)) is None:
            patiently(partial(_pull, engine, image, platform, tell, cancel), image, tell, cancel)
            image_facts = _local(engine, image, platform)
    if image_facts is None and platform is not None:
        raise ImageUnavailable(f"Image {image!r} is not available for {platform}. Name another platform.")
    if image_facts is None:
        raise ImageUnavailable(f"Image {image!r} was pulled and is not here. Pull it by hand and try again.")
    return image_facts


def _local(engine: Engine, image: str, platform: str | None) -> ImageFacts | None:
    """Return the facts of a local image of that platform; variants are ignored, as the engine does not report them."""
    image_facts = inspect(engine, image)
    is_it = image_facts is None or platform is None or image_facts.platform == "/".join(platform.split("/")[:2])
    return image_facts if is_it else None


def inspect(engine: Engine, image: str) -> ImageFacts | None:
    """Return the facts of a local image; None if it is missing."""
    try:
        with engine_errors(f"looking for image {image!r}"):
            inspected = engine.api.inspect_image(image)
    except ImageUnavailable:
        return None
    return facts_of_image(inspected)


def find_absent(engine: Engine, names: Sequence[str]) -> dict[str, str]:
    """Return the missing images that their registry lacks or refuses (401, 403, 404), each with the engine's error.

    Nothing is pulled. Images whose registry does not answer are left out, as are missing images beyond the first 20.
    """
    from docker.errors import APIError  # noqa: PLC0415 - slow import, needed only with an engine

    def reason(name: str) -> str | None:
        try:
            engine.api.inspect_distribution(name)
        except APIError as error:
            return str(error.explanation or error) if error.status_code in _NOT_GIVEN else None
        except foreign_errors():
            return None
        return None

    absent = [name for name in names if inspect(engine, name) is None][:_MAX_ASKED]
    with ThreadPoolExecutor(8) as pool:
        reasons = pool.map(reason, absent)
        return {name: why for name, why in zip(absent, reasons, strict=True) if why is not None}


def facts_of_image(found: dict[str, Any]) -> ImageFacts:
    """Return the facts in the engine's description of an image."""
    digest = next(iter(found.get("RepoDigests") or []), None)
    platform = f"{found.get('Os', '?')}/{found.get('Architecture', '?')}"
    return facts_of(found.get("Config") or found.get("ContainerConfig") or {}, str(found["Id"]), platform, digest)


def facts_of(config: dict[str, Any], image_id: str, platform: str, digest: str | None = None) -> ImageFacts:
    """Return the facts from the Config of an image, or of a container whose image was removed."""
    env, workdir = list(config.get("Env") or []), config.get("WorkingDir") or None
    return ImageFacts(image_id, digest, str(config.get("User") or ""), env, workdir, platform)


def patiently(
    attempt: Callable[[], None], image: str, tell: Callable[[PullProgress], None], cancel: threading.Event | None
) -> None:
    """Call attempt(), which pulls or builds, and retry it if a registry's refusal may be temporary.

    Raises:
        ImageUnavailable: the error is permanent, or the last attempt failed.
        CallCancelledError: cancel was set.
    """
    for number in range(1, _PULL_ATTEMPTS + 1):
        check_not_cancelled(cancel, f"getting image {image!r}")
        try:
            attempt()
        except ImageUnavailable as error:
            if number == _PULL_ATTEMPTS or not any(word in str(error).lower() for word in _PASSING):
                raise
            tell(PullProgress(image, "retrying"))
            (cancel or threading.Event()).wait(random.uniform(0, FIRST_PAUSE_S * 2 ** (number - 1)))  # noqa: S311 - jitter
        else:
            return


def _pull(
    engine: Engine,
    image: str,
    platform: str | None,
    tell: Callable[[PullProgress], None],
    cancel: threading.Event | None,
) -> None:
    layers: dict[str, _Layer] = {}
    doing = f"pulling image {image!r}{f' for {platform}' if platform else ''}"
    with engine.cancellable(cancel, doing):
        for line in engine.api.pull(image, stream=True, decode=True, platform=platform):
            if "error" in line:
                failed = PullFailed(str(line["error"]))
                raise translate_error(failed, doing=doing) from failed
            _note(layers, line)
            tell(_sum(image, layers))
    tell(_sum(image, layers)._replace(status="done"))


def _note(layers: dict[str, _Layer], line: dict[str, Any]) -> None:
    """Add one line of the pull's stream to the layers; lines about the whole image have no layer id."""
    status, layer = str(line.get("status", "")), str(line.get("id", ""))
    if not layer or status.startswith(("Pulling from", "Digest")):
        return
    progress_of_layer = layers.get(layer, _Layer())
    detail = line.get("progressDetail") or {}
    if status == "Downloading":
        progress_of_layer = progress_of_layer._replace(
            done=int(detail.get("current") or 0), total=int(detail.get("total") or progress_of_layer.total)
        )
    elif status in _LAYER_DONE:
        progress_of_layer = progress_of_layer._replace(
            done=progress_of_layer.total, complete=status != "Download complete", extracting=False
        )
    elif status == "Extracting":
        progress_of_layer = progress_of_layer._replace(done=progress_of_layer.total, extracting=True)
    layers[layer] = progress_of_layer


def _sum(image: str, layers: dict[str, _Layer]) -> PullProgress:
    parts = layers.values()
    return PullProgress(
        image,
        "extracting" if any(part.extracting for part in parts) else "pulling",
        done_bytes=sum(part.done for part in parts),
        total_bytes=sum(part.total for part in parts),
        layers_done=sum(part.complete for part in parts),
        layers_total=len(layers),
    )
