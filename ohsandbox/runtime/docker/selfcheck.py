"""Verification of a started sandbox against its configuration, from the kernel's facts inside and the engine's data.

The create call alone proves nothing: an engine without the required control groups, a kernel without swap accounting, a
proxy in front of the engine's socket or an OCI runtime may drop or add a field, with or without a warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import SandboxRefused
from ohsandbox.runtime.docker.container_config import PRIVATE_DIR, host_config
from ohsandbox.runtime.docker.guard import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ohsandbox.runtime.docker.container_config import ContainerConfig
    from ohsandbox.runtime.docker.resolve import ResolvedSandbox

_SECCOMP_FILTER = "2"
_READ_ONLY = ("/proc/sys", "/sys")
_ENGINE_MOUNTS = {"/", "/dev", "/dev/shm", PRIVATE_DIR, "/etc/resolv.conf", "/etc/hostname", "/etc/hosts"}  # noqa: S108
"""Mount points that every engine creates; their sources are the engine's choice."""
_PODMAN_MOUNTS = {"/run/.containerenv"}
"""A file with which Podman marks a container."""
_NEVER = (
    "Privileged", "AutoRemove", "OomKillDisable", "Devices", "DeviceRequests", "DeviceCgroupRules", "VolumesFrom",
    "Binds", "GroupAdd", "PortBindings", "PublishAllPorts", "Sysctls",
)  # fmt: skip
"""Fields of HostConfig that are empty or false in every sandbox."""
_MODES = ("PidMode", "IpcMode", "UTSMode", "UsernsMode", "CgroupnsMode", "NetworkMode")
_FOREIGN_NAMESPACE = re.compile("host$|container:")
_VOLUME = re.compile(r".*/volumes/[0-9a-f]{64}/_data")
"""An anonymous volume of the image's VOLUME."""
_TUNNELS = {"tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}
"""A kernel with these modules creates one of each in every new network namespace, down and without an address
(net.core.fb_tunnels_only_for_init_net)."""
_ROUNDING = 1.05
"""Limits are rounded to pages and scheduler periods; a machine's memory includes its kernel's."""


def refuse_weaker(facts: Mapping[str, str], plan: ResolvedSandbox, found: Mapping[str, Any]) -> None:
    """Refuse a sandbox that is weaker than requested.

    Args:
        facts: output of scripts/selfcheck.sh in the first process.
        plan: the requested configuration.
        found: the engine's description of the container; empty if it gave none.

    Raises:
        SandboxRefused: it is weaker than the plan.
    """
    if (wrong := verdict(facts, plan) or added(found, plan.spec)) is not None:
        raise SandboxRefused(
            f"Sandbox {plan.spec.name!r} is not as strict as asked: {wrong}. Remedy: `ohsandbox doctor`."
        )


def verdict(facts: Mapping[str, str], plan: ResolvedSandbox) -> str | None:
    """Return the first fact of scripts/selfcheck.sh that is weaker than the plan; None if all hold.

    gVisor and Kata have their own kernel, so a named OCI runtime skips the checks that only Linux passes.
    """
    spec = plan.spec
    mask = spec.capability_mask
    wanted = {"CapBnd": mask, "CapEff": mask if facts.get("Uid") == "0" else f"{0:016x}"}
    if not spec.runtime:
        wanted |= {"NoNewPrivs": "1", "Seccomp": _SECCOMP_FILTER}
    numeric = plan.user.split(":")[0]
    if numeric.isdigit():
        wanted["Uid"] = numeric
    for name, value in wanted.items():
        if facts.get(name) != value:
            return f"{name} is {facts.get(name)!r}, not {value!r}"
    limits = unenforced(facts, spec)
    if limits and spec.limits.enforced:
        return (
            f"limits are not in force ({', '.join(limits)}); "
            "Limits(enforced=False) accepts that, and describe() says so"
        )
    return _network(facts, spec) or next(_reach(facts, spec), None)


def unenforced(facts: Mapping[str, str], spec: ContainerConfig) -> list[str]:
    """Return the limits that the kernel does not show as in force, in words."""
    limits = spec.limits
    quota, _, period = (facts.get("cpu") or f"{facts.get('quota')},{facts.get('period')}").partition(",")
    checks = {
        "memory": _at_most(facts.get("memory"), limits.memory_bytes),
        "processes": _at_most(facts.get("pids"), limits.pids),
        "processors": period.isdigit() and _at_most(quota, round(spec.cpus * int(period) * _ROUNDING)),
        "a file's size": limits.file_bytes is None
        or all(_at_most(one, limits.file_bytes) for one in facts.get("fsize", "").split(",")),
        "open files": spec.open_files is None or _at_most(facts.get("nofile"), spec.open_files),
    }
    total = facts.get("MemTotal", "")
    if "memory" not in facts and total.isdigit() and int(total) * 1024 <= limits.memory_bytes * _ROUNDING:
        # gVisor and Kata show the control group's limit as the machine's memory, and no control groups
        checks |= {"memory": True, "processes": True, "processors": True}
    return [name for name, holds in checks.items() if not holds]


def _at_most(shown: str | None, limit: int) -> bool:
    return shown is not None and shown.isdigit() and int(shown) <= limit


def _network(facts: Mapping[str, str], spec: ContainerConfig) -> str | None:
    others = {*facts.get("interfaces", "?").split(",")} - {"lo", ""} - _TUNNELS
    if spec.network == "none" and others:
        return f"network is 'none', and it has the interface {min(others)!r}"
    return None


def _reach(facts: Mapping[str, str], spec: ContainerConfig) -> Iterator[str]:
    """Yield each access beyond the sandbox."""
    if "socket" in facts:
        yield f"{facts['socket']} is reachable in it"
    if "kthreadd" in facts:
        yield "it sees the processes of the engine's machine"
    own = {"/tmp"} if spec.runtime and facts.get("/tmp") == "tmpfs,/" else set()  # noqa: S108 - gVisor creates one
    yield from _mounts(facts, [] if spec.workspace is None else [WORKSPACE], _ENGINE_MOUNTS | _PODMAN_MOUNTS | own)
    if spec.runtime:
        return
    if "unmasked" in facts:
        yield f"{facts['unmasked']} is not masked"
    yield from (f"{path} is not read-only" for path in _READ_ONLY if f"ro{path}" not in facts)


def _restarts(host: Mapping[str, Any]) -> list[str]:
    """Return the restart policy, if any: a container that its owner's end has stopped must stay stopped."""
    name = str((host.get("RestartPolicy") or {}).get("Name") or "no")
    return [] if name == "no" else [name[:100]]


def _mounts(facts: Mapping[str, str], asked: list[str], known: set[str]) -> Iterator[str]:
    """Yield missing mounts, and mounts that were not requested."""
    yield from (f"{one} is not mounted" for one in asked if one not in facts)
    if not facts.get(PRIVATE_DIR, "").startswith("tmpfs,"):
        yield f"{PRIVATE_DIR} is not a tmpfs"
    for point, source in facts.items():
        if not point.startswith("/") or point in known or _VOLUME.fullmatch(source):
            continue
        if not any(point == one or point.startswith(one + "/") for one in asked):
            yield f"{point} is a mount that was not asked for ({source})"


def added(found: Mapping[str, Any], spec: ContainerConfig) -> str | None:
    """Return the first difference between the engine's description and the create call; None if there is none."""
    host: Mapping[str, Any] = found.get("HostConfig") or {}
    sent = host_config(spec)
    sources = {one["Source"] for one in sent["Mounts"]}
    binds = {str(one.get("Source")) for one in found.get("Mounts") or [] if one.get("Type") == "bind"}
    log = (host.get("LogConfig") or {}).get("Type")
    pairs = [
        ("SecurityOpt", _without_filter(host.get("SecurityOpt")), _without_filter(sent["SecurityOpt"])),
        ("StorageOpt", host.get("StorageOpt"), sent.get("StorageOpt")),
        ("Runtime", spec.runtime and host.get("Runtime"), spec.runtime),
    ]
    wrong = [
        *(f"{kind} is {str(host[kind])[:100]}, and none was asked for" for kind in _NEVER if host.get(kind)),
        *(f"it is started again by the engine ({name})" for name in _restarts(host)),
        *(f"{kind} is {host[kind]!r}" for kind in _MODES if _FOREIGN_NAMESPACE.match(str(host.get(kind)))),
        *(f"{one} is mounted, and was not asked for" for one in binds - sources),
        *(
            f"{kind} is {str(real)[:60]}, not {str(asked)[:60]}"
            for kind, real, asked in pairs
            if (real or None) != (asked or None)
        ),
        *([f"its output is kept on the engine's disk (log driver {log!r})"] if log != "none" else []),
    ]
    return next(iter(wrong), None)


def _without_filter(options: Sequence[str] | None) -> list[str]:
    """Replace our filter in SecurityOpt by one word: an earlier release's may differ, and Podman has its path."""
    return sorted("seccomp={...}" if one.startswith(("seccomp={", "seccomp=/")) else one for one in options or [])
