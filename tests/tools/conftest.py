"""The places where every tool is tried: Debian and busybox containers and this host, each started once a session."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.state import ConversationState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

PLACES = (
    pytest.param("debian", marks=pytest.mark.docker),
    pytest.param("busybox", marks=pytest.mark.docker),
    "cli",
)
_numbers = itertools.count()


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
