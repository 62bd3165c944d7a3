"""The configuration of a sandbox's container, as an allowlist: only fields that are written here are sent.

`ContainerConfig` holds the resolved facts, `create_payload` turns them into the body of the engine's create call. It
cannot express a privileged container, a device other than a GPU, a host namespace or a mount that was not vetted.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import UsageError
from ohsandbox.limit_ranges import (
    CPUS,
    DEFAULT_CPUS,
    DEFAULT_MEMORY_BYTES,
    DEFAULT_PIDS,
    DISK_BYTES,
    MEMORY_BYTES,
    PIDS,
)
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.runtime.docker.config.seccomp import ARCHITECTURES, SETGID_BIT, SETUID_BIT, profile_json
from ohsandbox.runtime.docker.labels import complete
from ohsandbox.runtime.docker.mounts.bind_mounts import Bind  # noqa: TC001 - pydantic reads annotations at run time
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.runtime.docker.mounts.mount_policy import Identity  # noqa: TC001 - as above
from ohsandbox.runtime.mount_text import WORKSPACE
from ohsandbox.runtime.runtime_settings import NetworkMode  # noqa: TC001 - as above

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine.connection import Engine

Hardening = Literal["strict", "trusted"]
"""`strict`: the root file system is read-only, no process has a capability or is root. `trusted`: setuid programs work,
root has the engine's default capabilities."""

GIB = 1024**3
MIB = 1024**2
PRIVATE_DIR = "/run/ohs"
"""Our tmpfs, mode 1777: each user has a directory with mode 0700 in it."""
CONNECTOR_DIR = "/run/ohs-net"
"""A tmpfs owned by root for the program that carries connections. No checkpoint includes it, and it is there even
if the root file system is read-only."""
_CONNECTOR_TMPFS = "rw,nosuid,nodev,exec,size=1m,mode=0755"
TRUST_DIR = "/usr/local/share/ohsandbox"
"""Directory of certificates that the sandbox trusts; with a read-only root file system, a tmpfs owned by root."""
MAPPED_HOME = "/home/ohsandbox"
"""Home directory in the container's own layer, not on a tmpfs: there the caches of pip and npm would count as memory,
and our tmpfs is noexec."""
_STRICT_WRITABLE = ("/tmp", "/var/tmp", MAPPED_HOME)  # noqa: S108 - in the container
_STRICT_SHARE = 10
"""Each tmpfs of `strict` has the size of the memory divided by this. Four of them, /dev/shm and our own tmpfs leave a
third of the memory to processes."""
ALL_GPUS = -1
"""The value with which the engine's API requests all GPUs."""
CONNECTOR_UID = "65534"
"""The connector runs as nobody and without capabilities, so that of all users only root can kill it."""

PID_1 = "trap '' HUP INT QUIT TERM USR1 USR2 PIPE ALRM; while :; do sleep 3600 & wait $!; done"
"""Survives `kill -9 -1` from inside and reaps orphans; tini with sleep does neither."""
_MAPPED_PID_1 = f"trap 'exit 143' TERM; {PID_1.replace(' TERM', '')}"
"""Ends on SIGTERM, for monitors.OwnerWatchdog; an agent that runs as an ordinary user cannot send it that signal."""

CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""The minimum for apt, useradd, `su` and killing another user's process, with the numbers of linux/capability.h."""
_TRUSTED_CAPABILITIES = CAPABILITIES | {
    "FSETID": 4, "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
"""The engine's default without MKNOD and NET_RAW. With NET_RAW a process could write packet headers that are routed by
one address and delivered to another, which bypasses the rules of the open network."""

_ENGINE_MASKED_PATHS = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
"""The default masked paths of engine 28, which our list replaces; runc skips paths that do not exist. We add the memory
of PID 1, which root could write; the seccomp filter forbids tracing PID 1 (seccomp.py)."""
_ENGINE_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""The default read-only paths of engines, which our list replaces. We add one: under cgroup v1 the parent of the
hierarchies is a tmpfs of half the machine's memory. There root could fill all memory of the sandbox with data that no
kernel can reclaim, so that no process could start any more."""


class SandboxLimits(ConfigModel):
    """Resource limits of a sandbox. The engine enforces all except free_bytes.

    Those of memory, processors, processes, open files and file size are verified from inside.
    """

    memory_bytes: int = Field(default=DEFAULT_MEMORY_BYTES, ge=MEMORY_BYTES.least)
    """Memory plus swap in bytes. The default suffices for a compiler, and is a quarter of a small laptop's 8 GiB."""
    cpus: float | None = Field(default=None, ge=CPUS.least)
    """Number of processors. None: two, or as many as the engine's machine has."""
    cpuset: str | None = Field(default=None, pattern=r"^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$")
    """The processors of the engine's machine on which the sandbox's processes run, such as '0,2-3'. None: any."""
    pids: int = Field(default=DEFAULT_PIDS, ge=PIDS.least)
    """Number of processes and threads. A build with 16 jobs used 90; a fork bomb fails at once."""
    disk_bytes: int | None = Field(default=None, ge=DISK_BYTES.least)
    """Growth of the root file system in bytes, if the engine's storage can limit it (xfs with pquota, btrfs); else
    refused.
    """
    shm_bytes: int | None = Field(default=None, ge=MIB)
    """Size of /dev/shm in bytes. None: 256 MiB, or an eighth of the memory if that is less."""
    open_files: int | None = Field(default=None, ge=256)
    """Hard RLIMIT_NOFILE; the soft limit is at most 4096. None: 65536, or the maximum that the engine may set."""

    file_bytes: int | None = Field(default=16 * GIB, ge=16 * MIB)
    """RLIMIT_FSIZE: maximum size of one file on any file system; a process that writes more is killed by SIGXFSZ.
    Half-precision weights of 7 billion parameters are 14 GB in one file. None: no limit."""
    free_bytes: int | None = Field(default=None, ge=0)
    """Minimum free space on the engine's disk and on the workspace's; see `disk`. None: 2 GiB, or a tenth of a disk
    smaller than 20 GiB. 0: the disk is not monitored."""
    enforced: bool = True
    """Refuse an engine that does not enforce these limits. False accepts it; `describe` lists the limits not in force.
    """

    @property
    def shm(self) -> int:
        """Size of /dev/shm in bytes."""
        return self.shm_bytes or min(256 * MIB, self.memory_bytes // 8)

    @property
    def private_bytes(self) -> int:
        """Size of our own tmpfs in bytes."""
        return min(64 * MIB, self.memory_bytes // 8)

    @model_validator(mode="after")
    def _tmpfs_leaves_room(self) -> SandboxLimits:
        if self.shm + self.private_bytes > self.memory_bytes // 2:
            raise ValueError(
                "shm_bytes is over half of memory_bytes: a full tmpfs would leave no memory to any command"
            )
        return self


class ContainerConfig(BaseModel):
    """The resolved configuration: all values that determine the container and the user of its processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: str
    workdir: str
    user: str = ""
    """Default user of an exec."""
    env: dict[str, str] = {}
    """Environment variables that ohsandbox and the caller set."""
    unset: tuple[str, ...] = ()
    """Variables of the image that are removed."""
    network: NetworkMode = "none"
    network_owner: str = ""
    """Id of the container whose network namespace it joins; empty: a namespace of its own, without an interface."""
    limits: SandboxLimits = SandboxLimits()
    cpus: float = DEFAULT_CPUS
    """Number of processors, resolved: at most the engine's."""
    open_files: int | None = 65536
    """RLIMIT_NOFILE, resolved: an engine without CAP_SYS_RESOURCE cannot exceed its own limit. None: the engine's
    limit.
    """
    binds: tuple[Bind, ...] = ()
    """Vetted files and directories of the host that are bound, the workspaces first."""
    identity: Identity | None = None
    """If a bind is writable: the user who needs a passwd entry and a home."""
    architecture: str = "amd64"
    """Architecture of the image."""
    runtime: str = ""
    """OCI runtime of the engine; empty: its default."""
    own_kernel: bool = False
    """Whether the OCI runtime gives the sandbox a kernel of its own, as gVisor and Kata do."""
    engine_kernel: str = ""
    """If an OCI runtime is named: the release of the engine's kernel."""
    engine_memory_bytes: int = 0
    """If an OCI runtime is named: the memory of the engine's machine."""
    hardening: Hardening | None = None
    gpus: int = 0
    """Number of GPUs; ALL_GPUS requests all of them."""
    cache_volume: str = ""
    """Name of the volume at CACHE_DIR; empty: none."""
    labels: dict[str, str] = {}

    @property
    def is_mapped(self) -> bool:
        """Whether the sandbox can write files of the host; its processes then have no capability."""
        return any(not bind.read_only for bind in self.binds)

    @property
    def capabilities(self) -> dict[str, int]:
        """Capabilities of uid 0, with their numbers; empty for `strict`, or if a directory of the host is writable."""
        if self.is_mapped or self.hardening == "strict":
            return {}
        return _TRUSTED_CAPABILITIES if self.hardening == "trusted" else CAPABILITIES

    @property
    def capability_mask(self) -> str:
        """Capability mask of uid 0, in the format of /proc/PID/status."""
        return f"{sum(1 << bit for bit in self.capabilities.values()):016x}"

    @property
    def tmpfs(self) -> dict[str, str]:
        """The options of each tmpfs, by its mount point."""
        limits = self.limits
        mounts = {
            PRIVATE_DIR: f"rw,nosuid,nodev,noexec,size={limits.private_bytes},mode=1777",
            CONNECTOR_DIR: _CONNECTOR_TMPFS,
        }
        if self.hardening == "strict":
            places = (
                *_STRICT_WRITABLE,
                *(() if any(bind.target == WORKSPACE for bind in self.binds) else (WORKSPACE,)),
            )
            size = limits.memory_bytes // _STRICT_SHARE
            mounts |= dict.fromkeys(places, f"rw,nosuid,nodev,exec,size={size},mode=1777")
            mounts[TRUST_DIR] = "rw,nosuid,nodev,noexec,size=4m,mode=0755"
        return mounts

    @property
    def security_options(self) -> list[str]:
        """SecurityOpt, with our seccomp filter if there is one for the architecture."""
        first = [] if self.hardening == "trusted" else ["no-new-privileges"]
        if self.architecture not in ARCHITECTURES:
            return first
        # who runs a setgid file gets its group: with umask 002, as distributions set it, the right to write its files
        forbidden = SETUID_BIT | (0 if self.identity and self.identity.may_setgid else SETGID_BIT)
        return [*first, f"seccomp={profile_json(forbidden if self.is_mapped else 0)}"]


def create_payload(config: ContainerConfig) -> dict[str, Any]:
    """Return the body of POST /containers/create.

    PID 1 and the configured user are uid 0: with no-new-privileges, an exec as root in a container *configured* for
    another user has no capability (CapEff 0, measured). Each exec sets the user of the agent's processes.
    """
    named = {} if config.network_owner else {"Hostname": "sandbox"}  # the owner of a joined namespace has the host name
    return named | {
        "Image": config.image,
        "Entrypoint": ["/bin/sh", "-c", _MAPPED_PID_1 if config.is_mapped else PID_1],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",  # the OCI runtime enters it at each start, also after an agent changed the files
        "Env": [f"{name}={value}" for name, value in sorted(config.env.items())] + sorted(config.unset),
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "Tty": False,
        "OpenStdin": False,
        "Labels": complete(config.labels),
        "HostConfig": host_config(config),
    }


def host_config(config: ContainerConfig) -> dict[str, Any]:
    """Return the HostConfig part. AutoRemove stays false: the files of a killed container must outlive it."""
    limits = config.limits
    host: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "CapAdd": list(config.capabilities),
        "SecurityOpt": config.security_options,
        "Privileged": False,
        "PidsLimit": limits.pids,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": round(config.cpus * 1_000_000_000),
        "OomScoreAdj": 500,
        "ShmSize": limits.shm,
        "Ulimits": [
            {"Name": name, "Soft": soft, "Hard": hard}
            for name, soft, hard in (
                ("nofile", min(4096, config.open_files or 0), config.open_files),
                ("core", 0, 0),
                ("fsize", limits.file_bytes, limits.file_bytes),
            )
            if hard is not None
        ],
        "LogConfig": {"Type": "none"},
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": f"container:{config.network_owner}" if config.network_owner else "none",
        "MaskedPaths": [*_ENGINE_MASKED_PATHS, "/proc/1/mem"],
        "ReadonlyPaths": [*_ENGINE_READONLY_PATHS, "/sys/fs/cgroup"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Tmpfs": config.tmpfs,
        "Mounts": [],
    }
    if limits.cpuset is not None:
        host["CpusetCpus"] = limits.cpuset
    for bind in config.binds:
        nested = [
            _bind(
                guard.source or f"{bind.source}/{guard.path}", f"{bind.target}/{guard.path}", read_only=guard.read_only
            )
            for guard in bind.guard
        ]
        host["Mounts"] += [_bind(bind.source, bind.target, read_only=bind.read_only), *nested]
    if config.cache_volume:  # files of the image at that place are not copied into the volume
        no_copy = {"NoCopy": True}
        volume = {"Type": "volume", "Source": config.cache_volume, "Target": CACHE_DIR, "VolumeOptions": no_copy}
        host["Mounts"] += [volume]
    if limits.disk_bytes is not None:
        host["StorageOpt"] = {"size": str(limits.disk_bytes)}
    if config.runtime:
        host["Runtime"] = config.runtime
    if config.hardening == "strict":
        host["ReadonlyRootfs"] = True
    if config.gpus:
        host["DeviceRequests"] = [{"Driver": "", "Count": config.gpus, "Capabilities": [["gpu"]], "Options": {}}]
    return host


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return a bind mount in the Mounts form: unlike Binds, it refuses a missing source instead of creating it."""
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": options}


def podman_payload(payload: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Return a create call's body in the form of Podman behind its Docker-compatible socket (measured with 4.3.1).

    Podman takes the filter as the path of a file, where Docker takes the text, and reads it while it creates the
    container. It ignores `MaskedPaths`, for which it has a security option.

    Raises:
        UsageError: Podman runs on another machine, where it could not read the filter; or the state directory cannot
            be written.
    """
    if not engine.address.is_local:
        raise UsageError(
            f"Podman at {engine.address} reads the filter of system calls from a file of its own machine. "
            "Run ohsandbox on that machine, or use a Docker engine."
        )
    host = payload["HostConfig"]
    options = [f"mask={':'.join(host['MaskedPaths'])}"]
    for option in host["SecurityOpt"]:
        name, _, text = option.partition("=")
        if name == "seccomp":
            path = subdirectory("filters") / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
            write_atomically(path, text.encode(), durable=False)
            text = str(path)
        options.append(f"{name}={text}" if text else name)
    return payload | {"HostConfig": host | {"SecurityOpt": options}}
