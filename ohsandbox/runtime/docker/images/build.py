"""Building images from a Dockerfile: once per content, by the engine, outside all limits of a sandbox.

The tag is a hash of what is sent to the engine, so an unchanged context needs no build. A record in the state directory
says when the image was last used; `gc` removes images that were not used for UNUSED_S, and no image without a record
here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.arguments import suggests_names
from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import locked, read_regular, write_atomically
from ohsandbox.runtime.aio import awaited
from ohsandbox.runtime.build_options import Build, checked_base, resolved_build
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.images import builders, engine_images
from ohsandbox.runtime.docker.images.build_context import DIGEST_CHARS, BuildContext
from ohsandbox.runtime.inventory import removal
from ohsandbox.runtime.process.cancellation import check_not_cancelled
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.inventory import GcResult

log = logging.getLogger(__name__)

REPOSITORY = "ohsandbox-build"
UNUSED_S = 14 * 24 * 3600.0
"""Seconds after which an unused image is removed. Rebuilding costs minutes and keeping costs disk space; two weeks
outlast a holiday."""


class BuiltImage(NamedTuple):
    """An image built from a Dockerfile, and the working directory of its commands."""

    name: str
    workdir: str
    """The image's WORKDIR; the root directory if it has none, because `COPY file .` then puts files there."""


_trusted: dict[str, str] = {}
"""Digests of builds that a project's file asks for, as this process compared them with the digests that the user
trusts."""


def digest_to_trust(build: Build) -> str:
    """Return the digest of a build's files; from now on this process refuses to build from other content.

    Raises:
        OSError, UsageError: as `BuildContext`.
    """
    digest = _trusted[repr(build)] = BuildContext(build).digest()
    return digest


def ensure(
    engine: Engine,
    build: Build,
    *,
    progress: Callable[[PullProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> str:
    """Return the name of the build's image, building it first if it does not exist.

    Each content is built by one thread at a time among all processes with this state directory; the others wait and
    then find the image.

    Raises:
        UsageError: a step fails or the Dockerfile is invalid (the message has the step and its last output); or the
            directory cannot be read, or changes while it is read.
        ImageUnavailable: a base image cannot be obtained, or a step could not reach a host; temporary failures were
            retried.
        SandboxUnavailable: the engine failed.
        CallCancelledError: cancel was set; the build was stopped.
    """
    shown = f"{build.context}/{build.dockerfile}"

    def report(progressed: PullProgress) -> None:
        if progress is not None:
            progress(progressed._replace(image=shown))

    build = _on_base(engine, build, progress, cancel)
    with _reading(build):
        context = BuildContext(build)
        digest = context.digest()
    if _trusted.get(repr(build), digest) != digest:
        raise UsageError(
            f"The build's directory {str(build.context)!r} changed after it was looked at. Look again, with "
            "`ohsandbox trust`."
        )
    name = f"{REPOSITORY}:{digest}"
    with locked(subdirectory("pulls") / digest, on_wait=lambda: report(PullProgress(shown, "waiting")), cancel=cancel):
        check_not_cancelled(cancel, f"building {str(build.context)!r}")
        write_atomically(subdirectory("builds") / digest, engine.address.url.encode(), durable=False)
        if engine_images.inspect(engine, name) is None:
            with tempfile.TemporaryFile() as archive:
                with _reading(build):
                    if context.archive(archive) != digest:
                        raise OSError("it changed while it was read")
                job = builders.BuildJob(build, archive, name, cancel)
                engine_images.patiently(partial(_build, engine, job, report), shown, report, cancel)
            report(PullProgress(shown, "done"))
    return name


def _on_base(
    engine: Engine, build: Build, progress: Callable[[PullProgress], None] | None, cancel: threading.Event | None
) -> Build:
    """Return the build with its base, which is obtained first, added to its arguments."""
    base = checked_base(build.base)
    if base is None:
        return build
    name = base if isinstance(base, str) else ensure(engine, base, progress=progress, cancel=cancel)
    base_facts = engine_images.ensure(engine, name, progress=progress, cancel=cancel)
    more = {"BASE": name, "BASE_ID": base_facts.id, "BASE_USER": base_facts.user or "root"}
    return build._replace(args={**build.args, **more}, base=None)


@suggests_names
def build_image(
    build: Build | str | os.PathLike[str],
    *,
    progress: Callable[[PullProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> BuiltImage:
    """Build an image unless one with the same content exists, as `DockerRuntime(build=...)` does when it starts.

    build is a `Build`, a directory with a Dockerfile, or a Dockerfile, whose directory is then the context. Any number
    of threads and processes may ask for the same content at once: it is built once. progress is called with each step;
    setting cancel stops the build. `ohsandbox gc` removes an image that was not used for two weeks.

    Raises:
        UsageError: there is no such Dockerfile, it is invalid, or a step of it fails.
        EngineUnavailable: no engine answers.
        ImageUnavailable: a base image cannot be obtained, or a step could not reach a host.
        SandboxUnavailable: the engine failed.
        CallCancelledError: cancel was set.
    """
    checked_build, engine = resolved_build(build), connect()
    try:
        name = ensure(engine, checked_build, progress=progress, cancel=cancel)
        image_facts = engine_images.inspect(engine, name)
    finally:
        engine.close()
    if image_facts is None:
        raise ImageUnavailable(f"Image {name!r} was built and is not here any more. Try again.")
    return BuiltImage(name, image_facts.workdir or "/")


abuild_image = awaited(build_image)


@contextlib.contextmanager
def _reading(build: Build) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The build's directory {str(build.context)!r} cannot be read: {error}. List it in .dockerignore."
        ) from error


def _build(engine: Engine, job: builders.BuildJob, tell: Callable[[PullProgress], None]) -> None:
    report = builders.BuildReport(job.build, tell)
    builders.run(engine, job, report)
    report.check()


# --- removing images that were unused for long, or that take too much space ---


def note_pulled(engine: Engine, image: str) -> None:
    """Record that we are about to pull an image that was absent, so that `trim` may remove it later."""
    write_atomically(_pull_record(image), f"{engine.address.url}\n{image}".encode(), durable=False)


def note_used(engine: Engine, image: str) -> None:
    """Record that an image is used now, if it is one of ours."""
    for record, name in records(engine):
        if name == image:
            with contextlib.suppress(FileNotFoundError):
                os.utime(record)


def trim(engine: Engine, budget_bytes: int, *, keep: Collection[str]) -> set[str]:
    """Remove images that we built or recorded as pulled, least recently used first, until the rest fit the budget.

    Layers that an image shares with others do not count, since removing the image does not free them. Images named in
    keep, and images that a container uses, stay. Returns the names of the removed images.
    """
    if not records(engine):
        return set()
    try:
        with engine_errors("measuring images"):
            usage = engine.api.df()
    except SandboxUnavailable as error:  # for example "a disk usage operation is already running", of another process
        log.warning("no image is removed this time: %s", error)
        return set()
    own_bytes = {
        tag: max(0, int(image.get("Size") or 0) - max(0, int(image.get("SharedSize") or 0)))
        for image in usage.get("Images") or [] for tag in image.get("RepoTags") or []
    }  # fmt: skip
    ours = [(record, name) for record, name in records(engine) if _tagged(name) in own_bytes]
    total, gone = sum(own_bytes[_tagged(name)] for _, name in ours), set[str]()
    for record, name in sorted(ours, key=lambda pair: pair[0].stat().st_mtime):
        if total <= budget_bytes:
            break
        with contextlib.suppress(SandboxUnavailable):
            if name not in keep and _remove(engine, name):
                record.unlink(missing_ok=True)
                total -= own_bytes[_tagged(name)]
                gone.add(name)
    return gone


def _tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _remove(engine: Engine, name: str) -> bool:
    """Remove an image that no container uses; return whether it is gone."""
    with engine_errors(f"removing image {name}"):
        is_used = bool(engine.api.containers(all=True, filters={"ancestor": name}))
        if not is_used:
            engine.api.remove_image(name)
    return not is_used


def _pull_record(image: str) -> Path:
    return subdirectory("pulled") / hashlib.sha256(image.encode()).hexdigest()[:DIGEST_CHARS]


def records(engine: Engine) -> list[tuple[Path, str]]:
    """Return the records of the images of this engine that we built or pulled, each with the image's name."""
    pairs = []
    for record in (*subdirectory("builds").iterdir(), *subdirectory("pulled").iterdir()):
        with contextlib.suppress(OSError):
            address, _, image = read_regular(record).decode("utf-8", "replace").partition("\n")
            if address == engine.address.url and len(record.name) == DIGEST_CHARS:
                pairs.append((record, image or f"{REPOSITORY}:{record.name}"))
    return pairs


def unused(engine: Engine) -> list[str]:
    """Return the names of the images that `collect` would remove."""
    return [f"{REPOSITORY}:{record.name}" for record in _unused_records(engine)]


def collect(engine: Engine) -> list[GcResult]:
    """Remove our images that were not used for UNUSED_S, except those that a container uses."""
    why = f"no sandbox was made from it for {UNUSED_S / 86400:.0f} days"
    return [
        one
        for record in _unused_records(engine)
        for one in removal(f"{REPOSITORY}:{record.name}", "", why, partial(_remove_unused, engine, record))
    ]


def _remove_unused(engine: Engine, record: Path) -> bool:
    name = f"{REPOSITORY}:{record.name}"
    if engine_images.inspect(engine, name) is not None and not _remove(engine, name):
        return False
    record.unlink(missing_ok=True)
    return True


def _unused_records(engine: Engine) -> list[Path]:
    paths = []
    for path in sorted(subdirectory("builds").iterdir()):
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > UNUSED_S
            if is_old and len(path.name) == DIGEST_CHARS and read_regular(path) == engine.address.url.encode():
                paths.append(path)
    return paths
