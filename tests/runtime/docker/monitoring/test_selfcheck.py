"""A sandbox that is weaker than asked is refused, whoever weakened it; judged through a proxy that changes fields."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import SandboxRefused, SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.config.container_config import SandboxLimits
from ohsandbox.runtime.docker.runtime import DockerRuntime
from tests.runtime.docker.lax import ENGINE, LaxProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.docker
IMAGE = "ohsandbox-base:debian"


@contextmanager
def behind(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], *, image: str = IMAGE, **options: Any
) -> Iterator[DockerRuntime]:
    """A runtime whose engine is reached through a proxy that makes the change."""
    with pytest.MonkeyPatch.context() as patch, LaxProxy(tmp_path / "s", change) as proxy:
        patch.setenv("DOCKER_HOST", proxy.host)
        runtime = DockerRuntime(image, **options)
        try:
            yield runtime.start()
        finally:
            runtime.close()


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    """Fields of HostConfig that the engine never sees."""

    def change(body: dict[str, Any]) -> None:
        for key in keys:
            body["HostConfig"].pop(key)

    return change


def having(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Fields of HostConfig that nobody asked for."""
    return lambda body: body["HostConfig"].update(fields)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without("NetworkMode"), "network is 'none', and it has the interface 'eth0'"),
        (without("Memory", "MemorySwap"), "limits are not in force (memory)"),
        (without("PidsLimit"), "limits are not in force (processes)"),
        (without("NanoCpus"), "limits are not in force (processors)"),
        (without("Ulimits"), "limits are not in force (a file's size)"),
        (without("CapDrop"), "CapBnd is "),
        (without("SecurityOpt"), "NoNewPrivs is '0'"),
        (having(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]), "Seccomp is '0'"),
        (having(SecurityOpt=["no-new-privileges"]), "SecurityOpt is ['no-new-privileges'], not"),
        (without("MaskedPaths"), "/proc/1/mem is not masked"),
        (having(MaskedPaths=[]), "/proc/keys is not masked"),
        (having(ReadonlyPaths=[]), "/proc/sys is not read-only"),
        pytest.param(
            having(PidMode="host"), "it sees the processes of the engine's machine", marks=pytest.mark.one_engine
        ),
        (having(IpcMode="host"), "IpcMode is 'host'"),
        (having(NetworkMode="host"), "network is 'none', and it has the interface"),
        (having(CgroupnsMode="host"), "CgroupnsMode is 'host'"),
        (having(Binds=["/tmp:/mnt"]), "/mnt is a mount that was not asked for"),
        (having(Binds=[f"{ENGINE}:/var/run/docker.sock"]), "docker.sock is reachable in it"),
        (having(Binds=["/proc:/hostproc"]), "/hostproc is a mount that was not asked for"),
        (having(Devices=[{"PathOnHost": "/dev/full", "PathInContainer": "/dev/x", "CgroupPermissions": "r"}]),
         "Devices is "),
        (having(GroupAdd=["7"]), "GroupAdd is "),
        (having(Sysctls={"net.ipv4.ip_forward": "1"}), "Sysctls is "),
        (having(RestartPolicy={"Name": "always"}), "it is started again by the engine (always)"),
        (without("Tmpfs"), "/run/ohs is not a tmpfs"),
        (without("LogConfig"), "its output is kept on the engine's disk (log driver 'json-file')"),
    ],
)  # fmt: skip
def test_what_a_lax_engine_drops_or_adds_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    with behind(tmp_path, change) as runtime:
        for _ in range(2):  # a refused sandbox stays refused
            with pytest.raises(SandboxUnavailable, match="not as strict as asked") as refused:
                runtime.execute("true")
            assert why in str(refused.value)
            assert "\n" not in str(refused.value)


def test_processors_that_are_not_pinned_are_refused(tmp_path: Path) -> None:
    pinned = SandboxLimits(cpus=0.5, cpuset="0")
    with behind(tmp_path, lambda _: None, limits=pinned) as runtime:
        assert runtime.execute("nproc").output == "1\n"
    (tmp_path / "s").unlink()
    with (
        behind(tmp_path, without("CpusetCpus"), limits=pinned) as runtime,
        pytest.raises(SandboxRefused, match=r"limits are not in force \(cpuset\)"),
    ):
        runtime.execute("true")


def test_an_unchanged_sandbox_is_taken(tmp_path: Path) -> None:
    with behind(tmp_path, lambda _: None) as runtime:
        assert runtime.execute("true").exit_code == 0
        assert "not enforced here" not in runtime.describe()


@pytest.mark.parametrize("image", ["ohsandbox-base:busybox", "ohsandbox-base:nonroot"])
def test_other_shells_and_users_see_the_same(tmp_path: Path, image: str) -> None:
    with (
        behind(tmp_path, without("NetworkMode"), image=image) as runtime,
        pytest.raises(SandboxUnavailable, match="interface 'eth0'"),
    ):
        runtime.run(["true"])
    (tmp_path / "s").unlink()
    with behind(tmp_path, lambda _: None, image=image) as runtime:
        assert runtime.run(["true"]).exit_code == 0


def test_limits_that_are_not_in_force_are_taken_only_when_accepted_and_then_told(tmp_path: Path) -> None:
    change = without("Memory", "MemorySwap", "PidsLimit")
    with behind(tmp_path, change, limits=SandboxLimits(enforced=False)) as runtime:
        assert runtime.run(["true"]).exit_code == 0
        assert runtime.describe()["not enforced here"] == "memory, processes"


def test_a_mapped_sandbox_has_its_workspace_and_nothing_else_of_the_host(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with behind(tmp_path, lambda _: None, workspace=work) as runtime:
        assert runtime.run(["true"]).exit_code == 0
    (tmp_path / "s").unlink()
    with (
        behind(tmp_path, without("Mounts"), workspace=work) as runtime,
        pytest.raises(SandboxUnavailable, match="/workspace is not mounted"),
    ):
        runtime.run(["true"])
    (tmp_path / "s").unlink()
    with (
        behind(tmp_path, having(Binds=["/usr/share:/opt/more"]), workspace=work) as runtime,
        pytest.raises(SandboxUnavailable, match="/opt/more is a mount that was not asked for"),
    ):
        runtime.run(["true"])


def test_a_container_that_vanishes_when_it_ends_is_refused(tmp_path: Path) -> None:
    with behind(tmp_path, having(AutoRemove=True)) as runtime:
        for _ in range(2):
            with pytest.raises(SandboxRefused, match="not as strict as asked"):
                runtime.execute("true")


def test_a_first_process_that_does_not_start_leaves_the_check_to_the_next(tmp_path: Path) -> None:
    with behind(tmp_path, having(NetworkMode="bridge")) as runtime:
        with pytest.raises(UsageError, match="over the limit of 128 KiB"):
            runtime.open_channel(["/bin/true", "x" * 200_000])
        with pytest.raises(SandboxRefused, match="not as strict as asked"):
            runtime.execute("true")


def test_a_refused_sandbox_is_refused_to_a_shell_as_well_and_not_restarted(tmp_path: Path) -> None:
    with behind(tmp_path, having(NetworkMode="bridge")) as runtime:
        for _ in range(2):
            with pytest.raises(SandboxRefused, match="not as strict as asked"):
                runtime.execute("true")
        assert runtime.take_notices() is None


def test_no_process_runs_beside_the_first_before_that_one_has_been_checked(tmp_path: Path) -> None:
    together = Barrier(8)

    def run(runtime: DockerRuntime) -> str:
        together.wait()
        try:
            return runtime.run(["pwd"]).stdout.decode()
        except SandboxRefused:
            return "refused"

    with ThreadPoolExecutor(8) as threads:
        with behind(tmp_path, without("NetworkMode")) as weaker:
            assert set(threads.map(run, [weaker] * 8)) == {"refused"}
        with DockerRuntime(IMAGE) as sandbox:
            assert set(threads.map(run, [sandbox] * 8)) == {"/workspace\n"}
