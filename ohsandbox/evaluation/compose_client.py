"""Runs `docker compose`, the plugin of the docker client."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import host_programs
from ohsandbox.errors import CallCancelledError, UsageError

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

_INHERITED = frozenset({
    "PATH", "HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONTEXT",
    "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
})  # fmt: skip
"""What a client needs to find its plugins and its engine. Compose puts any variable that it has into the files of a
task, so it has no others."""
_POLL_S = 0.1
_END_S = 5.0
"""Time that a client gets to end: it cancels its calls of the engine."""
_REMEDY = "Install the docker client with its Compose plugin (Debian: docker-cli and docker-compose)."


class Called(NamedTuple):
    """The result of a call."""

    exit_code: int
    stdout: str
    stderr: str


def docker_compose(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float,
    cancel: threading.Event | None = None,
) -> Called:
    """Run `docker compose` with arguments.

    Raises:
        UsageError: it is not installed.
        TimeoutError: it took longer than limit_s, and has been ended.
        CallCancelledError: cancel was set; it has been ended.
    """
    return _run([_client(), "compose", *arguments], env or {}, limit_s, cancel)


@functools.cache
def _client() -> str:
    client = host_programs.program("docker", remedy=f"This task needs Docker Compose. {_REMEDY}")
    result = _run([client, "compose", "version", "--short"], {}, 30.0, None)
    if result.exit_code != 0:
        raise UsageError(f"This task needs Docker Compose, and {client} has no such plugin. {_REMEDY}")
    return client


def _run(command: Sequence[str], env: Mapping[str, str], limit_s: float, cancel: threading.Event | None) -> Called:
    inherited = {name: value for name, value in os.environ.items() if name in _INHERITED}
    # a session of its own: Ctrl-C is for us, who end it and then remove what it has made
    process = host_programs.start(
        command, env={**env, **inherited}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                out, err = process.communicate(timeout=_POLL_S)
                return Called(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
            except subprocess.TimeoutExpired:
                pass
            if cancel is not None and cancel.is_set():
                raise CallCancelledError("`docker compose` was cancelled.")
            if time.monotonic() > deadline:
                raise TimeoutError(f"`docker compose` took longer than {limit_s:g} s")
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
