"""Profiles, GPUs, platforms and OCI runtimes: applied and seen from inside, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import ImageUnavailable, SandboxRefused, UsageError
from ohsandbox.runtime.docker.config.container_config import ALL_GPUS, ContainerConfig, SandboxLimits, create_payload
from ohsandbox.runtime.docker.config.options import validated_options
from ohsandbox.runtime.docker.config.selfcheck import added, verdict
from ohsandbox.runtime.docker.engine.error_mapping import API_RULES
from ohsandbox.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "ohsandbox-base:debian"
NO_GPU = (
    'could not select device driver "" with capabilities: [[gpu]]',
    (
        "failed to create shim: OCI runtime create failed: container_linux.go:380: starting container process caused: "
        "process_linux.go:545: container init caused: Running hook #0:: error running hook: exit status 1, stdout: , "
        "stderr: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"
    ),
    "failed to discover GPU vendor from CDI: no known GPU vendor found",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all",
)
"""What engines answer to the start of a container with GPUs: 19.03 to 28 without the toolkit (measured with 20.10.24);
with libnvidia-container 1.9.0 and no driver (NVIDIA/nvidia-docker#1629); moby at b985e23 without a CDI file
(daemon/devices_amd_linux.go; seen in ShaneIsrael/fireshare#689); the same with one that lacks the device."""


def config(**changes: Any) -> ContainerConfig:
    return ContainerConfig.model_validate({"name": "n", "image": "i", "workdir": "/", "user": "0"} | changes)


def facts(made: ContainerConfig, **changes: str) -> dict[str, str]:
    """What scripts/selfcheck.sh prints in a sandbox that is as asked."""
    found = {"Uid": "0", "CapBnd": made.capability_mask, "CapEff": made.capability_mask, "NoNewPrivs": "1"}
    found |= {"Seccomp": "2", "interfaces": "lo", "memory": "1", "pids": "1", "cpu": "1,1000000", "fsize": "1,1"}
    found |= {"nofile": "1", "ro/proc/sys": "1", "ro/sys": "1", "kernel": "6.1.0", "gpus": "0"}
    return found | dict.fromkeys(made.tmpfs, "tmpfs,/") | changes


GPU_MOUNTS = dict.fromkeys(
    ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
     "/dev/nvidia-caps/nvidia-cap1", "/usr/bin/nvidia-smi", "/usr/bin/nv-fabricmanager",
     "/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket",
     "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", "/usr/lib64/libcudadebugger.so.550.54.15",
     "/usr/lib/x86_64-linux-gnu/libnvcuvid.so.550.54.15", "/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin",
     "/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.550.54.15", "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
     "/usr/lib/x86_64-linux-gnu/nvidia/xorg/libglxserver_nvidia.so.550.54.15", "/usr/share/nvidia/nvoptix.bin",
     "/usr/share/X11/xorg.conf.d/10-nvidia.conf", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
     "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"),
    "ext4,/somewhere",
)  # fmt: skip
"""By the lists in the sources that `selfcheck._GPU_MOUNT` names, with a driver of the 550 series."""


@pytest.mark.parametrize(
    ("made", "seen", "why"),
    [
        ({"gpus": ALL_GPUS}, {"gpus": "2"} | GPU_MOUNTS, None),
        ({"gpus": 1}, {"gpus": "1"} | GPU_MOUNTS, None),
        ({"gpus": 1}, {}, "it has 0 GPUs, and 1 were asked for"),
        ({"gpus": ALL_GPUS}, {}, "it has 0 GPUs, and all were asked for"),
        ({}, {"gpus": "1"} | GPU_MOUNTS, "/dev/nvidia0 is a mount that was not asked for"),
        ({}, {"gpus": "1"}, "it has 1 GPUs, and 0 were asked for"),
        ({"gpus": 1}, {"gpus": "1", "/tmp/nvidia-mps": "ext4,/"}, "/tmp/nvidia-mps is a mount that was not asked for"),
        ({"gpus": 1}, {"gpus": "1", "/etc/shadow": "ext4,/"}, "/etc/shadow is a mount that was not asked for"),
        ({"hardening": "strict", "user": "1000"}, {"Uid": "1000", "ro/": "1"}, None),
        ({"hardening": "strict", "user": "1000"}, {"Uid": "1000"}, "its root file system is not read-only"),
        ({"hardening": "strict", "user": "app"}, {"ro/": "1"}, "user 'app' is root"),
        ({"hardening": "strict", "user": "1000"}, {"Uid": "1000", "ro/": "1", "/tmp": "ext4,/"}, "/tmp is not a tmpfs"),
        ({"hardening": "trusted"}, {"NoNewPrivs": "0"}, None),
        ({"hardening": "trusted"}, {}, "NoNewPrivs is '1', not '0'"),
        ({"runtime": "crun", "engine_kernel": "6.1.0"}, {"Seccomp": "0"}, "Seccomp is '0', not '2'"),
        ({"runtime": "runsc", "own_kernel": True, "engine_kernel": "6.1.0"}, {}, "gave it no kernel of its own"),
        ({"runtime": "runsc", "own_kernel": True, "engine_kernel": "6.1.0"}, {"kernel": "4.4.0"}, None),
        (
            {"runtime": "runsc", "own_kernel": True, "engine_kernel": "6.1.0"},
            {"kernel": "4.4.0", "Seccomp": "0"},
            "limits are not in force (the disk's floor)",
        ),
        (
            {"runtime": "runsc", "own_kernel": True, "engine_kernel": "6.1.0", "limits": SandboxLimits(free_bytes=0)},
            {"kernel": "4.4.0", "Seccomp": "0"},
            None,
        ),
    ],
)
def test_what_is_not_seen_from_inside_is_refused(made: dict[str, Any], seen: dict[str, str], why: str | None) -> None:
    wanted = config(**made)
    found = verdict(facts(wanted, **seen), wanted)
    assert found is None if why is None else why in str(found)


def test_the_memory_of_the_whole_machine_is_no_limit() -> None:
    """gVisor without control groups on a machine smaller than the limit."""
    own = {"runtime": "runsc", "own_kernel": True, "engine_kernel": "6.1.0", "engine_memory_bytes": 2**31}
    wanted = config(**own, limits=SandboxLimits(memory_bytes=2**32))
    shown = facts(wanted, kernel="4.4.0", MemTotal=str(2**21))
    for name in ("memory", "pids", "cpu"):
        del shown[name]
    assert "limits are not in force (memory, processes, processors)" in str(verdict(shown, wanted))


def test_the_engines_word_on_gpus_is_compared() -> None:
    wanted = config(gpus=2)
    host = create_payload(wanted)["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "", "Count": 2, "Capabilities": [["gpu"]], "Options": {}}]
    assert not [one for one in added({"HostConfig": host}, wanted) if "DeviceRequests" in one]
    [told] = [one for one in added({"HostConfig": host | {"DeviceRequests": None}}, wanted) if "DeviceRequests" in one]
    assert "2 GPUs were asked for" in told
    for answer in NO_GPU:
        rule = next(rule for rule in API_RULES if rule.pattern.search(answer))
        assert (rule.kind, "Container Toolkit" in rule.remedy) == (UsageError, True)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"profile": "strict", "user": "root"}, "profile='strict' and user='root'"),
        ({"profile": "strict", "gpus": 1}, "profile='strict' and gpus="),
        ({"platform": "windows/amd64"}, "Invalid platform"),
        ({"gpus": 0}, "gpus"),
    ],
)
def test_what_contradicts_itself_is_refused_without_an_engine(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        validated_options(**asked)


def test_trusted_binds_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rights on this machine .* Work on a copy"):
        DockerRuntime(IMAGE, workspace=tmp_path, profile="trusted")


@pytest.mark.docker
def test_strict_and_trusted_are_what_they_say() -> None:
    with DockerRuntime(IMAGE, profile="strict", platform="amd64") as strict:
        told = strict.run(["sh", "-c", "touch /x /etc/x /usr/x 2>&1; touch a ~/b /tmp/c && id -u"]).stdout.decode()
        assert (told.count("Read-only") + told.count("denied"), told.endswith("\n1000\n")) == (3, True)
        assert not strict.keeps_checkpoints
        root = strict.run(["sh", "-c", "id -u; touch /etc/x; chown 1 /tmp"], user="root")
        assert (root.stdout, root.stderr.count(b"\n")) == (b"0\n", 2)
    with DockerRuntime(IMAGE, profile="trusted") as trusted:
        make = "cp /usr/bin/id /usr/bin/rid && chmod 4755 /usr/bin/rid"
        assert trusted.run(["sh", "-c", make]).exit_code == 0
        assert trusted.run(["/usr/bin/rid", "-u"], user=1000).stdout == b"0\n"
        [warning] = trusted.workspace_notes
        assert "--profile trusted" in warning


@pytest.mark.docker
def test_what_this_engine_lacks_is_told_in_one_line() -> None:
    lacks: list[tuple[dict[str, Any], Any, str]] = [
        ({"gpus": "all"}, UsageError, "Container Toolkit"),
        ({"runtime": "no-such"}, UsageError, "has no OCI runtime 'no-such'; it has: "),
        ({"platform": "linux/s390x"}, (ImageUnavailable, SandboxRefused), "(Name|Use|Check) "),
    ]
    for options, kind, why in lacks:
        with pytest.raises(kind, match=why) as refused:
            DockerRuntime(IMAGE, **options).start()
        assert "\n" not in str(refused.value)


@pytest.mark.docker
def test_who_accepts_limits_that_may_not_hold_is_told() -> None:
    with DockerRuntime(IMAGE, limits=SandboxLimits(enforced=False)) as runtime:
        [told] = runtime.workspace_notes
        assert told.startswith("--accept-unenforced: limits on memory, processes, processors and disks may not hold")
        assert "not enforced here" not in runtime.describe()  # this engine does enforce them
