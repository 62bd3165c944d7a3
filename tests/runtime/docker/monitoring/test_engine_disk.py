"""An engine of our own on a small disk: a sandbox cannot fill it, and gVisor is held to its limits."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.runtime import disk_space
from ohsandbox.runtime.docker.config.container_config import MIB, SandboxLimits
from ohsandbox.runtime.docker.engine.connection import connect
from ohsandbox.runtime.docker.monitoring import disk
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.service_options import Service
from tests.runtime.docker.test_faults import PrivateEngine
from tests.runtime.engines import RUNSC, with_runsc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

HANG_S = 240.0
"""Generous, as in test_disk.py: the test of inodes takes 41 s alone, its engine included."""
IMAGE = "ohsandbox-base:busybox"
pytestmark = [
    pytest.mark.docker,
    pytest.mark.one_engine,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("dockerd") or not shutil.which("mkfs.ext4"),
        reason="an engine on a disk of its own needs root, dockerd and mkfs.ext4",
    ),
]


@pytest.fixture(scope="module")
def private(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    """Its data lie on an ext4 file system of 1 GiB."""
    directory = tmp_path_factory.mktemp("small")
    data = directory / "data"
    data.mkdir()
    with (directory / "disk.img").open("wb") as backing:
        backing.truncate(1024 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m0", "-N", "400000", directory / "disk.img"], check=True)
    subprocess.run(["mount", "-o", "loop", directory / "disk.img", data], check=True)
    found = PrivateEngine(directory, with_runsc(directory))
    try:
        found.start()
        own = connect({"DOCKER_HOST": found.host})
        own.api.load_image(b"".join(engine.api.get_image(IMAGE)))
        own.close()
        yield found
    finally:
        found.stop()
        subprocess.run(["umount", "-l", data], check=True)


@pytest.fixture(autouse=True)
def _here(private: PrivateEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", private.host)


def test_a_sandbox_does_not_fill_the_engines_disk(private: PrivateEngine) -> None:
    with DockerRuntime(IMAGE, limits=SandboxLimits(free_bytes=300 * MIB)) as writer, DockerRuntime(IMAGE) as other:
        other.execute("X=kept")
        told = writer.execute("yes >/big", timeout_s=HANG_S)
        assert told.exit_code == 137
        assert "The engine's disk has " in str(told.notice)
        assert "yes (" in str(told.notice)
        assert disk_space.measure(private.directory / "data").free_bytes > 50 * MIB
        assert other.execute("echo $X").output == "kept\n"
        assert writer.execute("rm /big && echo freed").output == "freed\n"


@pytest.mark.slow
def test_a_sandbox_whose_engine_is_asked_from_inside_is_stopped_too(private: PrivateEngine) -> None:
    """As where the engine is on another machine."""
    with DockerRuntime(IMAGE, limits=SandboxLimits(free_bytes=0)) as runtime:
        runtime.execute("yes >/big &")
        [place] = disk.writable_file_systems(runtime._require_sandbox().container.engine, {}, {}, (), runtime)
        watch = disk.DiskMonitor([place], runtime, least=400 * MIB)
        watch.start()
        deadline = time.monotonic() + HANG_S
        while "killed" not in str(runtime.execute("sleep 0.2").notice):
            assert time.monotonic() < deadline
        watch.stop()
    assert disk_space.measure(private.directory / "data").free_bytes > 50 * MIB


FLOOR = SandboxLimits(free_bytes=300 * MIB)
PORT = 7000


NAMES = (
    "mkdir /d; while [ $((i=i+1)) -lt 1000 ]; do : >/d/$(printf %0250d $i); done; "
    "while :; do cp -rl /d /d$((i=i+1)); done"
)
"""Makes hard links: 260 kB of directory for one inode."""


def writer(name: str, then: str, **options: Any) -> Service:
    """A service that writes once somebody has connected to it."""
    script = f"nc -l -p {PORT} </dev/null >/dev/null; {then}; exec sleep 1000"
    return Service(name, image=IMAGE, command=["sh", "-c", script], ports=PORT, **options)


def notices_until(runtime: DockerRuntime, words: str) -> str:
    notices, deadline = "", time.monotonic() + HANG_S
    while words not in notices:
        notices += str(runtime.execute("sleep 0.2").notice)
        assert time.monotonic() < deadline, notices
    return notices


@pytest.mark.slow
@pytest.mark.parametrize(
    "service",
    [
        writer("store", "yes >/data/big", volumes=("/data",)),
        writer("store", "while :; do dd if=/dev/zero of=/big$((i=i+1)) bs=1M count=8 2>/dev/null; done"),
        writer("store", "mkdir /d; while :; do : >/d/$((i=i+1)); done"),
        writer("store", NAMES),
    ],
    ids=["volume", "layer", "inodes", "names"],
)
def test_a_service_that_fills_the_engines_disk_is_stopped_and_named_in_the_next_result(
    private: PrivateEngine, service: Service
) -> None:
    quiet = Service("quiet", image=IMAGE, command=["sleep", "1000"], ports=())
    floor = disk_space.measure(private.directory / "data").free_bytes - 50 * MIB
    with DockerRuntime(IMAGE, limits=SandboxLimits(free_bytes=floor), services=[service, quiet]) as runtime:
        runtime.execute(f"X=kept; nc 127.0.0.1 {PORT} </dev/null")
        notices = notices_until(runtime, "was stopped")
        assert "service 'store' wrote to it and was stopped" in notices
        assert "'quiet'" not in notices
        space = disk_space.measure(private.directory / "data")
        assert space.free_bytes > 50 * MIB
        assert space.free_files > 100
        assert runtime.execute("echo $X").output == "kept\n"
        api = runtime._require_sandbox().container.engine.api
        deadline = time.monotonic() + HANG_S
        while api.inspect_container(f"{runtime.name}-store")["State"]["Running"]:  # it is named before it is stopped
            assert time.monotonic() < deadline
        assert api.inspect_container(f"{runtime.name}-quiet")["State"]["Running"]
        assert runtime._require_sandbox().pod.ended() == []  # type: ignore[union-attr]  # it is not started again


@pytest.mark.slow
def test_a_service_that_fills_the_disk_at_once_is_stopped_and_the_sandbox_serves(private: PrivateEngine) -> None:
    flood = Service("flood", image=IMAGE, command=["sh", "-c", "yes >/big"], ports=PORT)
    with DockerRuntime(IMAGE, limits=FLOOR, services=[flood]) as runtime:
        told = runtime.execute("echo works")
        assert told.output == "works\n"
        assert "service 'flood' wrote to it and was stopped" in str(told.notice)
        assert disk_space.measure(private.directory / "data").free_bytes > 50 * MIB


@pytest.mark.slow
def test_a_service_whose_image_has_no_shell_is_stopped_too(private: PrivateEngine) -> None:
    with DockerRuntime(IMAGE) as runtime:
        program = runtime.read_bytes("/bin/busybox")
        api = runtime._require_sandbox().container.engine.api
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo("dd")
            entry.size, entry.mode = len(program), 0o755
            archive.addfile(entry, io.BytesIO(program))
        api.import_image_from_data(packed.getvalue(), repository="no-shell", tag="1", changes=["USER 0"])
    words = ["/dd", "if=/dev/zero", "of=/big", "bs=512"]
    flood = Service("flood", image="no-shell:1", command=words, ports=(), healthcheck=())
    with DockerRuntime(IMAGE, limits=FLOOR, services=[flood]) as runtime:
        assert "service 'flood' wrote to it and was stopped" in notices_until(runtime, "was stopped")
        assert disk_space.measure(private.directory / "data").free_bytes > 50 * MIB


@pytest.mark.skipif(RUNSC is None, reason="no runsc; OHSANDBOX_TEST_RUNSC names one")
def test_gvisor_without_control_groups_is_refused_unless_that_is_accepted() -> None:
    refusal = pytest.raises(
        SandboxUnavailable, match=r"not in force \(memory, processes, processors, the disk's floor\)"
    )
    with DockerRuntime(IMAGE, runtime="runsc") as refused, refusal:
        refused.run(["true"])
    with DockerRuntime(IMAGE, runtime="runsc", limits=SandboxLimits(enforced=False)) as accepted:
        assert b"gVisor" in accepted.run(["dmesg"]).stdout
        assert accepted.describe()["not enforced here"] == "memory, processes, processors, the disk's floor"
        assert accepted.run(["sh", "-c", "cat /proc/net/dev | grep -c :"]).stdout == b"1\n"


@pytest.mark.skipif(RUNSC is None, reason="no runsc; OHSANDBOX_TEST_RUNSC names one")
def test_a_shell_and_directories_work_under_gvisor() -> None:
    """Its terminals have no name inside, and are no controlling terminals."""
    with DockerRuntime(IMAGE, runtime="runsc", limits=SandboxLimits(enforced=False)) as runtime:
        runtime.execute("cd /tmp; X=kept; : > here; sleep 1000 &")
        result = runtime.execute("kill $!; echo $X $PWD; test -t 0 && test -t 1 && (exit 7)")
        assert (result.output, result.exit_code) == ("kept /tmp\n", 7)
        assert runtime.execute("sleep 1000", timeout_s=1).timed_out
        for command in ("sleep 1000", "while :; do sleep 0.1; done", "cat"):
            assert runtime.execute(command, yield_s=0.5).running
            assert runtime.execute("C-c", is_input=True, timeout_s=HANG_S).exit_code == 130
        shown = runtime.execute("echo $X")
        assert (shown.output, shown.background_output) == ("kept\n", "")
        assert [entry.name for entry in runtime.list_dir("/tmp")] == ["here"]
