"""A real engine, throw-away state, and the promise that nothing is left behind."""

from __future__ import annotations

import io
import os
import secrets
import tarfile
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ohsandbox.errors import EngineUnavailable
from ohsandbox.runtime.docker.engine.connection import Engine, connect
from ohsandbox.runtime.docker.runtime import DockerRuntime
from tests.conftest import drop_checkpoints
from tests.runtime.engines import newer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BASE = "ohsandbox-base"


class Result(NamedTuple):
    code: int
    out: str
    err: str


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A docker test of this folder runs on each engine, but for those that need this machine's network or mounts."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "docker" in marks and "one_engine" not in marks:
        metafunc.parametrize("address", [None, newer()], ids=["engine", "newer"], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The newer engine is asked each test once, of its parameters the first; OHSANDBOX_NEWER=all: each of them."""
    if os.environ.get("OHSANDBOX_NEWER") == "all":
        return
    asked: set[str] = set()
    again = []
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.callspec.params.get("address"):
            function = item.nodeid.partition("[")[0]
            if function in asked:
                again.append(item)
            asked.add(function)
    if again:
        left_out = {id(item) for item in again}
        items[:] = [item for item in items if id(item) not in left_out]
        config.hook.pytest_deselected(items=again)


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest) -> str | None:
    """A DOCKER_HOST; None: the one that is configured."""
    return getattr(request, "param", None)


@pytest.fixture(autouse=True)
def _engine_of_this_test(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if address:
        monkeypatch.setenv("DOCKER_HOST", address)


@pytest.fixture(scope="session")
def engine(address: str | None) -> Iterator[Engine]:
    """The engine that tests run against; without one they are skipped here and fail in CI."""
    try:
        found = connect({"DOCKER_HOST": address} if address else None)
    except EngineUnavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has no engine: {error}")
        pytest.skip(f"no engine: {error}")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of this test's own, whose checkpoints go with it."""
    directory = tmp_path / "state"
    monkeypatch.setenv("OHSANDBOX_HOME", str(directory))
    yield directory
    drop_checkpoints(directory)


@pytest.fixture
def sandbox(engine: Engine) -> Iterator[Callable[..., DockerRuntime]]:
    """Starts sandboxes that are closed, and gone, when the test ends."""
    started: list[DockerRuntime] = []

    def start(image: str = f"{BASE}:debian", **options: Any) -> DockerRuntime:
        runtime = DockerRuntime(image, **options)
        started.append(runtime)
        return runtime.start()

    yield start
    names = [runtime.name for runtime in started if runtime.name and not runtime._options.attach]
    for runtime in started:
        runtime.close()
    left = {found["Names"][0].lstrip("/") for found in engine.api.containers(all=True)}
    assert not left.intersection(names)


@pytest.fixture
def foreign(engine: Engine) -> Iterator[Callable[..., str]]:
    """Makes containers that are not ohsandbox's."""
    made: list[str] = []

    def create(image: str = f"{BASE}:busybox", *, running: bool = True, **config: Any) -> str:
        name = f"foreign-{secrets.token_hex(4)}"
        body = {"Image": image, "Entrypoint": ["sleep", "1000"], "Cmd": [], "HostConfig": {"NetworkMode": "none"}}
        made.append(engine.api.create_container_from_config(body | config, name)["Id"])
        if running:
            engine.api.start(made[-1])
        return name

    yield create
    for one in made:
        engine.api.remove_container(one, force=True, v=True)


@pytest.fixture
def image(engine: Engine) -> Iterator[Callable[..., str]]:
    """Commits throw-away images: `image(changes=[...], run="rm /bin/sh")`."""
    made: list[str] = []

    def build(*, base: str = f"{BASE}:busybox", run: str = "", changes: list[str] | None = None) -> str:
        tag = f"ohsandbox-test-{secrets.token_hex(4)}"
        body = {"Image": base, "Entrypoint": ["/bin/sh", "-c", run or ":"], "HostConfig": {"NetworkMode": "none"}}
        container = engine.api.create_container_from_config(body, tag)["Id"]
        try:
            engine.api.start(container)
            engine.api.wait(container)
            engine.api.commit(container, repository=tag, changes="\n".join(changes or ["LABEL ohsandbox.test=1"]))
        finally:
            engine.api.remove_container(container, force=True)
        made.append(tag)
        return tag

    yield build
    for tag in made:
        engine.api.remove_image(tag, force=True)


@pytest.fixture
def git_image(image: Callable[..., str], engine: Engine) -> Callable[[], str]:
    """An image with git: the host's own, put into the base image where that has none."""

    def made() -> str:
        tag = image(base=f"{BASE}:debian", run="git --version")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add("/usr/bin/git")
            archive.add("/usr/lib/git-core")
        container = engine.api.create_container_from_config({"Image": tag})["Id"]
        try:
            engine.api.put_archive(container, "/", packed.getvalue())
            engine.api.commit(container, repository=tag)
        finally:
            engine.api.remove_container(container, force=True)
        return tag

    return made


def sh(runtime: DockerRuntime, script: str, **options: Any) -> Result:
    """One shell command over one channel."""
    out, err = b"", b""
    with runtime.open_channel(["/bin/sh", "-c", script], **options) as channel:
        if not options.get("tty"):
            channel.close_stdin()
        while chunks := channel.read(60):
            out += b"".join(chunk.data for chunk in chunks if chunk.stream == 1)
            err += b"".join(chunk.data for chunk in chunks if chunk.stream == 2)
        return Result(channel.wait(60), out.decode(), err.decode())


@pytest.fixture(name="sh")
def _sh() -> Callable[..., Result]:
    return sh
