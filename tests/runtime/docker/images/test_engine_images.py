from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import CallCancelledError, ImageUnavailable
from ohsandbox.runtime.docker.engine.error_mapping import translate_error
from ohsandbox.runtime.docker.images import engine_images
from ohsandbox.runtime.docker.images.engine_images import ensure, find_absent, inspect
from ohsandbox.runtime.results import PullProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

pytestmark = pytest.mark.one_engine


@pytest.fixture(scope="module")
def registry(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on the loopback that holds busybox as `NAME:PORT/box:1`; the engine does not have it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry (apt-get install docker-registry)")
    directory = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = directory / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    process = subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for(port)
    name = f"127.0.0.1:{port}/box"
    engine.api.tag("ohsandbox-base:busybox", name, "1")
    pushed = engine.api.push(name, "1")
    assert "error" not in pushed, pushed
    engine.api.remove_image(f"{name}:1")
    yield f"{name}:1"
    process.terminate()
    process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(port)


@pytest.fixture
def pullable(engine: Engine, registry: str) -> Iterator[str]:
    yield registry
    if inspect(engine, registry) is not None:
        engine.api.remove_image(registry)


@pytest.mark.docker
def test_absent_are_those_that_neither_engine_nor_registry_has(engine: Engine, pullable: str) -> None:
    host = pullable.partition("/")[0]
    names = ["ohsandbox-base:hostile", pullable, f"{host}/box:none", f"{host}/nobody:1", "127.0.0.1:1/silent:1"]
    absent = find_absent(engine, names)
    assert sorted(absent) == [f"{host}/box:none", f"{host}/nobody:1"]
    assert all(absent.values())
    assert inspect(engine, pullable) is None


@pytest.mark.docker
def test_an_image_that_is_here_is_not_pulled(engine: Engine) -> None:
    heard: list[PullProgress] = []
    facts = ensure(engine, "ohsandbox-base:hostile", progress=heard.append)
    assert heard == []
    assert (facts.user, facts.workdir, facts.platform) == ("12345", "/proc/self/fd/8", "linux/amd64")


@pytest.mark.docker
def test_a_missing_image_is_pulled_with_progress_and_its_digest_is_known(engine: Engine, pullable: str) -> None:
    heard: list[PullProgress] = []
    facts = ensure(engine, pullable, progress=heard.append)
    assert facts.digest is not None
    assert "/box@sha256:" in facts.digest
    assert heard[-1].status == "done"
    assert heard[-1].layers_done == heard[-1].layers_total


@pytest.mark.docker
def test_one_pull_serves_all_who_want_the_image(engine: Engine, pullable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pulls: list[str] = []
    real = engine_images._pull

    def slow(*arguments: Any) -> None:
        pulls.append("pull")
        time.sleep(0.3)
        real(*arguments)

    monkeypatch.setattr(engine_images, "_pull", slow)
    heard: list[PullProgress] = []
    threads = [
        threading.Thread(target=ensure, args=(engine, pullable), kwargs={"progress": heard.append}) for _ in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pulls == ["pull"]
    assert "waiting" in {one.status for one in heard}


@pytest.mark.docker
def test_a_tag_that_is_not_in_the_registry_is_unavailable(engine: Engine, registry: str) -> None:
    with pytest.raises(ImageUnavailable, match="Check the image's name and tag"):
        ensure(engine, registry.removesuffix(":1") + ":nosuch")


@pytest.mark.docker
def test_a_registry_that_does_not_answer_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_images, "FIRST_PAUSE_S", 0.0)
    with pytest.raises(ImageUnavailable, match="way to the registry"):
        ensure(engine, "127.0.0.1:9/nosuch:1")


def failing_pull(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> tuple[Callable[[], None], list[str]]:
    """A pull that fails with each text in turn, then works."""
    left = list(texts)

    def pull() -> None:
        if left:
            failed = engine_images.PullFailed(left.pop(0))
            raise translate_error(failed, doing="pulling")

    monkeypatch.setattr(engine_images, "FIRST_PAUSE_S", 0.0)
    return pull, left


def test_a_rate_limit_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pull, left = failing_pull(monkeypatch, ["toomanyrequests: You have reached your pull rate limit"] * 2)
    heard: list[PullProgress] = []
    engine_images.patiently(pull, "x", heard.append, None)
    assert left == []
    assert [one.status for one in heard] == ["retrying", "retrying"]


def test_a_rate_limit_that_stays_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    pull, _ = failing_pull(monkeypatch, ["toomanyrequests: slow down"] * 9)
    with pytest.raises(ImageUnavailable, match="docker login"):
        engine_images.patiently(pull, "x", lambda _: None, None)


@pytest.mark.parametrize("text", ["unauthorized: authentication required", "manifest unknown"])
def test_a_refusal_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    pull, left = failing_pull(monkeypatch, [text, "second"])
    with pytest.raises(ImageUnavailable):
        engine_images.patiently(pull, "x", lambda _: None, None)
    assert left == ["second"]


@pytest.mark.slow
@pytest.mark.docker
def test_a_pull_that_is_cancelled_ends_though_the_registry_is_silent(engine: Engine) -> None:
    cancel = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        name = f"127.0.0.1:{silent.getsockname()[1]}/box:1"
        pulling = pool.submit(ensure, engine, name, cancel=cancel)
        with silent.accept()[0]:  # the engine has asked; it gets no answer
            cancel.set()
            with pytest.raises(CallCancelledError, match=f"^Pulling image '{name}' was cancelled"):
                pulling.result(60)
    assert engine.api.hooks["response"] == []


def test_progress_is_summed_over_the_layers() -> None:
    layers: dict[str, Any] = {}
    for line in (
        {"status": "Pulling from box", "id": "1"},
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5, "total": 10}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 20, "total": 20}},
        {"status": "Pull complete", "id": "b"},
        {"status": "Digest: sha256:00"},
    ):
        engine_images._note(layers, line)
    assert engine_images._sum("x", layers) == PullProgress("x", "pulling", 25, 30, 1, 2)
