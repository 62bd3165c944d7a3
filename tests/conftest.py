"""What every test may rely on: its own state directory, no provider in reach, and an engine where it is marked so."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import ipaddress
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# before any test imports it
pytest.register_assert_rewrite("ohsandbox.testing.conformance")

HOST_PROJECTS = ("agents", "deepagents", "inspect_ai", "langchain_tests", "minisweagent", "pydantic_ai", "swerex")
"""What the tests of plug-ins import."""
MISSING_PROJECTS = [name for name in HOST_PROJECTS if importlib.util.find_spec(name) is None]
# in CI they fail at their import instead
collect_ignore = ["integrations"] if MISSING_PROJECTS and os.environ.get("CI") != "true" else []

PROVIDER_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "OHSANDBOX_API_KEY")


def pytest_configure() -> None:
    """Ctrl-C and a hang-up work, for us and all that we start, also under `nohup` and as a shell's background job.

    POSIX 2.11 has a shell ignore SIGINT and SIGQUIT for its background jobs, and children inherit what is ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_report_header() -> list[str]:
    """Say which tests are left out."""
    return [f"tests/integrations is left out: {', '.join(MISSING_PROJECTS)} missing (make integrations)"] * bool(
        collect_ignore
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """tests/toplevel comes first: its modules build images, for which each worker waits that has a test of them.

    At the end of a run, where they stood by their name, work stealing gave one to every worker.
    """
    items.sort(key=lambda item: "/toplevel/" not in item.nodeid)


@functools.cache
def missing_engine() -> str | None:
    """Why no engine can be had, or None."""
    from ohsandbox.runtime.docker.engine.connection import connect  # noqa: PLC0415 - docker is slow to import, and optional here

    try:
        connect().close()
    except EngineUnavailable as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A docker test without an engine is skipped, counted; in CI it fails."""
    if item.get_closest_marker("docker") is None or (why := missing_engine()) is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI has no engine: {why}", pytrace=False)
    pytest.skip(f"no engine: {why}")


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of a test lands in the home of who runs it, and no test can spend anybody's money."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("ohsandbox-home")
        settings = [name for name in os.environ if name.startswith("OHSANDBOX_") and "_TEST_" not in name]
        for name in (*PROVIDER_KEYS, *settings):
            patch.delenv(name, raising=False)
        patch.setenv("OHSANDBOX_HOME", str(state))
        yield
        drop_checkpoints(state)


def drop_checkpoints(state: Path) -> None:
    """Remove the images of the checkpoints that a state directory has records of."""
    records = [*(state / "checkpoints").glob("[0-9]*")]
    tags = [path.name for path in records]
    tags += [tag for path in records for tag in json.loads(path.read_bytes()).get("services", ())]
    if not tags or missing_engine() is not None:
        return
    from ohsandbox.errors import SandboxUnavailable  # noqa: PLC0415 - as above
    from ohsandbox.runtime.docker.engine.connection import connect  # noqa: PLC0415 - as above
    from ohsandbox.runtime.docker.engine.error_mapping import engine_errors  # noqa: PLC0415 - as above

    with contextlib.closing(connect()) as engine:
        for tag in tags:
            with contextlib.suppress(SandboxUnavailable), engine_errors("cleaning up"):
                engine.api.remove_image(f"ohsandbox-checkpoint:{tag}", force=True)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without an engine connects to this machine alone: what goes further is refused, and named.

    This covers the sockets of Python in this process. Child processes and libraries that call connect(2) themselves
    are not covered.
    """
    if request.node.get_closest_marker("docker") is not None:
        return

    def guarded(name: str) -> Any:
        original = getattr(socket.socket, name)

        def call(self: socket.socket, *arguments: Any) -> Any:
            match arguments[-1]:
                case (str(host), port, *_) if self.family != socket.AF_UNIX and not is_loopback(host):
                    raise PermissionError(f"A test connects to {host}:{port}. Mark it `docker`, or use a fake.")
            return original(self, *arguments)

        return call

    for name in ("connect", "connect_ex", "sendto", "sendmsg"):
        monkeypatch.setattr(socket.socket, name, guarded(name))


def is_loopback(host: str) -> bool:
    """Whether an address, as connect(2) has it, is of this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The directory of a project, with a repository and a place for its devcontainer."""
    directory = tmp_path / "project"
    (directory / ".git").mkdir(parents=True)
    (directory / ".devcontainer").mkdir()
    return directory


@pytest.fixture(autouse=True, scope="session")
def _own_event_loop() -> Iterator[None]:
    """litellm makes the main thread an event loop where it has none, and asyncio.run drops that one unclosed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
