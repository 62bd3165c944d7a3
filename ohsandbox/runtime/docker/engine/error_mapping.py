"""Mapping of errors of docker-py, its HTTP stack and the engine to ohsandbox's errors, in this module only.

Two pure functions: `translate_error` for errors that docker-py, requests, urllib3 and sockets raise, `start_error` for
the text that the engine writes into an exec's own stream when the process could not be started. Every pattern below was
captured from engine 20.10.24 with runc 1.1.5, or from the documented wording of newer engines.
"""

from __future__ import annotations

import errno
import http.client
import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import (
    EngineUnavailable,
    ImageUnavailable,
    OhsandboxError,
    SandboxGone,
    SandboxPaused,
    SandboxUnavailable,
    UnknownUserError,
    UsageError,
    WorkdirMissingError,
    WorkdirNotADirectoryError,
)
from ohsandbox.text import quoted_line

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ENGINE_REMEDY = "Start the engine, or point DOCKER_HOST at one."
_QUOTE_CHARS = 300
"""Maximum number of characters of an engine's text that a message quotes."""


class _ErrorRule(NamedTuple):
    """A pattern of engine text, the error that it means, and the remedy."""

    pattern: re.Pattern[str]
    kind: type[OhsandboxError]
    remedy: str


def _in_order(first: str, later: str) -> str:
    """Return a pattern for a line with first and then later, searched only after the first match of first.

    The engine quotes paths and arguments in between, which may be chosen by an attacker to contain many copies of
    first: plain `.*` would search on from each of them.
    """
    return rf"(?m:^)(?:(?!{first}).)*(?:{first}).*(?:{later})"


def _rule(pattern: str, kind: type[OhsandboxError], remedy: str) -> _ErrorRule:
    return _ErrorRule(re.compile(pattern, re.IGNORECASE), kind, remedy)


_NO_SHELL = "Use an image that has a POSIX shell at /bin/sh."
_OTHER_ARCH = "Use an image or a tag for the engine's architecture: its programs are for another processor."
_BUSY = "Restart the sandbox, or raise --pids or --memory (SandboxLimits): it is at its process or memory limit."
_UNPAUSE = "Unpause it with `docker unpause`."

# fmt: off
_START_RULES: tuple[_ErrorRule, ...] = (
    _rule(r"find (user|group) |no matching entries in (passwd|group) file|uids and gids must be in", UnknownUserError,
          "Name a user of the image's /etc/passwd, or a numeric id."),
    _rule(_in_order("chdir to cwd ", "not a directory"), WorkdirNotADirectoryError, "Name a directory."),
    _rule(_in_order("chdir to cwd ", "no such file or directory"), WorkdirMissingError,
          "Make it first, or name another."),
    _rule(_in_order("chdir to cwd ", "permission denied"), UsageError, "Name a directory that this user may enter."),
    _rule(_in_order("container|cannot exec in a?", "paused"), SandboxPaused, _UNPAUSE),
    _rule(r"exec format error", ImageUnavailable, _OTHER_ARCH),
    _rule(_in_order('/bin/sh"?: ', "no such file or directory|not found|permission denied"), ImageUnavailable,
          _NO_SHELL),
    _rule(r"argument list too long", UsageError, "Pass large data over stdin; one argument holds at most 128 KiB."),
    _rule(r"connection reset by peer|resource temporarily unavailable|cannot allocate memory|EOF", SandboxUnavailable,
          _BUSY),
    _rule(r"not running|stopped (state|container)|does not exist|no such container", SandboxUnavailable,
          "Start it again."),
)
"""Text in an exec's stream whose process never started. First match wins."""

API_RULES: tuple[_ErrorRule, ...] = (
    _rule(r"no such container|no such exec", SandboxGone,
          "Start a new sandbox: the files of this one are gone with it."),
    _rule(r"is paused", SandboxPaused, _UNPAUSE),
    _rule(r"is not running|is restarting|cannot exec in a stopped", SandboxUnavailable, "Start it again."),
    _rule(r"name \S+ is already in use", UsageError, "Choose another name, or join that sandbox with attach=."),
    _rule(r"unknown (or invalid )?runtime|runtime name|no such runtime", UsageError,
          "Install it in the engine, or leave it out."),
    _rule(r"could not select device driver|nvidia-container-cli|CDI device|GPU vendor", UsageError,
          "Install NVIDIA's driver and Container Toolkit on the engine's machine, or leave --gpus (gpus=) out."),
    _rule(r"bind source path does not exist", UsageError,
          "Name a directory that the engine has under the same name: it runs in another container or machine."),
    _rule(r"invalid (container name|reference format)", UsageError, "Correct the name."),
    _rule(r"storage-opt|pquota", UsageError,
          "Leave --disk (SandboxLimits(disk_bytes=...)) out: this engine's storage cannot bound disk."),
    _rule(r"toomanyrequests|rate limit|too many requests", ImageUnavailable, "Wait, or log in with `docker login`."),
    _rule(r"unauthorized|authentication required|access denied|denied: |no basic auth", ImageUnavailable,
          "Check the name; log in with `docker login` if it is private."),
    _rule(r"no matching manifest|does not match the specified platform", ImageUnavailable, _OTHER_ARCH),
    _rule(r"no such image|manifest .*unknown|repository .*not found|not found: (does not exist|manifest)"
          r"|pull access denied", ImageUnavailable, "Check the image's name and tag."),
    _rule(r"exec format error", ImageUnavailable, _OTHER_ARCH),
    _rule(r'exec: "?/bin/sh|/bin/sh"?: (stat|no such)', ImageUnavailable, _NO_SHELL),
    _rule(r"no space left", SandboxUnavailable, "Free space on the engine's disk, e.g. with `docker system prune`."),
    _rule(r"address pool|no available network", SandboxUnavailable,
          "Remove unused networks with `docker network prune`."),
    _rule(r"no such host|dial tcp|i/o timeout|tls: |x509|connection refused", ImageUnavailable,
          "Check the engine's way to the registry."),
)
"""Answers of the engine's API. First match wins."""
# fmt: on


def start_error(text: str, *, user: str = "", workdir: str = "") -> OhsandboxError:
    """Return the error for the text in an exec's stream whose process did not start (exit code 126 or 127)."""
    for rule in _START_RULES:
        if not rule.pattern.search(text):
            continue
        if rule.kind is UnknownUserError:
            return UnknownUserError(f"The sandbox has no user {user!r}.", remedy=rule.remedy)
        if rule.kind is WorkdirMissingError:
            reason = "The directory does not exist in the sandbox"
            return WorkdirMissingError(errno.ENOENT, reason, workdir, remedy=rule.remedy)
        if rule.kind is WorkdirNotADirectoryError:
            return WorkdirNotADirectoryError(errno.ENOTDIR, "It is not a directory", workdir, remedy=rule.remedy)
        return rule.kind(f"The process could not start: {printable_line(text)}.", remedy=rule.remedy)
    return SandboxUnavailable(
        f"The process could not start: {printable_line(text) or 'the stream ended before it said anything'}.",
        remedy="Look at the container with `docker inspect`.",
    )


def translate_error(error: BaseException, *, doing: str) -> OhsandboxError:
    """Return our error for a foreign one; doing names the attempt, such as "starting the container"."""
    if isinstance(error, OhsandboxError):
        return error
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = str(getattr(error, "explanation", None) or getattr(error, "msg", None) or error)
    failed = f"{doing[:1].upper()}{doing[1:]} failed"
    # a stream of JSON (pull) reports a failure without an HTTP status
    if not isinstance(status, int) and type(error).__name__ not in _STREAM_ERRORS:
        return _transport_error(error, text, failed)
    for rule in API_RULES:
        if rule.pattern.search(text):
            return rule.kind(f"{failed}: {printable_line(text)}.", remedy=rule.remedy)
    kind = UsageError if status == http.client.BAD_REQUEST else SandboxUnavailable
    return kind(f"{failed}: the engine answered {status or 'an error'}: {printable_line(text)}.")


_STREAM_ERRORS = {"ImageLoadError", "BuildError", "StreamParseError", "PullFailed", "ContainerError"}


def _transport_error(error: BaseException, text: str, failed: str) -> OhsandboxError:
    """Return the error for a failure without an HTTP status: of the connection, or of docker-py's own checks."""
    name = type(error).__name__
    if re.search(r"timed out|timeout", f"{name} {text}", re.IGNORECASE):
        return EngineUnavailable(f"{failed}: the engine did not answer in time.", remedy=NO_ENGINE_REMEDY)
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return UsageError(f"{failed}: {printable_line(text)}.")
    return EngineUnavailable(f"{failed}: {printable_line(text) or name}.", remedy=NO_ENGINE_REMEDY)


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Translate every foreign error raised in this block.

    Raises:
        OhsandboxError: the result of `translate_error` for a docker, requests, urllib3, http or socket error.
    """
    try:
        yield
    except OhsandboxError:
        raise
    except foreign_errors() as error:
        if (response := getattr(error, "response", None)) is not None:
            response.close()  # docker-py leaves a streamed answer open when it raises
        raise translate_error(error, doing=doing) from error


@cache
def foreign_errors() -> tuple[type[BaseException], ...]:
    """Return the root classes of all errors that docker-py lets through; imports docker."""
    import docker.errors  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    import requests  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine
    import urllib3  # noqa: PLC0415 - docker: 0.14 s, needed only with an engine

    return (
        docker.errors.DockerException,
        docker.errors.StreamParseError,  # a RuntimeError, outside docker-py's own tree
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        OSError,
    )


def printable_line(text: str) -> str:
    """Return one printable line of bounded length, without a full stop at its end."""
    return quoted_line(text, limit_chars=_QUOTE_CHARS).rstrip(". ")
