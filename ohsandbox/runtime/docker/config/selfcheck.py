"""Verification of a started sandbox against its configuration, from the kernel's facts inside and the engine's data.

The create call alone proves nothing: an engine without the required control groups, a kernel without swap accounting, a
proxy in front of the engine's socket or an OCI runtime may drop or add a field, with or without a warning.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxRefused
from ohsandbox.runtime.docker.config.container_config import (
    ALL_GPUS,
    CONNECTOR_DIR,
    PRIVATE_DIR,
    host_config,
)
from ohsandbox.runtime.docker.labels import ours
from ohsandbox.runtime.docker.mounts.caches import CACHE_DIR
from ohsandbox.runtime.docker.mounts.guard_mounts import decode_mountinfo
from ohsandbox.runtime.docker.mounts.mount_policy import is_root
from ohsandbox.text import natural_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.config.container_config import ContainerConfig

_SECCOMP_FILTER = "2"
_READ_ONLY = ("/proc/sys", "/sys")
_ENGINE_MOUNTS = {
    "/", "/dev", "/dev/shm", PRIVATE_DIR, CONNECTOR_DIR, "/etc/resolv.conf", "/etc/hostname",  # noqa: S108
    "/etc/hosts", "/run/.containerenv",
}  # fmt: skip
"""Mount points that every engine creates; the engine chooses their sources. The last one is Podman's."""
_NEVER = (
    "Privileged", "AutoRemove", "OomKillDisable", "Devices", "DeviceCgroupRules", "VolumesFrom",
    "GroupAdd", "PortBindings", "PublishAllPorts", "Sysctls",
)  # fmt: skip
"""Fields of HostConfig that are empty or false in every sandbox."""
_MODES = ("PidMode", "IpcMode", "UTSMode", "UsernsMode", "CgroupnsMode", "NetworkMode")
_FOREIGN_NAMESPACE = re.compile("host$|container:")
_ANONYMOUS = re.compile("[0-9a-f]{64}")
_VOLUME = re.compile(r".*/volumes/[0-9a-f]{64}/_data")
"""An anonymous volume of the image's VOLUME."""
_TUNNELS = {"tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}
"""A kernel with these modules creates one interface of each in every new network namespace, down and without an address
(net.core.fb_tunnels_only_for_init_net)."""
_GPU_MOUNT = re.compile(
    r"/dev/nvidia[-\w]*(?:/[-\w]+)?|(?:/usr)?/lib(?:32|64|/[-\w]+)?/(?:[-\w]+/){0,4}(?:nvidia_drv\.so"
    r"|lib(?:nvidia|cuda|nv|vdpau_nvidia|glxserver_nvidia|GL|EGL)[-\w.]*)|(?:/usr)?/s?bin/nv(?:idia)?-[-\w]+"
    r"|(?:/usr)?/lib/firmware/nvidia/[-\w./]+|/(?:var/)?run/nvidia-\w+/socket"
    r"|/(?:etc|usr/share)/(?:vulkan|glvnd|egl|X11|nvidia)/[-\w./]*nv(?:idia|optix)[-\w.]*"
)
"""Mount points that NVIDIA's container runtime adds for a GPU: devices, the driver's libraries and programs, sockets.

Sources: libnvidia-container (nvc_info.c at 00b4b47, nvc_mount.c at 077f498: the hook of engines without CDI) and
NVIDIA's Container Toolkit (internal/discover/graphics.go at 02174f0: CDI adds files of X11, Vulkan and OptiX). Mounts
below /proc/driver/nvidia are skipped, like all of /proc. /tmp/nvidia-mps leads to a daemon that serves all programs of
the engine's machine: a sandbox with it is refused.
"""

_MAX_CPUS, _MAX_SPANS = 8192, 1024
"""Limits of a list of processors that a sandbox prints; 8192 is the most that Linux is built for (NR_CPUS)."""
_ROUNDING = 1.05
"""Limits are rounded to pages and scheduler periods; a machine's memory includes its kernel's."""


def refuse_weaker(facts: Mapping[str, str], config: ContainerConfig, found: Mapping[str, Any]) -> None:
    """Raise SandboxRefused for a sandbox that is weaker than its configuration.

    facts are the output of scripts/selfcheck.sh in the first process, found is the engine's description of the
    container, empty if it gave none.
    """
    from_engine = chain(added(found, config), _volumes(found, config))
    if (wrong := verdict(facts, config) or next(from_engine, None)) is not None:
        as_asked = "what was asked for" if config.hardening == "trusted" or config.gpus else "as strict as asked"
        raise SandboxRefused(f"Sandbox {config.name!r} is not {as_asked}: {wrong}.", remedy="Run `ohsandbox doctor`.")


def verdict(facts: Mapping[str, str], config: ContainerConfig) -> str | None:
    """Return a phrase about the first fact of scripts/selfcheck.sh that is weaker than the configuration, or None.

    For OCI runtimes with a kernel of their own (gVisor, Kata), checks that only the engine's kernel passes are skipped,
    and the kernel must not be the engine's.
    """
    kernel = facts.get("kernel", "")
    if config.own_kernel and kernel in {"", config.engine_kernel}:
        return f"OCI runtime {config.runtime!r} gave it no kernel of its own ({kernel or 'unknown'})"
    mask = config.capability_mask
    expected = {"CapBnd": mask, "CapEff": mask if facts.get("Uid") == "0" else f"{0:016x}"}
    if not config.own_kernel:
        expected |= {"NoNewPrivs": "0" if config.hardening == "trusted" else "1", "Seccomp": _SECCOMP_FILTER}
    numeric = config.user.split(":")[0]
    if numeric.isdigit():
        expected["Uid"] = numeric
    for name, value in expected.items():
        if facts.get(name) != value:
            return f"{name} is {facts.get(name)!r}, not {value!r}"
    if config.hardening == "strict":
        if "ro/" not in facts:
            return "its root file system is not read-only"
        if facts.get("Uid") == "0" and not is_root(config.user):
            return f"user {config.user!r} is root"
    limits = unenforced(facts, config)
    if limits and config.limits.enforced:
        return (
            f"limits are not in force ({', '.join(limits)}); "
            "--accept-unenforced, SandboxLimits(enforced=False), accepts that, and describe() says so"
        )
    return next(_reach(facts, config), None)


def unenforced(facts: Mapping[str, str], config: ContainerConfig) -> list[str]:
    """Return the names of the limits that the facts do not show to be in force."""
    limits = config.limits
    quota, _, period = (facts.get("cpu") or f"{facts.get('quota')},{facts.get('period')}").partition(",")
    checks = {
        "memory": _at_most(facts.get("memory"), limits.memory_bytes),
        "processes": _at_most(facts.get("pids"), limits.pids),
        "processors": _at_most(quota, round(config.cpus * (natural_number(period) or 0) * _ROUNDING)),
        "cpuset": limits.cpuset is None
        or parse_cpu_list(facts.get("Cpus_allowed_list", "")) == parse_cpu_list(limits.cpuset),
        "a file's size": limits.file_bytes is None
        or all(_at_most(limit, limits.file_bytes) for limit in facts.get("fsize", "").split(",")),
        "open files": config.open_files is None or _at_most(facts.get("nofile"), config.open_files),
    }
    total = natural_number(facts.get("MemTotal", ""))
    shows_limit = total is not None and total * 1024 <= limits.memory_bytes * _ROUNDING
    if "memory" not in facts and shows_limit and not _is_whole_machine((total or 0) * 1024, config):
        # gVisor and Kata show the control group's limit as the machine's memory, and no control groups
        checks |= dict.fromkeys(("memory", "processes", "processors", "cpuset"), True)
    # our filter refuses fallocate, which takes space at once, charged to nobody: gVisor and Kata may leave it out
    if config.own_kernel and limits.free_bytes != 0:
        checks["the disk's floor"] = facts.get("Seccomp") == _SECCOMP_FILTER
    return [name for name, holds in checks.items() if not holds]


def _is_whole_machine(memory_bytes: int, config: ContainerConfig) -> bool:
    """Whether memory_bytes is all memory of the engine's machine: no limit is visible, as in gVisor without cgroups."""
    return bool(config.engine_memory_bytes) and memory_bytes * _ROUNDING >= config.engine_memory_bytes


def parse_cpu_list(cpuset: str) -> set[int]:
    """Return the numbers in a list such as '0,2-3'; empty if it is not such a list, or no machine has so many."""
    numbers: set[int] = set()
    for span in cpuset.split(",", _MAX_SPANS):
        first, _, last = span.partition("-")
        begin, end = natural_number(first), natural_number(last or first)
        if begin is None or end is None or end >= _MAX_CPUS:
            return set()
        numbers |= {*range(begin, end + 1)}
    return numbers


def _at_most(shown: str | None, limit: int) -> bool:
    number = natural_number(shown or "")
    return number is not None and number <= limit


def outside_interfaces(names: Iterable[str]) -> set[str]:
    """Return those of a network namespace's interfaces that may lead out of it."""
    return {*names} - {"lo", ""} - _TUNNELS


def _reach(facts: Mapping[str, str], config: ContainerConfig) -> Iterator[str]:
    """Yield a sentence for each access beyond the sandbox."""
    others = outside_interfaces(facts.get("interfaces", "?").split(","))
    if config.network != "open" and others:
        yield f"network is {config.network!r}, and it has the interface {min(others)!r}"
    if config.network == "open":
        from ohsandbox.network.open_addresses import PROOF  # noqa: PLC0415 - most sandboxes have no network

        if not {*facts.get("rejects", "").split(",")} >= PROOF:
            yield "network is 'open', and the routes that keep it from private addresses are not there"
    if "socket" in facts:
        yield f"{facts['socket']} is reachable in it"
    if "kthreadd" in facts:
        yield "it sees the processes of the engine's machine"
    yield from _mounts(facts, config)
    count = natural_number(facts.get("gpus", "")) or 0
    if count == 0 if config.gpus == ALL_GPUS else count != config.gpus:
        yield f"it has {count} GPUs, and {'all' if config.gpus == ALL_GPUS else config.gpus} were asked for"
    if config.own_kernel:
        return
    if "unmasked" in facts:
        yield f"{facts['unmasked']} is not masked"
    yield from (f"{path} is not read-only" for path in _READ_ONLY if f"ro{path}" not in facts)


def _mounts(facts: Mapping[str, str], config: ContainerConfig) -> Iterator[str]:
    """Yield missing mounts, and mounts that were not requested."""
    targets = {bind.target for bind in config.binds}
    points = {decode_mountinfo(point): source for point, source in facts.items() if point.startswith("/")}
    yield from (f"{target} is not mounted" for target in sorted(targets - points.keys()))
    if not facts.get(PRIVATE_DIR, "").startswith("tmpfs,"):
        yield f"{PRIVATE_DIR} is not a tmpfs"
    for point in config.tmpfs:
        if point != PRIVATE_DIR and not facts.get(point, "").startswith("tmpfs,"):
            yield f"{point} is not a tmpfs"
    own = {"/tmp"} if config.own_kernel and facts.get("/tmp") == "tmpfs,/" else set()  # noqa: S108 - gVisor creates one
    expected = own | _ENGINE_MOUNTS | config.tmpfs.keys()
    if config.cache_volume:
        expected |= {CACHE_DIR}
        yield from _cache(facts.get(CACHE_DIR), config)
    for point, source in points.items():
        if point in expected or _VOLUME.fullmatch(source):
            continue
        if config.gpus and _GPU_MOUNT.fullmatch(point):
            continue
        if not any(point == target or point.startswith(f"{target}/") for target in targets):
            yield f"{point} is a mount that was not asked for ({source})"


def _volumes(inspected: Mapping[str, Any], config: ContainerConfig) -> Iterator[str]:
    """Yield the named volumes that were not requested."""
    names = {str(mount.get("Name")) for mount in inspected.get("Mounts") or [] if mount.get("Type") == "volume"}
    others = sorted(name for name in names - {config.cache_volume} if not _ANONYMOUS.fullmatch(name))
    yield from (f"volume {name} is mounted, and was not asked for" for name in others)


def _cache(source: str | None, config: ContainerConfig) -> Iterator[str]:
    """Yield a sentence if the cache's volume is not mounted where it belongs."""
    if source is None or not source.endswith(f"/{config.cache_volume}/_data"):
        yield f"{CACHE_DIR} is not the volume {config.cache_volume} ({source or 'nothing'})"


def added(found: Mapping[str, Any], config: ContainerConfig, *, log: str = "none") -> Iterator[str]:
    """Yield the differences between the engine's description and the create call; log is the requested log driver."""
    host: Mapping[str, Any] = found.get("HostConfig") or {}
    sent = host_config(config)
    yield from (f"{kind} is {str(host[kind])[:100]}, and none was asked for" for kind in _NEVER if host.get(kind))
    requests = [(request.get("Count"), request.get("Capabilities")) for request in host.get("DeviceRequests") or []]
    if requests != [(request["Count"], request["Capabilities"]) for request in sent.get("DeviceRequests", [])]:
        yield f"DeviceRequests is {str(host.get('DeviceRequests'))[:100]}, and {config.gpus} GPUs were asked for"
    # a container that was stopped when its owner ended must stay stopped
    if (restarts := str((host.get("RestartPolicy") or {}).get("Name") or "no")) != "no":
        yield f"it is started again by the engine ({restarts[:100]})"
    joined = {sent["NetworkMode"]}
    modes = ((kind, str(host.get(kind))) for kind in _MODES)
    yield from (f"{kind} is {mode!r}" for kind, mode in modes if _FOREIGN_NAMESPACE.match(mode) and mode not in joined)
    binds = [mount for mount in found.get("Mounts") or [] if mount.get("Type") == "bind"]
    expected = {mount["Target"]: mount for mount in sent["Mounts"]}
    sources = {mount["Source"] for mount in sent["Mounts"]}
    pairs = [f"{mount['Source']}:{mount['Target']}" for mount in sent["Mounts"]]
    yield from (
        f"Binds has {str(text)[:100]}, and that was not asked for"
        for text in host.get("Binds") or []  # Podman lists its mounts here, too
        if not any(f"{text}:".startswith(f"{pair}:") for pair in pairs)
    )
    for bind in binds:
        if bind.get("Source") not in sources:
            yield f"{bind.get('Source')} is mounted, and was not asked for"
        elif bind.get("RW") and expected.get(bind.get("Destination"), {}).get("ReadOnly"):
            yield f"{bind.get('Destination')} is mounted writable, and was to be read-only"
    labels = ours((found.get("Config") or {}).get("Labels"))
    yield from (
        f"label {name} is {labels[name][:60]!r}, not {value[:60]!r}"
        for name, value in ours(config.labels).items()
        if labels[name] != value
    )
    for kind, real, expected_value in (
        ("SecurityOpt", _without_filter(host.get("SecurityOpt")), _without_filter(sent["SecurityOpt"])),
        ("StorageOpt", host.get("StorageOpt"), sent.get("StorageOpt")),
        ("Runtime", config.runtime and host.get("Runtime"), config.runtime),
    ):
        if (real or None) != (expected_value or None):
            yield f"{kind} is {str(real)[:60]}, not {str(expected_value)[:60]}"
    if (driver := (host.get("LogConfig") or {}).get("Type")) != log:
        yield f"its output is kept on the engine's disk (log driver {driver!r})"


def _without_filter(options: Sequence[str] | None) -> list[str]:
    """Return SecurityOpt, sorted, without the filter's text: older releases had another one, and Podman has a path."""
    return sorted(
        "seccomp={...}" if option.startswith(("seccomp={", "seccomp=/")) else option for option in options or []
    )
