"""A place to run servers in, the odd server in it, and the promise that nothing of a server is left behind."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox import CLIRuntime
from ohsandbox.mcp import MCPConfig, MCPServers
from ohsandbox.schema import text_of
from ohsandbox.testing.runtime import DescriptorlessRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ohsandbox.mcp import MCPEvent, MCPToolObservation
    from ohsandbox.runtime.base import Runtime

SERVER = Path(__file__).with_name("server.py")
PLACES = (
    pytest.param("debian", marks=pytest.mark.docker),
    pytest.param("cli", marks=pytest.mark.slow),
    pytest.param("descriptorless", marks=pytest.mark.slow),
)
RUN = f"OHS_TEST_RUN={secrets.token_hex(8)}"
OURS = f"for f in $(grep -ls OHSANDBOX_MCP /proc/[0-9]*/environ); do grep -qs {RUN} $f && echo $f; done; :"
HIDDEN = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null | grep 'sleep 700[0-9]'"


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Runtime]]:
    """`started(place)` is that runtime, with the odd server as `odd.py` in its working directory."""
    runtimes: dict[str, Runtime] = {}
    with contextlib.ExitStack() as stack:

        def get(place: str) -> Runtime:
            if place not in runtimes:
                made = _make(place, tmp_path_factory)
                runtimes[place] = stack.enter_context(made)
                made.write_bytes("odd.py", SERVER.read_bytes())
            return runtimes[place]

        yield get


def _make(place: str, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    marked = dict([RUN.split("=")])
    if place == "cli":
        return CLIRuntime(tmp_path_factory.mktemp("cli"), env=marked, bubblewrap=False, quiet=True)
    if place == "descriptorless":
        return DescriptorlessRuntime(env=marked)
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import, and not every run needs it

    return DockerRuntime(f"ohsandbox-base:{place}", env=marked)


@pytest.fixture(params=PLACES)
def sandbox(request: pytest.FixtureRequest, started: Callable[[str], Runtime]) -> Runtime:
    """Each place with Python in turn."""
    runtime: Runtime = started(request.param)
    return runtime


class Servers:
    """MCP servers of one test, and what they told."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.events: list[MCPEvent] = []
        self._made: list[MCPServers] = []

    def __call__(self, entries: Mapping[str, Any], **options: Any) -> MCPServers:
        config = MCPConfig.parse({"mcpServers": dict(entries)})
        self._made.append(MCPServers(config, self.runtime, on_event=self.events.append, **options))
        return self._made[-1].start()

    def odd(self, *modes: str, **options: Any) -> MCPServers:
        """The odd server, named `odd`."""
        return self({"odd": odd(*modes)}, **options)

    def close(self) -> None:
        for servers in self._made:
            servers.close()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def odd(*modes: str, **more: Any) -> dict[str, Any]:
    """The configuration of the odd server."""
    return {"command": "python3", "args": ["-u", "odd.py", *modes], **more}


@pytest.fixture
def servers(sandbox: Runtime) -> Iterator[Servers]:
    """`servers({...})` starts some; all are closed, and nothing of them runs, when the test ends."""
    made = Servers(sandbox)
    yield made
    made.close()
    assert sandbox.run(["sh", "-c", OURS]).stdout == b""
    if sandbox.private_processes:
        assert sandbox.run(["sh", "-c", HIDDEN]).stdout == b""


def call(servers: MCPServers, tool: str, **arguments: Any) -> str:
    """The text of a call's result."""
    return text_of(observe(servers, tool, **arguments))


def observe(servers: MCPServers, tool: str, **arguments: Any) -> MCPToolObservation:
    """A call, the way the agent makes it."""
    servers.wait()
    definition = next(one for one in servers.tools() if tool in (one.name, *one.aliases))
    return definition(definition.action_from_arguments(arguments))


def until(servers: Servers, kind: str) -> None:
    deadline = time.monotonic() + 60
    while kind not in servers.kinds() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kind in servers.kinds()


@pytest.fixture(scope="session")
def real_image() -> str:
    """An image with servers that nobody here wrote, in Python and on Node; built once."""
    return image_with("both")


def image_with(language: str) -> str:
    """The same, of one language, and without the other."""
    argv = [str(Path(__file__).with_name("image") / "build"), language]
    built = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return built.stdout.strip()


@pytest.fixture(scope="module")
def real(real_image: str) -> Iterator[Runtime]:
    """A container of that image, without a network."""
    from ohsandbox import DockerRuntime  # noqa: PLC0415 - slow to import, and not every run needs it

    with DockerRuntime(real_image, env=dict([RUN.split("=")])) as runtime:
        yield runtime


@pytest.fixture
def real_servers(real: Runtime) -> Iterator[Servers]:
    """As `servers`, there."""
    made = Servers(real)
    yield made
    made.close()
    assert real.run(["sh", "-c", OURS]).stdout == b""
