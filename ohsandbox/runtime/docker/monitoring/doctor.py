"""Checks of the engine and of its isolation, for `ohsandbox doctor`."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime import disk_space
from ohsandbox.runtime.docker.config.container_config import GIB
from ohsandbox.runtime.docker.engine.connection import connect, socket_mode
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.monitoring import disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.docker.engine.connection import Engine

Status = Literal["ok", "warn", "fail"]

_SAFE_RUNC = ((1, 2, 8), (1, 3, 3), (1, 4, 0))
"""The first release of each branch without CVE-2025-31133, -52565 and -52881 (1.4.0-rc.3 counts as 1.4.0)."""
_SAFE_ENGINE_MAJOR = 23
"""Older engines are no longer maintained; their default filter allows AF_VSOCK (ours does not)."""


class Check(NamedTuple):
    """The result of one check."""

    name: str
    status: Status
    value: str
    remedy: str = ""
    """Empty if no action is needed."""


def checks() -> list[Check]:
    """Run every check in order; without an engine, return only that result. Never raises ohsandbox's own errors."""
    try:
        engine = connect()
    except OhsandboxError as error:
        remedy = f"{error.remedy} `ohsandbox run --runtime cli` does without a container.".lstrip()
        return [Check("engine", "fail", error.fact, remedy)]
    try:
        with engine_errors("asking the engine about itself"):
            info, version = dict(engine.api.info()), dict(engine.api.version())
    except OhsandboxError as error:
        return [Check("engine", "fail", str(error))]
    finally:
        engine.close()
    return check_engine(engine, info, version)


def check_engine(engine: Engine, info: dict[str, Any], version: dict[str, Any]) -> list[Check]:
    """Return the checks on an engine's info and version; on this machine they read the socket's mode and free space."""
    api = f"{version.get('ApiVersion', '?')}, used {engine.api_version}"
    return [
        *_versions(engine, version, api),
        *_isolation(info),
        _storage(info),
        *_disk(engine, info),
        _runtimes(info),
        _socket(engine),
        _memory(info),
        *(Check("warning", "warn", str(text).removeprefix("WARNING: ")) for text in info.get("Warnings") or []),
    ]


def _versions(engine: Engine, version: dict[str, Any], api: str) -> Iterator[Check]:
    text = f"{version.get('Version', '?')} at {engine.address}"
    if _numbers(str(version.get("Version", ""))) < (_SAFE_ENGINE_MAJOR,):
        yield Check("engine", "warn", text, "upgrade the engine: this release is no longer maintained")
    else:
        yield Check("engine", "ok", text)
    yield Check("api", "ok", api)
    runc = next((c for c in version.get("Components") or [] if str(c.get("Name")) == "runc"), None)
    text = "not reported" if runc is None else str(runc.get("Version", "?"))
    if runc is None or runc_is_safe(text):
        yield Check("runc", "ok", text)
    else:
        text += " has known escapes (CVE-2025-31133, -52565, -52881), unless your distribution patched it"
        yield Check("runc", "warn", text, "upgrade to runc 1.2.8, 1.3.3, 1.4.0 or newer")


def runc_is_safe(version: str) -> bool:
    """Whether runc's release is at or after the first fixed one of its branch."""
    numbers = _numbers(version)
    branch = next((safe for safe in _SAFE_RUNC if safe[:2] == numbers[:2]), None)
    return numbers >= branch if branch else numbers > _SAFE_RUNC[-1]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading dotted numbers of a version: '1.1.5+ds1' is (1, 1, 5)."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _isolation(info: dict[str, Any]) -> Iterator[Check]:
    text = f"{info.get('OSType', '?')}/{info.get('Architecture', '?')}, {info.get('NCPU', '?')} processors"
    if info.get("OSType") not in {None, "linux"}:
        yield Check("platform", "fail", text, "switch the engine to Linux containers")
    else:
        same = info.get("Architecture") == platform.machine()
        yield Check("platform", "ok", text if same else f"{text} (this machine: {platform.machine()})")
    security = " ".join(map(str, info.get("SecurityOptions") or []))
    if "rootless" in security:
        yield Check("users", "ok", "rootless engine: root in a sandbox is an ordinary user of the host")
    elif "userns" in security:
        text = "userns-remap: root in a sandbox is nobody on the host; workspace= is not possible"
        yield Check("users", "ok", text)
    else:
        remedy = "consider a rootless engine, or userns-remap where workspace= is not needed"
        yield Check("users", "warn", "the engine runs as root and does not remap users", remedy)
    if "seccomp" in security:
        yield Check("seccomp", "ok", "supported; sandboxes use ohsandbox's own filter")
    else:
        text = "not supported by this kernel or engine: sandboxes refuse to start"
        yield Check("seccomp", "fail", text, "enable CONFIG_SECCOMP_FILTER")
    text = f"version {info.get('CgroupVersion', '1')}, driver {info.get('CgroupDriver', '?')}"
    missing = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota") if info.get(name) is False]
    if missing or info.get("CgroupDriver") == "none":
        text += f"; not enforced here: {', '.join(missing) or 'any limit'}"
        yield Check("cgroup", "warn", text, "delegate the controllers (rootless), or boot with swapaccount=1")
    else:
        yield Check("cgroup", "ok", text)


def _storage(info: dict[str, Any]) -> Check:
    driver = str(info.get("Driver", "?"))
    backing = next((str(v) for k, v in info.get("DriverStatus") or [] if k == "Backing Filesystem"), "?")
    text = f"{driver} on {backing}: --disk"
    if driver in {"btrfs", "zfs"}:
        return Check("storage", "ok", f"{text} works")
    if driver.startswith("overlay") and backing == "xfs":
        return Check("storage", "ok", f"{text} works if it is mounted with pquota")
    text += " cannot bound what a sandbox takes; what writes below the floor is killed"
    return Check("storage", "warn", text, "keep the engine's data on xfs mounted with pquota")


def _disk(engine: Engine, info: dict[str, Any]) -> Iterator[Check]:
    """Check the free space of the engine's data directory, if that is on this machine."""
    data_directory = engine.address.is_local and disk.reachable(str(info.get("DockerRootDir") or ""))
    if not data_directory:
        return
    space = disk_space.measure(data_directory)
    if (short := disk_space.shortage(space, None)) is not None:
        remedy = "`docker system df` shows what is held"
        yield Check("disk", "fail", f"it {short}: sandboxes refuse to start", remedy)
    else:
        yield Check("disk", "ok", f"{space.free_bytes / GIB:.1f} GiB free of {space.total_bytes / GIB:.0f} GiB")


def _runtimes(info: dict[str, Any]) -> Check:
    names = sorted(info.get("Runtimes") or {})
    listed = ", ".join(names)
    strong = [name for name in names if re.search(r"runsc|kata|gvisor", name)]
    if strong:
        return Check("runtimes", "ok", f"{listed}; stronger isolation with runtime={strong[0]!r}")
    return Check("runtimes", "ok", f"{listed}: sandboxes share the kernel", "install gVisor (runsc) for hostile code")


def _socket(engine: Engine) -> Check:
    url, mode = engine.address.url, socket_mode(engine.address)
    if mode is None and not (engine.address.tls or "ssh://" in url or "unix://" in url):
        return Check("socket", "warn", f"{url} is neither encrypted nor authenticated", "use ssh:// or TLS")
    if mode is not None and int(mode[-1], 8) & 2:
        text = f"{mode}: every user of this machine is root through it"
        return Check("socket", "warn", text, "chmod o-rw the socket")
    return Check("socket", "ok", mode or url)


def _memory(info: dict[str, Any]) -> Check:
    total = int(info.get("MemTotal") or 0)
    text = f"{total / GIB:.1f} GiB of memory"
    if 0 < total < 4 * GIB:
        remedy = "lower --memory (SandboxLimits(memory_bytes=...)), or run few at once"
        return Check("memory", "warn", f"{text}: one sandbox may take 2 GiB", remedy)
    return Check("memory", "ok", text)
