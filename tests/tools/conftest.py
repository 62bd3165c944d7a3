"""The places where every tool is tried: Debian and busybox containers and this host, each started once a session."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.state import ConversationState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime

PLACES = (
    pytest.param("debian", marks=pytest.mark.docker),
    pytest.param("busybox", marks=pytest.mark.docker),
    "cli",
)
_numbers = itertools.count()
BROWSER_IMAGE = "ohsandbox-browser"
BUILD_LIMIT_S = 600
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Runtime]]:
    """`started(place)` is that runtime, started."""
    runtimes: dict[str, Runtime] = {}
    with contextlib.ExitStack() as stack:

        def get(place: str) -> Runtime:
            if place not in runtimes:
                runtimes[place] = stack.enter_context(_make(place, tmp_path_factory))
            return runtimes[place]

        yield get


def _make(place: str, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    if place == "cli":
        return CLIRuntime(tmp_path_factory.mktemp("cli"), bubblewrap=False, quiet=True)
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import, and not every run needs it

    return DockerRuntime(f"ohsandbox-base:{place}")


@pytest.fixture(params=PLACES)
def sandbox(request: pytest.FixtureRequest, started: Callable[[str], Runtime]) -> Runtime:
    """Each place in turn."""
    runtime: Runtime = started(request.param)
    return runtime


@pytest.fixture(params=[PLACES[0], "cli"])
def roomy(request: pytest.FixtureRequest, started: Callable[[str], Runtime]) -> Runtime:
    """The places with GNU tools and Python."""
    runtime: Runtime = started(request.param)
    return runtime


@pytest.fixture
def state(tmp_path: Path, sandbox: Runtime) -> ConversationState:
    """A conversation in the sandbox, with a directory of its own on the host."""
    return ConversationState(conversation_id="c", runtime=sandbox, directory=tmp_path / "tools")


@pytest.fixture
def folder(sandbox: Runtime) -> str:
    """The absolute path of an empty directory in the sandbox; it exists."""
    name = f"{sandbox.workdir.rstrip('/')}/t{next(_numbers)}"
    sandbox.run(["mkdir", "-p", name])
    return name


@pytest.fixture(scope="session")
def image() -> str:
    """images/browser, built as users build it, on the tests' Debian. 30 s with nothing cached."""
    bundle = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
    secrets = [f"id=ca,src={bundle}"] if Path(bundle).exists() else []
    secrets += [f"id=pip.conf,src={os.environ['PIP_CONFIG_FILE']}"] if os.environ.get("PIP_CONFIG_FILE") else []
    secrets += [f"id={name}" for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if os.environ.get(name)]
    command = [
        "docker",
        "build",
        "--tag",
        BROWSER_IMAGE,
        "--build-arg",
        "BASE_IMAGE=ohsandbox-base:debian",
        "images/browser",
    ]
    for secret in secrets:
        command += ["--secret", secret]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return BROWSER_IMAGE
