"""The configuration of a sandbox's container, as an allowlist: a field that is not written here is not sent.

`ContainerConfig` holds the resolved facts, `create_payload` turns them into the body of the engine's create call. It
cannot express a privileged container, a device, a host namespace or a mount other than the workspace.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.guard import WORKSPACE, GuardMount
from ohsandbox.runtime.docker.seccomp import ARCHITECTURES, SETGID_BIT, SETUID_BIT, profile_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Profile = Literal["contained", "mapped"]
"""`contained`: files live in the container, apt works. `mapped`: a host directory is bound, no capabilities at all."""
Network = Literal["none", "open"]

GIB = 1024**3
MIB = 1024**2
PRIVATE_DIR = "/run/ohs"
"""Our tmpfs, mode 1777: each user keeps a 0700 directory in it."""

PID_1 = "trap '' HUP INT QUIT TERM USR1 USR2 PIPE ALRM; while :; do sleep 3600 & wait $!; done"
"""Survives `kill -9 -1` from inside and reaps orphans; tini + sleep does neither."""
MAPPED_PID_1 = f"trap 'exit 143' TERM; {PID_1.replace(' TERM', '')}"
"""SIGTERM ends it, for sandbox.OwnerWatchdog; an agent that runs as an ordinary user cannot send it one."""

CONTAINED_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""The minimum for apt, useradd, `su` and killing another user's process."""
_CAPABILITY_BITS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
}  # linux/capability.h

QUIET_ENV = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}
"""No one is at the terminal: no pager, no prompt."""
HOSTILE_ENV = re.compile(
    r"LD_.*|DYLD_.*|BASH_.*|BASHOPTS|SHELLOPTS|ENV|PROMPT_COMMAND|PS[0-4]|IFS|CDPATH|GLOBIGNORE|EXECIGNORE|FIGNORE"
    r"|HISTFILE|INPUTRC|TMOUT|POSIXLY_CORRECT|GCONV_PATH|GETCONF_DIR|HOSTALIASES|LOCALDOMAIN|LOCPATH|MALLOC_.*"
    r"|NLSPATH|RESOLV_HOST_CONF|RES_OPTIONS|TZDIR|NIS_PATH|OHS_.*|OHSANDBOX_.*"
)
"""Names by which an image's ENV could change our shells: variables of the loader (those that ld.so(8) clears for setuid
programs), of bash and of sh. Other variables of an image (JAVA_HOME, GOPATH) are kept."""
ALWAYS_UNSET = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "ENV", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS",
    "PS0", "PS1", "PS2", "PS4", "IFS", "CDPATH", "GLOBIGNORE", "TMOUT", "INPUTRC",
)  # fmt: skip
"""Cleared for each process in an attached container, whose image was not inspected."""

MAX_ENV_VARIABLES = 4096
"""Shells take time quadratic in their number: the first command took 0.6 s with 4,000 and 2.4 s with 8,000."""
MAX_ENV_BYTES = 512 * 1024
"""A quarter of what Linux passes to a program (execve(2)); arguments need space too. Half of `ENV_SNAPSHOT_BYTES`."""

_WORKDIR_FORBIDDEN = ("/proc", "/sys", "/dev")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:localhost|{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?:\.{_LABEL})*:[0-9]{{1,5}})/)?"
    rf"{_PART}(?:/{_PART})*(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
"""[registry[:port]/]path[:tag][@digest], by the grammar of the distribution specification."""
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_MAX_IMAGE_NAME = 255


class Limits(BaseModel):
    """Resource limits of a sandbox. All except free_bytes are enforced by the engine and verified from inside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: int = Field(default=2 * GIB, ge=32 * MIB)
    """Memory plus swap: enough for a compiler, a quarter of a laptop's."""
    cpus: float | None = Field(default=None, gt=0)
    """Number of processors. None: two, or as many as the engine's machine has."""
    pids: int = Field(default=512, ge=16)
    """Processes and threads. A build with 16 jobs used 90; a fork bomb fails at once."""
    disk_bytes: int | None = Field(default=None, ge=64 * MIB)
    """Growth of the root file system, if the engine's storage can limit it (xfs with pquota, btrfs); else refused."""
    shm_bytes: int | None = Field(default=None, ge=MIB)
    """Size of /dev/shm. None: 256 MiB, or an eighth of the memory."""
    open_files: int | None = Field(default=None, ge=256)
    """Hard RLIMIT_NOFILE; the soft limit is at most 4096. None: 65536, or the maximum that the engine may set."""

    file_bytes: int | None = Field(default=16 * GIB, ge=16 * MIB)
    """RLIMIT_FSIZE: maximum size of one file on any file system; a process that writes more is killed by SIGXFSZ.
    Half-precision weights of 7 billion parameters are 14 GiB in one file. None: no limit."""
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
    def _tmpfs_leaves_room(self) -> Limits:
        if self.shm + self.private_bytes > self.memory_bytes // 2:
            raise ValueError(
                "shm_bytes is over half of memory_bytes: a full tmpfs would leave no memory to any command"
            )
        return self


class ContainerConfig(BaseModel):
    """A resolved sandbox: all values that determine its container."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: str
    profile: Profile = "contained"
    workdir: str
    env: dict[str, str] = {}
    """Our variables and the caller's."""
    unset: tuple[str, ...] = ()
    """Variables of the image that are removed."""
    network: Network = "none"
    limits: Limits = Limits()
    cpus: float = 2.0
    """Resolved: at most the engine's number of processors."""
    open_files: int | None = 65536
    """Resolved: an engine without CAP_SYS_RESOURCE cannot exceed its own limit. None: the engine's limit."""
    workspace: str | None = None
    """A host directory that was checked; `mapped` only."""
    guard: tuple[GuardMount, ...] = ()
    """The nested mounts that protect parts of the workspace."""
    gid: int = 0
    """gid of the mapped user: for gid 0 setgid files are as dangerous as setuid files."""
    architecture: str = "amd64"
    """Architecture of the image."""
    runtime: str = ""
    """OCI runtime of the engine; empty: its default."""
    labels: dict[str, str] = {}

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Capabilities that a process of uid 0 in the sandbox may have."""
        return CONTAINED_CAPABILITIES if self.profile == "contained" else ()

    @property
    def seccomp_json(self) -> str:
        """Our seccomp filter as JSON; empty where the engine's own is used."""
        if self.architecture not in ARCHITECTURES:
            return ""
        forbidden = SETUID_BIT | (SETGID_BIT if self.gid == 0 else 0)
        return profile_json(forbidden if self.profile == "mapped" else 0)

    @property
    def capability_mask(self) -> str:
        """Capability mask in the format of /proc/PID/status."""
        return f"{sum(1 << _CAPABILITY_BITS[name] for name in self.capabilities):016x}"

    def policy(self) -> str:
        """Digest of all restrictions of the sandbox, for the label and the log."""
        bounded = self.model_dump(exclude={"name", "env", "labels"}) | {"seccomp_json": self.seccomp_json}
        return hashlib.sha256(json.dumps(bounded, sort_keys=True).encode()).hexdigest()


def create_payload(spec: ContainerConfig) -> dict[str, Any]:
    """Return the body of POST /containers/create.

    PID 1 and the configured user are uid 0: with no-new-privileges, an exec as root in a container *configured* for
    another user has no capability (CapEff 0, measured). Each exec sets the user of the agent's processes.
    """
    return {
        "Image": spec.image,
        "Entrypoint": ["/bin/sh", "-c", MAPPED_PID_1 if spec.workspace is not None else PID_1],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",  # the OCI runtime enters it at each start, also after an agent changed the files
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())] + sorted(spec.unset),
        "Hostname": "sandbox",
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "Tty": False,
        "OpenStdin": False,
        "Labels": dict(sorted(spec.labels.items())),
        "HostConfig": host_config(spec),
    }


ENGINE_MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
"""The default masked paths of engine 28, which a given list replaces; runc skips paths that do not exist. Ours adds the
memory of PID 1, which root could write; the filter forbids tracing PID 1 (seccomp.py)."""


ENGINE_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""The default read-only paths of engines, which a given list replaces. Ours adds one: under cgroup v1 the parent of the
hierarchies is a tmpfs of half the machine's memory, where root could fill all memory of the sandbox with data that no
kernel can reclaim, so that no process starts any more."""


def host_config(spec: ContainerConfig) -> dict[str, Any]:
    """Return the HostConfig part. AutoRemove stays false: the files of a killed container must outlive it."""
    limits = spec.limits
    config: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "CapAdd": list(spec.capabilities),
        "SecurityOpt": _security(spec),
        "Privileged": False,
        "PidsLimit": limits.pids,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": round(spec.cpus * 1_000_000_000),
        "OomScoreAdj": 500,
        "ShmSize": limits.shm,
        "Ulimits": _ulimits(spec),
        "LogConfig": {"Type": "none"},
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": "none" if spec.network == "none" else "bridge",
        "MaskedPaths": [*ENGINE_MASKED_PATHS, "/proc/1/mem"],
        "ReadonlyPaths": [*ENGINE_READONLY_PATHS, "/sys/fs/cgroup"],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Tmpfs": {PRIVATE_DIR: f"rw,nosuid,nodev,noexec,size={limits.private_bytes},mode=1777"},
        "Mounts": [],
    }
    if spec.workspace is not None:
        config["Mounts"] = [_bind(spec.workspace), *(_nested(spec.workspace, mount) for mount in spec.guard)]
    if limits.disk_bytes is not None:
        config["StorageOpt"] = {"size": str(limits.disk_bytes)}
    if spec.runtime:
        config["Runtime"] = spec.runtime
    return config


def _bind(source: str, target: str = WORKSPACE, *, read_only: bool = False) -> dict[str, Any]:
    """The Mounts form, unlike Binds, refuses a source that does not exist instead of creating it."""
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _nested(workspace: str, mount: GuardMount) -> dict[str, Any]:
    source = mount.source or f"{workspace}/{mount.path}"
    return _bind(source, f"{WORKSPACE}/{mount.path}", read_only=mount.read_only)


def image_name(image: str) -> str:
    """Return image if it is a valid image reference.

    Raises:
        UsageError: it is not an image reference; checked before anything is sent.
    """
    if len(image) <= _MAX_IMAGE_NAME and (_IMAGE.fullmatch(image) or _IMAGE_ID.fullmatch(image)):
        return image
    shown = image if len(image) <= 60 else image[:59] + "…"  # noqa: PLR2004 - a line's worth
    raise UsageError(
        f"{shown!r} is not an image name. Remedy: name one like python:3.12 or ghcr.io/owner/name:tag, in lower case."
    )


def container_name(name: str) -> str:
    """Return name if the engine accepts it.

    Raises:
        UsageError: the engine would refuse it.
    """
    if _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{name!r} is not a container name. Remedy: use letters, digits, '_', '.' and '-', two to 128 of them."
    )


def sane_workdir(workdir: str | None) -> str | None:
    """Return the path; None if it is relative or leads through /proc, /sys or /dev (CVE-2024-21626)."""
    if not workdir or not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
        return None
    path = "/" + "/".join(part for part in workdir.split("/") if part not in {"", "."})
    if any(path == bad or path.startswith(bad + "/") for bad in _WORKDIR_FORBIDDEN):
        return None
    return path


def check_environment(image_env: Sequence[str], env: Mapping[str, str], *, whose: str) -> None:
    """Check that a sandbox's shells can start with an image's ENV (entries NAME=VALUE) and env on top of it.

    Raises:
        UsageError: there are more than MAX_ENV_VARIABLES, or they are larger than MAX_ENV_BYTES.
    """
    merged = dict(entry.partition("=")[::2] for entry in image_env) | dict(env)
    size = sum(len(f"{name}={value}".encode(errors="replace")) + 1 for name, value in merged.items())
    if len(merged) > MAX_ENV_VARIABLES or size > MAX_ENV_BYTES:
        raise UsageError(
            f"{whose} has {len(merged):,} environment variables of {size:,} bytes. Each program is given all of them, "
            f"so a sandbox takes at most {MAX_ENV_VARIABLES:,} of {MAX_ENV_BYTES:,} bytes together. "
            "Remedy: put them into a file that the commands read."
        )


def hostile_names(image_env: list[str]) -> tuple[str, ...]:
    """Return the variables of an image's ENV to remove; a bare name in Env removes the image's value."""
    names = [entry.split("=", 1)[0] for entry in image_env]
    return tuple(sorted({name for name in names if HOSTILE_ENV.fullmatch(name)}))


def _security(spec: ContainerConfig) -> list[str]:
    return ["no-new-privileges", *([f"seccomp={spec.seccomp_json}"] if spec.seccomp_json else [])]


def _ulimits(spec: ContainerConfig) -> list[dict[str, Any]]:
    hard = {"nofile": spec.open_files, "core": 0, "fsize": spec.limits.file_bytes}
    soft = hard | {"nofile": min(4096, spec.open_files or 0)}
    return [{"Name": name, "Soft": soft[name], "Hard": limit} for name, limit in hard.items() if limit is not None]
