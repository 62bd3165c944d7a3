"""The texts are captured from engine 20.10.24 with runc 1.1.5, unless a comment says otherwise."""

from __future__ import annotations

import http.client
import inspect
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests
import urllib3

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
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors, start_error, translate_error

EXEC = "OCI runtime exec failed: exec failed: unable to start container process: "
CREATE = (
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("unable to find user nosuch: no matching entries in passwd file\r\n", UnknownUserError),
        ("uids and gids must be in range 0-2147483647\r\n", UnknownUserError),
        (
            EXEC + 'chdir to cwd ("/x") set in config.json failed: no such file or directory: unknown',
            WorkdirMissingError,
        ),
        (EXEC + 'chdir to cwd ("/etc/passwd") set in config.json failed: not a directory', WorkdirNotADirectoryError),
        (EXEC + 'chdir to cwd ("/root") set in config.json failed: permission denied: unknown', UsageError),
        (EXEC + 'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', ImageUnavailable),
        (EXEC + "exec /bin/sh: exec format error", ImageUnavailable),  # runc 1.2
        ("cannot exec in a paused state: unknown\r\n", SandboxPaused),
        ("cannot exec in a stopped container: unknown", SandboxUnavailable),
        (EXEC + "read init-p: connection reset by peer: unknown", SandboxUnavailable),
        ("", SandboxUnavailable),
        ("the image's shell speaks before its turn", SandboxUnavailable),
    ],
)
def test_a_process_that_cannot_start_is_a_typed_error(text: str, kind: type[OhsandboxError]) -> None:
    error = start_error(text, user="nosuch", workdir="/x")
    assert type(error) is kind
    assert "\n" not in str(error)


def test_an_unknown_user_and_a_missing_workdir_are_also_their_builtins() -> None:
    assert isinstance(start_error("unable to find user u: no matching entries"), LookupError)
    missing = start_error('chdir to cwd ("/x") set in config.json failed: no such file or directory', workdir="/x")
    assert isinstance(missing, FileNotFoundError)
    assert "'/x'" in str(missing)


def api_error(status: int, text: str, kind: type[Any] = docker.errors.APIError) -> Exception:
    response = SimpleNamespace(status_code=status, url="http+docker://localhost", reason="", close=lambda: None)
    error: Exception = kind("failed", response=response, explanation=text)
    return error


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (404, "No such container: 5d1c", SandboxGone),
        (404, "No such exec instance: 5d1c", SandboxGone),
        (409, "Container 5d1c is paused, unpause the container before exec", SandboxPaused),
        (409, "Container 5d1c is not running", SandboxUnavailable),
        (409, 'Conflict. The container name "/a" is already in use by container "5d1c"', UsageError),
        (400, "Unknown runtime specified runsc", UsageError),
        (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", UsageError),
        (500, "--storage-opt is supported only for overlay over xfs with 'pquota' mount option", UsageError),
        (404, "No such image: nosuch:latest", ImageUnavailable),
        (404, "manifest for busybox:nosuch not found: manifest unknown: manifest unknown", ImageUnavailable),
        (404, "pull access denied for x/y, repository does not exist or may require 'docker login'", ImageUnavailable),
        (500, "Head https://registry/v2/a/manifests/1: unauthorized: authentication required", ImageUnavailable),
        (500, "toomanyrequests: You have reached your pull rate limit", ImageUnavailable),
        (400, CREATE + 'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', ImageUnavailable),
        (500, "write /var/lib/docker/tmp/x: no space left on device", SandboxUnavailable),
        (500, "could not find an available, non-overlapping IPv4 address pool among the defaults", SandboxUnavailable),
        (500, "something new", SandboxUnavailable),
    ],
)
def test_what_the_engine_answers_is_a_typed_error(status: int, text: str, kind: type[OhsandboxError]) -> None:
    error = translate_error(api_error(status, text), doing="starting")
    assert type(error) is kind
    assert "\n" not in str(error)


def _instance(kind: type[BaseException]) -> BaseException:
    if issubclass(kind, docker.errors.APIError):
        return api_error(500, "x", kind)
    for count in (1, 2, 5):
        try:
            return kind(*["x"] * count)
        except TypeError:
            continue
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [kind for _, kind in inspect.getmembers(docker.errors, inspect.isclass) if issubclass(kind, Exception)]
    + [requests.ConnectionError, requests.Timeout, urllib3.exceptions.ProtocolError, http.client.BadStatusLine]
    + [ConnectionResetError, FileNotFoundError, PermissionError],
)
def test_no_foreign_error_leaves(kind: type[BaseException]) -> None:
    with pytest.raises(OhsandboxError), engine_errors("trying"):
        raise _instance(kind)


def test_a_timeout_says_that_the_engine_did_not_answer() -> None:
    error = translate_error(requests.ReadTimeout("Read timed out."), doing="starting")
    assert isinstance(error, EngineUnavailable)
    assert "did not answer in time" in str(error)


def test_our_own_errors_pass_unchanged() -> None:
    own = UsageError("x")
    with pytest.raises(UsageError) as caught, engine_errors("trying"):
        raise own
    assert caught.value is own
