"""The flavours of runtime that the conformance suite is held against, each started once for the whole session."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.runtime.shell import running
from ohsandbox.runtime.ssh import SshRuntime
from ohsandbox.testing.runtime import DescriptorlessRuntime, FakeRuntime
from tests.runtime.engines import IMAGE, gvisor, podman
from tests.runtime.ssh_server import ssh_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.docker.runtime import DockerRuntime

NEWER = os.environ.get("OHSANDBOX_NEWER_ENGINE")
ON_THE_NEWER = ("nonroot", "hostile")
"""Images that the suite runs in on the newer engine, where there is one."""
RUNG_S = 0.4
"""Each stubborn command takes three rungs of the ladder: at their real length a fifth of the suite would be waiting."""


@pytest.fixture(scope="session")
def flavour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Runtime]]:
    """`flavour(name)` is that runtime, started."""
    started: dict[str, Runtime] = {}
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "RUNG_S", RUNG_S)

        def get(name: str) -> Runtime:
            if name not in started:
                started[name] = stack.enter_context(_make(name, tmp_path_factory, stack))
            return started[name]

        yield get


def _make(name: str, tmp_path_factory: pytest.TempPathFactory, stack: contextlib.ExitStack) -> Runtime:
    if name == "fake":
        return FakeRuntime()
    if name == "descriptorless":
        return DescriptorlessRuntime()
    if name == "ssh":
        config = stack.enter_context(ssh_server(tmp_path_factory.mktemp("ssh")))
        return SshRuntime("machine", str(tmp_path_factory.mktemp("machine")), config=config)
    if name == "cli":
        return CLIRuntime(tmp_path_factory.mktemp("cli"), bubblewrap=False, quiet=True)
    from ohsandbox import DockerRuntime, SandboxLimits  # noqa: PLC0415 - slow to import, and not every run needs it

    address, runtime = NEWER if name in ON_THE_NEWER else None, DockerRuntime(f"ohsandbox-base:{name}")
    if name == "podman":
        address, runtime = stack.enter_context(podman()), DockerRuntime(f"localhost/{IMAGE}")
    elif name == "gvisor":
        address = stack.enter_context(gvisor(tmp_path_factory.mktemp("gvisor")))
        runtime = DockerRuntime(IMAGE, runtime="runsc", limits=SandboxLimits(enforced=False))
    return _started_on(address, runtime) if address else runtime


def _started_on(address: str, runtime: DockerRuntime) -> DockerRuntime:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        return runtime.start()
