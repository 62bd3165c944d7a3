"""Images built from a Dockerfile: once per content, by the engine, outside every limit of a sandbox.

The tag is a hash of what is sent, so an unchanged context needs no build. A record in the state directory says when the
image was last used; `gc` removes images that were not used for UNUSED_S, and no image without a record here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from collections import deque
from collections.abc import Mapping  # noqa: TC003 - a NamedTuple's annotations are read by pydantic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import locked, write_atomically
from ohsandbox.runtime.docker import images
from ohsandbox.runtime.docker.error_mapping import engine_errors, one_line
from ohsandbox.runtime.inventory import GcResult
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine import Engine

REPOSITORY = "ohsandbox-build"
"""No label says that it is ours: the engine counts one as a step, and then none has the Dockerfile's number."""
UNUSED_S = 14 * 24 * 3600.0
"""Building again costs minutes, keeping costs disk: two weeks outlast a holiday."""
LAST_LINES = 5
"""Of a failed step's output: a compiler or a package manager says in these what is wrong."""
_READ_BYTES = 1 << 20
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The engine makes standard error red."""
_OF_THE_BUILDER = ("--->", "Removing intermediate container")
_DIGEST_CHARS = 32


class Build(NamedTuple):
    """What an image is built from."""

    context: str | os.PathLike[str]
    """A directory of this machine; its `.dockerignore` is honoured."""
    dockerfile: str = "Dockerfile"
    """Its path in the context."""
    args: Mapping[str, str] = {}
    """Values of the Dockerfile's ARG. They stand in the image's history, so they are no place for secrets."""
    target: str | None = None
    """The stage to build; None is the last."""


def checked(build: Build | str | os.PathLike[str]) -> Build:
    """The build with its context as an absolute path.

    Raises:
        UsageError: the directory or its Dockerfile does not exist, or the Dockerfile is not in it.
    """
    given = build if isinstance(build, Build) else Build(build)
    if not isinstance(given.context, str | os.PathLike) or not given.context:
        raise UsageError(f"Invalid build {given.context!r}: give a directory with a Dockerfile, or a Build(...)")
    root = Path(given.context).expanduser().resolve()
    if not root.is_dir():
        raise UsageError(f"The build's directory {str(root)!r} does not exist. Remedy: name one with a Dockerfile.")
    name = os.path.normpath(given.dockerfile)
    if name.startswith(("/", "..")):
        raise UsageError(f"The Dockerfile {given.dockerfile!r} is outside of {str(root)!r}. Remedy: put it there.")
    if not (root / name).is_file():
        raise UsageError(f"There is no file {name!r} in {str(root)!r}. Remedy: name it with Build(dockerfile=...).")
    return given._replace(context=str(root), dockerfile=name, args=dict(given.args))


def ensure(engine: Engine, build: Build, *, progress: Callable[[PullProgress], None] | None = None) -> str:
    """The name of the build's image, which is built first if it is not there. One builder at a time for each content.

    Raises:
        UsageError: a step fails, or the Dockerfile is invalid; with the step and its last output.
        SandboxUnavailable: the engine failed.
    """
    tell = progress or (lambda _: None)
    try:
        paths = _paths(build)
        digest = _digest(build, paths)
    except OSError as error:
        raise UsageError(
            f"The build's directory {str(build.context)!r} cannot be read: {error}. Remedy: list it in .dockerignore."
        ) from error
    name, shown = f"{REPOSITORY}:{digest}", f"{build.context}/{build.dockerfile}"
    with locked(subdirectory("pulls") / digest, on_wait=lambda: tell(PullProgress(shown, "waiting"))):
        write_atomically(subdirectory("builds") / digest, engine.address.url.encode(), durable=False)
        if images.inspect(engine, name) is None:
            _build(engine, build, paths, name, lambda step: tell(step._replace(image=shown)))
            tell(PullProgress(shown, "done"))
    return name


def _paths(build: Build) -> list[str]:
    """What is sent, relative to the context."""
    from docker.utils import exclude_paths  # noqa: PLC0415 - 0.14 s, needed only with an engine

    root = Path(build.context)
    ignored: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        lines = (root / ".dockerignore").read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
        ignored = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return sorted(exclude_paths(str(root), ignored, dockerfile=build.dockerfile))


def _digest(build: Build, paths: list[str]) -> str:
    """Of all that decides what the image holds: names, modes and contents, but no times and owners."""
    digest = hashlib.sha256(repr((build.dockerfile, sorted(build.args.items()), build.target)).encode())
    for path in paths:
        place = Path(build.context, path)
        found = place.lstat()
        content = b""
        if stat.S_ISLNK(found.st_mode):
            content = os.fsencode(place.readlink())
        elif stat.S_ISREG(found.st_mode):
            content = _digest_of_file(place)
        digest.update(repr((path, found.st_mode, content)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:_DIGEST_CHARS]


def _digest_of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as opened:
        while data := opened.read(_READ_BYTES):
            digest.update(data)
    return digest.digest()


def _build(engine: Engine, build: Build, paths: list[str], name: str, tell: Callable[[PullProgress], None]) -> None:
    from docker.utils import create_archive  # noqa: PLC0415 - as above

    with tempfile.TemporaryFile() as archive, engine_errors(f"building {str(build.context)!r}"):
        create_archive(str(build.context), paths, fileobj=archive)
        stream = engine.api.build(
            fileobj=archive, custom_context=True, dockerfile=build.dockerfile, tag=name, rm=True, forcerm=True,
            decode=True, buildargs=dict(build.args), target=build.target,
        )  # fmt: skip
        _follow(stream, build, tell)


def _follow(stream: Iterator[dict[str, Any]], build: Build, tell: Callable[[PullProgress], None]) -> None:
    step, last, error = PullProgress("", "building"), deque[str](maxlen=LAST_LINES), ""
    for line in stream:  # to its end: docker-py leaves a stream open that is not read
        error = error or str(line.get("error") or "")
        text = _COLOUR.sub("", str(line.get("stream") or line.get("status") or "")).strip()
        if error:
            continue
        if found := _STEP.fullmatch(text):
            last.clear()
            done, total = int(found[1]), int(found[2])
            step = PullProgress("", "building", layers_done=done, layers_total=total, detail=one_line(found[3]))
            tell(step)
        elif text and not text.startswith(_OF_THE_BUILDER):
            if "stream" in line:
                last.extend(text.splitlines())
            tell(step._replace(detail=one_line(text.splitlines()[-1])))
    if error:
        where = f" at step {step.layers_done} of {step.layers_total}, {step.detail!r}" if step.layers_done else ""
        output = f" Its last output: {one_line(' | '.join(last))}." if last else ""
        raise UsageError(
            f"The build of {str(build.context)!r} failed{where}: {one_line(error)}.{output} "
            f"Remedy: correct {build.dockerfile}."
        )


# --- images that nobody has used for long ---


def unused(engine: Engine) -> list[str]:
    """Names of the images that `collect` would remove."""
    return [f"{REPOSITORY}:{record.name}" for record in _unused_records(engine)]


def collect(engine: Engine) -> list[GcResult]:
    """Remove images of ours that were not used for UNUSED_S; one that a container uses stays."""
    done = []
    for record in _unused_records(engine):
        name = f"{REPOSITORY}:{record.name}"
        try:
            if images.inspect(engine, name) is not None:
                with engine_errors(f"removing image {name}"):
                    if engine.api.containers(all=True, filters={"ancestor": name}):
                        continue
                    engine.api.remove_image(name)
        except SandboxUnavailable as error:
            done.append(GcResult(name, "", "failed", str(error)))
            continue
        record.unlink(missing_ok=True)
        done.append(GcResult(name, "", "removed", f"no sandbox was made from it for {UNUSED_S / 86400:.0f} days"))
    return done


def _unused_records(engine: Engine) -> list[Path]:
    found = []
    for path in sorted(subdirectory("builds").iterdir()):
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > UNUSED_S
            if is_old and len(path.name) == _DIGEST_CHARS and path.read_text() == engine.address.url:
                found.append(path)
    return found
