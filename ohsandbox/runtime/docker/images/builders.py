"""The two builders of an engine: BuildKit through the docker client if it has `buildx`, else the engine's own API.

Both take the same archive, report the same progress, and raise the same errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
from collections import defaultdict, deque
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ohsandbox import host_programs
from ohsandbox.errors import ImageUnavailable, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.engine.error_mapping import printable_line
from ohsandbox.runtime.docker.labels import BUILD_LABEL
from ohsandbox.runtime.process.cancellation import check_not_cancelled, once_cancelled
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.build_options import Build
    from ohsandbox.runtime.docker.engine.connection import Engine

log = logging.getLogger(__name__)

LAST_LINES = 5
"""Lines of a failed step's output to show: a compiler or a package manager states the cause in its last lines."""
_CLIENT_S = 20.0
"""Time limit for a query to the docker client, which answers in 0.1 s."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Colour sequences: the engine colours standard error red."""
_CLASSIC_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_OF_THE_CLASSIC_BUILDER = ("--->", "Removing intermediate container")
_VERTEX = re.compile(
    r"#(\d+) (?:\[(?:\S+ +)?(\d+)/(\d+)\] (.*)|ERROR: (.*)|CANCELED|CACHED|DONE .*|(\d+\.\d+) (.*)|(.*))"
)
"""A line of `--progress=plain`: a step `#7 [stage 2/4] RUN make`, its error, or its output `#7 0.345 TEXT`."""
_FAILED = re.compile(r"error: (?:failed to (?:build|solve): )?(.*)", re.IGNORECASE)
_BASE_MISSING = re.compile(
    r"load metadata for|failed to resolve source metadata|failed to do request|pull access denied|toomanyrequests"
    r"|manifest (?:for \S+ )?(?:unknown|not found)|(?:Head|Get) \"https?://[^\"]*/v2/|repository does not exist",
    re.IGNORECASE,
)
"""Wordings of BuildKit, then of the engine, for an image of a FROM that cannot be obtained."""
_NO_DOWNLOAD = re.compile(
    r"temporary failure (?:in name resolution|resolving)|could not resolve|no such host|network is unreachable"
    r"|connection (?:timed out|refused|reset)|failed to establish a new connection|tls handshake timeout",
    re.IGNORECASE,
)
"""Wordings of apt, curl, pip, npm and git for a host that a step could not reach."""
_NO_ENGINE = re.compile(r"cannot connect to the docker daemon|error during connect", re.IGNORECASE)


class BuildJob(NamedTuple):
    """A request to a builder."""

    build: Build
    archive: IO[bytes]
    """The files, as `BuildContext.archive` writes them."""
    name: str
    """Name of the image."""
    cancel: threading.Event | None = None
    """Event that stops the build once it is set."""


class BuildReport:
    """A builder's output: steps are reported as they begin, and the last lines are kept for an error message."""

    def __init__(self, build: Build, tell: Callable[[PullProgress], None]) -> None:
        self._build, self._tell = build, tell
        self._last: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
        self._steps: dict[str, PullProgress] = {}
        self._now = PullProgress("", "building")
        self._failed = self.error = ""

    def begin(self, key: str, done: int, total: int, text: str) -> None:
        """Report the beginning of a step; key is the builder's own name for it."""
        step = PullProgress("", "building", layers_done=done, layers_total=total, detail=printable_line(text))
        if key not in self._steps:
            self._steps[key] = self._now = step
            log.info("building %s, step %d of %d: %s", self._build.context, done, total, step.detail)
            self._tell(step)

    def add_line(self, key: str, text: str) -> None:
        """Add a line of output, of a step or of the builder itself."""
        self._last[key].append(text)
        self._tell(self._steps.get(key, self._now)._replace(detail=printable_line(text)))

    def fail(self, key: str, error: str) -> None:
        """Record an error; only the first one is kept, since it is the cause."""
        if not self.error:
            self._failed, self.error = key, error

    def check(self) -> None:
        """Raise the recorded failure, if any.

        Raises:
            ImageUnavailable: a base image cannot be obtained, or a step could not reach a host.
            SandboxUnavailable: the engine does not answer.
            UsageError: a step failed, or the Dockerfile is invalid.
        """
        if not self.error:
            return
        what, error, step = (
            f"The build of {str(self._build.context)!r}",
            printable_line(self.error),
            self._steps.get(self._failed),
        )
        if _NO_ENGINE.search(error):
            raise SandboxUnavailable(f"{what} failed: {error}. Start the engine (`ohsandbox doctor`).")
        is_from = step is None or step.detail.upper().startswith("FROM ")
        if is_from and _BASE_MISSING.search(self.error):
            raise ImageUnavailable(
                f"{what} failed, since an image of a FROM cannot be had: {error}. Correct "
                f"{self._build.dockerfile}, pull the image by hand, or try again later."
            )
        at_step = f" at step {step.layers_done} of {step.layers_total}, {step.detail!r}" if step else ""
        last = self._last.get(self._failed)
        output = f" Its last output: {printable_line(' | '.join(last))}." if step and last else ""
        if _NO_DOWNLOAD.search(output):
            raise ImageUnavailable(
                f"{what} failed{at_step}, which could not download what it needs: {error}.{output} See to the "
                "network of the engine's builds, or try again later."
            )
        raise UsageError(f"{what} failed{at_step}: {error}.{output} Correct {self._build.dockerfile}.")


def run(engine: Engine, job: BuildJob, report: BuildReport) -> None:
    """Build the image, with BuildKit if it is available. Failures are recorded in the report.

    Raises:
        UsageError: the build has secrets, and BuildKit is not available.
        SandboxUnavailable: the engine failed.
        CallCancelledError: cancel was set; the build was stopped.
    """
    job.archive.seek(0)
    with_buildkit = buildkit_command(engine)
    if with_buildkit is None and job.build.secrets:
        raise UsageError(
            f"The build of {str(job.build.context)!r} needs BuildKit for its secrets, and docker's client here has no "
            "`docker buildx` for this engine. Install it (Debian: docker-cli and docker-buildx)."
        )
    if with_buildkit is None:
        _run_classic(engine, job, report)
    else:
        _run_buildkit([*with_buildkit, *_options(job)], job, report)
    check_not_cancelled(job.cancel, f"building {str(job.build.context)!r}")


# --- BuildKit ---


def buildkit_command(engine: Engine) -> list[str] | None:
    """Return the docker client's command that builds with this engine's BuildKit; None if it cannot.

    Podman has no BuildKit. A builder that runs in its own container does not count: it would not see the engine's
    images.
    """
    if engine.is_podman:
        return None
    builder = engine.address.context
    try:
        described = host_programs.run(
            ["docker", "buildx", "inspect", builder], capture_output=True, text=True, timeout=_CLIENT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    is_usable = re.search(r"^Driver: +docker$", described, re.MULTILINE) and re.search(
        r"^Status: +running$", described, re.MULTILINE
    )
    return ["docker", "buildx", "build", "--builder", builder] if is_usable else None


def _options(job: BuildJob) -> list[str]:
    build = job.build
    arguments = [word for key, value in build.args.items() for word in ("--build-arg", f"{key}={value}")]
    target = [] if build.target is None else ["--target", build.target]
    return [
        "--load", "--progress=plain", "--tag", job.name, "--label", f"{BUILD_LABEL}=1", "--file", build.dockerfile,
        *arguments, *target, *_secrets(build), "-",
    ]  # fmt: skip


def _secrets(build: Build) -> list[str]:
    options = []
    for name, reference in build.secrets.items():
        kind, _, value = reference.partition(":")
        options += ["--secret", f"id={name},{'src' if kind == 'file' else 'env'}={value}"]
    return options


def _run_buildkit(words: list[str], job: BuildJob, report: BuildReport) -> None:
    environment = os.environ | {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}  # they would make a list of one image
    with (
        host_programs.start(
            words, stdin=job.archive, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C must reach only this process
        ) as client,
        _terminated_on_exit(client, job.cancel),
    ):  # fmt: skip
        assert client.stderr is not None  # noqa: S101 - PIPE gives one
        last = ""
        for line in client.stderr:
            text = _COLOUR.sub("", line.decode(errors="replace")).rstrip()
            last = text or last
            _follow_buildkit(text, report)
        code = client.wait()
    if code:
        failed = _FAILED.fullmatch(last)
        report.fail("", failed[1] if failed else f"the docker client ended with exit code {code}: {last}")


@contextlib.contextmanager
def _terminated_on_exit(client: subprocess.Popen[bytes], cancel: threading.Event | None) -> Iterator[None]:
    """Context that terminates the client, and with it the build, once cancel is set or the block fails."""
    try:
        with once_cancelled(cancel, client.terminate):
            yield
    except BaseException:
        client.terminate()
        raise


def _follow_buildkit(text: str, report: BuildReport) -> None:
    if (match := _VERTEX.fullmatch(text)) is None:
        return
    key, done, total, step, error, _, printed, other = match.groups()
    if done:
        report.begin(key, int(done), int(total), step)
    elif error is not None:
        report.fail(key, error)
    elif printed:
        report.add_line(key, printed)
    elif other and other.startswith("["):  # `[internal] load metadata for ...`
        report.add_line("", other)


# --- the engine's own builder ---


def _run_classic(engine: Engine, job: BuildJob, report: BuildReport) -> None:
    build = job.build
    with engine.cancellable(job.cancel, f"building {str(build.context)!r}"):
        stream = engine.api.build(
            fileobj=job.archive, custom_context=True, dockerfile=build.dockerfile, tag=job.name, rm=True, forcerm=True,
            decode=True, buildargs=dict(build.args), target=build.target, labels={BUILD_LABEL: "1"},
        )  # fmt: skip
        key = ""
        for line in stream:  # read to the end: docker-py leaves open a stream that is not read completely
            key = _follow_classic(line, key, report)


def _follow_classic(line: dict[str, Any], key: str, report: BuildReport) -> str:
    """Report a line of the stream; return the step to which it belongs."""
    if error := line.get("error"):
        report.fail(key, str(error))
        return key
    text = _COLOUR.sub("", str(line.get("stream") or line.get("status") or "")).strip()
    if match := _CLASSIC_STEP.fullmatch(text):
        if not match[3].startswith(f"LABEL {BUILD_LABEL}="):  # the last step is our own LABEL
            report.begin(match[1], int(match[1]), int(match[2]) - 1, match[3])
        return match[1]
    for output_line in text.splitlines():
        if output_line.strip() and not output_line.startswith(_OF_THE_CLASSIC_BUILDER):
            report.add_line(key, output_line)
    return key
