from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker import container_config, resolve
from ohsandbox.runtime.docker.runtime import DockerRuntime
from ohsandbox.runtime.docker.seccomp import profile_json

GOLDEN = Path(__file__).parent / "golden"
PLAIN: dict[str, Any] = {"name": "sandbox-1", "image": "sha256:" + "0" * 64, "workdir": "/workspace"}


def sent(**changes: Any) -> dict[str, Any]:
    """The create call's body; the system-call filter is only named, its own test holds it."""
    payload = container_config.create_payload(container_config.ContainerConfig(**PLAIN | changes))
    options = payload["HostConfig"]["SecurityOpt"]
    payload["HostConfig"]["SecurityOpt"] = [option if len(option) < 100 else option[:8] + "..." for option in options]
    return payload


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("contained", {"env": {"TERM": "dumb"}, "unset": ("LD_PRELOAD",), "labels": {"ohsandbox": "1"}}),
        ("contained-open", {"network": "open"}),
        ("mapped", {"profile": "mapped", "workspace": "/work/project", "gid": 1000}),
    ],
)
def test_the_create_call_is_exactly_the_golden_one(name: str, changes: dict[str, Any]) -> None:
    assert sent(**changes) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("changes", [{}, {"profile": "mapped", "workspace": "/w"}, {"network": "open"}])
def test_nothing_that_opens_the_host_is_ever_sent(changes: dict[str, Any]) -> None:
    config = sent(**changes)["HostConfig"]
    forbidden = {
        "Devices",
        "DeviceRequests",
        "PidMode",
        "UTSMode",
        "VolumesFrom",
        "PublishAllPorts",
        "GroupAdd",
        "Binds",
    }
    assert not forbidden & set(config)
    assert config["Privileged"] is False
    assert config["IpcMode"] == config["CgroupnsMode"] == "private"


def test_the_capability_mask_is_what_the_kernel_prints() -> None:
    assert container_config.ContainerConfig(**PLAIN).capability_mask == "00000000000000eb"
    assert container_config.ContainerConfig(**PLAIN, profile="mapped").capability_mask == "0" * 16


def test_an_architecture_without_our_filter_gets_the_engines() -> None:
    assert sent(architecture="s390x")["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


@pytest.mark.parametrize(
    "name",
    ["python:3.12", "ghcr.io/owner/name:tag", "localhost:5000/a/b", "a@sha256:" + "f" * 64, "a__b/c-d.e", "0" * 12],
)
def test_image_names_pass(name: str) -> None:
    assert container_config.image_name(name) == name


@pytest.mark.parametrize(
    "name", ["UPPER/x", "a b", "", "--help", "a" * 300, "../etc", "a:", "a\n", "http://a/b", "a//b"]
)
def test_a_bad_image_name_is_refused_without_an_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/never-asked.sock")
    with pytest.raises(UsageError, match="is not an image name"):
        DockerRuntime(name)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "-x"},
        {"name": "a/b"},
        {"attach": "a b"},
        {"workdir": "/proc/self/fd/8"},
        {"workdir": "relative"},
        {"workdir": "/a/../proc"},
        {"network": "host"},
        {"profile": "mapped"},
        {"ca_bundle": "/nonexistent.pem"},
        {"env": {"A": 1}},
        {"limits": {"memory_bytes": 1}},
    ],
)
def test_a_bad_argument_is_refused_without_an_engine(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DockerRuntime(**options)


@pytest.mark.parametrize(
    ("workdir", "sane"),
    [
        ("/app", "/app"),
        ("/app/./x//", "/app/x"),
        ("/proc/self/fd/8", None),
        ("/sys", None),
        ("/dev/shm", None),
        ("/process", "/process"),
        ("rel", None),
        ("", None),
        (None, None),
    ],
)
def test_a_workdir_in_a_kernel_file_system_is_not_sane(workdir: str | None, sane: str | None) -> None:
    assert container_config.sane_workdir(workdir) == sane


def test_hostile_variables_of_an_image_are_named() -> None:
    env = [
        "PATH=/bin",
        "LD_PRELOAD=/x.so",
        "BASH_FUNC_ls%%=() { :; }",
        "ENV=/x",
        "PS1=$(x)",
        "JAVA_HOME=/jdk",
        "LANG=C",
    ]
    assert container_config.hostile_names(env) == ("BASH_FUNC_ls%%", "ENV", "LD_PRELOAD", "PS1")


@pytest.mark.parametrize(
    ("image_env", "env"),
    [
        ([f"V{number}=x" for number in range(4000)], {f"W{number}": "x" for number in range(97)}),
        (["A=" + "é" * 130_000], {"B": "x" * 130_000, "C": "x" * 135_000}),
    ],
    ids=["number", "bytes"],
)
def test_an_environment_that_shells_cannot_carry_is_refused(image_env: list[str], env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"Image 'x' has .* environment variables of .* at most 4,096 of .* Remedy: "):
        container_config.check_environment(image_env, env, whose="Image 'x'")
    container_config.check_environment(image_env, dict.fromkeys([*env][1:], ""), whose="Image 'x'")


def test_a_full_tmpfs_must_leave_memory_to_commands() -> None:
    with pytest.raises(ValueError, match="half of memory_bytes"):
        container_config.Limits(memory_bytes=256 * container_config.MIB, shm_bytes=200 * container_config.MIB)
    assert container_config.Limits(memory_bytes=256 * container_config.MIB).shm == 32 * container_config.MIB


def test_root_by_any_name_is_root() -> None:
    assert all(resolve.is_root(user) for user in ("", "0", "root", "0:0", "root:staff", "0:1000"))
    assert not any(resolve.is_root(user) for user in ("1000", "app", "10", "rooty"))


def rules(forbidden_mode: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(profile_json(forbidden_mode))["syscalls"]
    return found


def allowed(forbidden_mode: int = 0) -> set[str]:
    free = [rule for rule in rules(forbidden_mode) if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule]
    return {name for rule in free for name in rule["names"]}


def test_the_filter_opens_neither_io_uring_nor_foreign_socket_families() -> None:
    assert not {"io_uring_setup", "mount", "unshare", "bpf", "keyctl", "userfaultfd", "clone", "socket"} & allowed()
    families = {rule["args"][0]["value"] for rule in rules() if rule["names"] == ["socket"]}
    assert families == {1, 2, 10, 16}


def test_in_a_mapped_sandbox_every_call_with_a_mode_looks_at_it() -> None:
    assert not {"chmod", "fchmod", "fchmodat", "open", "openat", "creat", "mknod", "mknodat", "openat2"} & allowed(
        0o4000
    )
    assert allowed() - allowed(0o4000) == {
        "chmod", "fchmod", "fchmodat", "open", "openat", "creat", "mknod", "mknodat", "openat2",
    }  # fmt: skip
