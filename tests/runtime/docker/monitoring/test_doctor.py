from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.runtime.docker.engine.connection import EngineAddress
from ohsandbox.runtime.docker.monitoring.doctor import check_engine, checks, runc_is_safe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("1.1.5+ds1", False),
        ("1.2.7", False),
        ("1.2.8", True),
        ("1.3.2", False),
        ("1.3.3", True),
        ("1.4.0-rc.3", True),
        ("1.5.1", True),
        ("2.0.0", True),
        ("unknown", False),
    ],
)
def test_the_first_fixed_runc_of_each_branch_is_known(version: str, safe: bool) -> None:  # noqa: FBT001
    assert runc_is_safe(version) is safe


def statuses(info: dict[str, Any], version: dict[str, Any], url: str = "ssh://box") -> dict[str, str]:
    engine: Any = SimpleNamespace(address=EngineAddress(url, None, "DOCKER_HOST"), api_version="1.45")
    return {check.name: check.status for check in check_engine(engine, info, version)}


def test_a_modern_rootless_engine_has_no_weak_point() -> None:
    info = {
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"], "CgroupVersion": "2",
        "CgroupDriver": "systemd", "Driver": "btrfs", "Runtimes": {"runc": {}, "runsc": {}}, "MemTotal": 2**35,
        "OSType": "linux", "Architecture": "x86_64",
    }  # fmt: skip
    version = {"Version": "29.5.1", "Components": [{"Name": "runc", "Version": "1.3.4"}]}
    assert set(statuses(info, version).values()) == {"ok"}


def test_weak_points_are_told() -> None:
    info = {"SecurityOptions": [], "CgroupDriver": "none", "Driver": "overlay2", "MemTotal": 2**30, "OSType": "windows"}
    version = {"Version": "20.10.24", "Components": [{"Name": "runc", "Version": "1.1.5"}]}
    found = statuses(info, version, "tcp://box:2375")
    assert {name for name, status in found.items() if status == "fail"} == {"seccomp", "platform"}
    weak = {"engine", "runc", "users", "cgroup", "storage", "socket", "memory"}
    assert {name for name, status in found.items() if status == "warn"} == weak


def test_without_an_engine_there_is_one_failed_check_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    (check,) = checks()
    assert (check.name, check.status) == ("engine", "fail")
    assert "--runtime cli" in check.remedy


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_a_real_engine_is_examined() -> None:
    names = [check.name for check in checks()]
    assert {"engine", "api", "runc", "seccomp", "cgroup", "storage", "runtimes", "socket"} <= set(names)


def test_the_engines_disk_is_told_where_it_is_on_this_machine(tmp_path: Path) -> None:
    info = {"DockerRootDir": str(tmp_path)}
    assert statuses(info, {}, "unix:///run/docker.sock")["disk"] in {"ok", "fail"}
    assert "disk" not in statuses(info, {}, "ssh://box")
    assert "disk" not in statuses({"DockerRootDir": "/nonexistent/docker"}, {}, "unix:///run/docker.sock")
