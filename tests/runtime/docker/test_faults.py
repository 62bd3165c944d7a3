"""Faults of the engine itself, on a second one of our own: the shared one is never touched."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import EngineUnavailable, SandboxUnavailable
from ohsandbox.runtime.docker import container
from ohsandbox.runtime.docker.engine.connection import Engine, connect
from ohsandbox.runtime.docker.inventory.docker_inventory import DockerInventory
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [
    # docker-py does not close a Unix socket whose connect failed
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.docker,
    pytest.mark.one_engine,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("dockerd"), reason="a second dockerd needs root and dockerd"
    ),
]


@pytest.fixture(autouse=True)
def _collect_here() -> Iterator[None]:
    """So that docker-py's leaked sockets warn in this file, where that is ignored."""
    yield
    gc.collect()


class PrivateEngine:
    """A dockerd in its own network and mount namespaces, that tests may kill."""

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self.directory, self._options = directory, options
        self.host = f"unix://{directory}/s"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        where = self.directory
        self._process = subprocess.Popen(
            ["unshare", "--net", "--mount", "dockerd", "--data-root", where / "data", "--exec-root", where / "exec",
             "-p", where / "pid", "-H", self.host, "--bridge=none", "--iptables=false", "--ip-masq=false",
             *self._options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                connect({"DOCKER_HOST": self.host}).close()
            except EngineUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@pytest.fixture(scope="module")
def private(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    found = PrivateEngine(tmp_path_factory.mktemp("dockerd"))
    found.start()
    own = connect({"DOCKER_HOST": found.host})
    own.api.load_image(b"".join(engine.api.get_image("ohsandbox-base:busybox")))
    own.close()
    yield found
    found.stop()


@pytest.fixture
def runtime(private: PrivateEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerRuntime]:
    monkeypatch.setenv("DOCKER_HOST", private.host)
    with DockerRuntime("ohsandbox-base:busybox") as started:
        yield started


@pytest.mark.slow
def test_an_engine_that_stops_in_mid_process_is_never_success_and_comes_back(
    private: PrivateEngine, runtime: DockerRuntime, sh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh(runtime, "echo kept >/root/file")
    channel = runtime.open_channel(["sh", "-c", "echo partial; sleep 100"])
    assert channel.read(60)
    private.stop()
    assert channel.read(60) == []
    with pytest.raises(EngineUnavailable):
        channel.wait(60)
    channel.close()
    monkeypatch.setattr(container, "RECONNECT_S", 0.5)
    with pytest.raises(EngineUnavailable):
        runtime._revive()
    private.start()
    assert "was started again: files are kept" in runtime._revive()
    assert sh(runtime, "cat /root/file").out == "kept\n"


@pytest.mark.slow
def test_a_frozen_engine_is_waited_for_and_nothing_runs_twice(
    private: PrivateEngine, runtime: DockerRuntime, sh: Any
) -> None:
    private.signal(signal.SIGSTOP)
    thaw = threading.Timer(3, private.signal, [signal.SIGCONT])
    thaw.start()
    assert sh(runtime, "echo once >>/root/count").code == 0
    thaw.join()
    assert sh(runtime, "cat /root/count").out == "once\n"


@pytest.mark.slow
def test_closing_without_an_engine_leaves_the_container_to_gc(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOCKER_HOST", private.host)
    runtime = DockerRuntime("ohsandbox-base:busybox").start()
    name = runtime.name
    private.stop()
    runtime.close()
    assert "ohsandbox gc" in caplog.text
    private.start()
    with DockerInventory() as inventory:
        assert [done.name for done in inventory.collect_garbage()] == [name]


def test_a_lost_engine_is_told_by_the_loss(private: PrivateEngine, runtime: DockerRuntime) -> None:
    private.stop()
    try:
        assert isinstance(runtime._loss(), SandboxUnavailable)
        assert not runtime.is_alive()
    finally:
        private.start()
