from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ohsandbox.runtime.docker import labels
from ohsandbox.runtime.docker.config import container_config, selfcheck
from ohsandbox.runtime.docker.config.seccomp import profile_json
from ohsandbox.runtime.docker.mounts.bind_mounts import Bind
from ohsandbox.runtime.docker.mounts.mount_policy import Identity

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
        ("contained-open", {"network": "open", "network_owner": "0123456789ab"}),
        ("mapped", {"binds": (Bind("/work/project", "/workspace"),), "identity": Identity(1000, 1000, "me")}),
    ],
)
def test_the_create_call_is_exactly_the_golden_one(name: str, changes: dict[str, Any]) -> None:
    assert sent(**changes) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("changes", [{}, {"binds": (Bind("/w", "/workspace"),)}, {"network": "open"}])
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
    assert container_config.ContainerConfig(**PLAIN, binds=(Bind("/w", "/workspace"),)).capability_mask == "0" * 16


def test_an_architecture_without_our_filter_gets_the_engines() -> None:
    assert sent(architecture="s390x")["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


def test_a_full_tmpfs_must_leave_memory_to_commands() -> None:
    with pytest.raises(ValueError, match="half of memory_bytes"):
        container_config.SandboxLimits(memory_bytes=256 * container_config.MIB, shm_bytes=200 * container_config.MIB)
    assert container_config.SandboxLimits(memory_bytes=256 * container_config.MIB).shm == 32 * container_config.MIB


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


def test_the_self_check_compares_each_of_our_labels() -> None:
    config = container_config.ContainerConfig(**PLAIN)
    found: dict[str, Any] = {"Config": {"Labels": {labels.LABELS_LABEL: "tenant"}}}
    assert "label ohsandbox.labels is 'tenant', not ''" in [*selfcheck.added(found, config)]


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [("/w:/workspace:rprivate,bind,rw", True), ("/w:/workspace", True), ("/w:/workspace2", False), ("/:/host", False)],
)
def test_the_self_check_accepts_binds_only_of_mounts_that_were_sent(text: str, *, is_ours: bool) -> None:
    config = container_config.ContainerConfig(**PLAIN, binds=(Bind("/w", "/workspace"),))
    faults = [*selfcheck.added({"HostConfig": {"Binds": [text]}}, config)]
    assert (f"Binds has {text}, and that was not asked for" in faults) == (not is_ours)
