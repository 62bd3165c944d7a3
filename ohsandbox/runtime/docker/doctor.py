"""Checks of the engine and of its isolation, for `ohsandbox doctor`."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ohsandbox.errors import OhsandboxError
from ohsandbox.runtime import disk_space
from ohsandbox.runtime.docker import disk
from ohsandbox.runtime.docker.engine import connect, socket_mode
from ohsandbox.runtime.docker.error_mapping import engine_errors

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.engine import Engine

Status = Literal["ok", "warn", "fail"]

SAFE_RUNC = ((1, 2, 8), (1, 3, 3), (1, 4, 0))
"""The first release of each branch without CVE-2025-31133, -52565 and -52881 (1.4.0-rc.3 counts as 1.4.0)."""
SAFE_ENGINE_MAJOR = 23
"""Older engines are no longer maintained; their default filter allows AF_VSOCK (ours does not)."""


class Check(NamedTuple):
    """The result of one check."""

    name: str
    status: Status
    value: str
    remedy: str = ""
    """Empty if nothing needs to be done."""


def checks() -> list[Check]:
    """Run every check in order; without an engine, return only the reason. Never raises ohsandbox's own errors."""
    try:
        engine = connect()
    except OhsandboxError as error:
        text, _, remedy = str(error).partition(" Remedy: ")
        return [Check("engine", "fail", text, remedy)]
    try:
        with engine_errors("asking the engine about itself"):
            info, version = dict(engine.api.info()), dict(engine.api.version())
    except OhsandboxError as error:
        return [Check("engine", "fail", str(error))]
    finally:
        engine.close()
    return judge(engine, info, version)


def judge(engine: Engine, info: dict[str, Any], version: dict[str, Any]) -> list[Check]:
    """Return the checks on an engine's info and version; pure except for reading the socket file's mode."""
    security = [str(option) for option in info.get("SecurityOptions") or []]
    return [
        _engine(engine, version),
        Check("api", "ok", f"{version.get('ApiVersion', '?')}, used {engine.api_version}"),
        _runc(version),
        _architecture(info),
        _users(security),
        _seccomp(security),
        _cgroup(info),
        _storage(info),
        *_disk(engine, info),
        _runtimes(info),
        _socket(engine),
        _limits(info),
        *_warnings(info),
    ]


def _engine(engine: Engine, version: dict[str, Any]) -> Check:
    text = f"{version.get('Version', '?')} at {engine.address}"
    if _numbers(str(version.get("Version", ""))) < (SAFE_ENGINE_MAJOR,):
        return Check("engine", "warn", text, "upgrade the engine: this release is no longer maintained")
    return Check("engine", "ok", text)


def _runc(version: dict[str, Any]) -> Check:
    found = next((c for c in version.get("Components") or [] if str(c.get("Name")) == "runc"), None)
    if found is None:
        return Check("runc", "ok", "not reported")
    text = str(found.get("Version", "?"))
    if runc_is_safe(text):
        return Check("runc", "ok", text)
    return Check(
        "runc",
        "warn",
        f"{text} has known escapes (CVE-2025-31133, -52565, -52881), unless your distribution patched it",
        "upgrade to runc 1.2.8, 1.3.3, 1.4.0 or newer",
    )


def runc_is_safe(version: str) -> bool:
    """Whether the release is at or after the first fixed one of its branch."""
    numbers = _numbers(version)
    branch = next((safe for safe in SAFE_RUNC if safe[:2] == numbers[:2]), None)
    return numbers >= branch if branch else numbers > SAFE_RUNC[-1]


def _architecture(info: dict[str, Any]) -> Check:
    text = f"{info.get('OSType', '?')}/{info.get('Architecture', '?')}, {info.get('NCPU', '?')} processors"
    if info.get("OSType") not in {None, "linux"}:
        return Check("platform", "fail", text, "switch the engine to Linux containers")
    same = info.get("Architecture") == platform.machine()
    return Check("platform", "ok", text if same else f"{text} (this machine: {platform.machine()})")


def _users(security: list[str]) -> Check:
    if any("rootless" in option for option in security):
        return Check("users", "ok", "rootless engine: root in a sandbox is an ordinary user of the host")
    if any("userns" in option for option in security):
        return Check("users", "ok", "userns-remap: root in a sandbox is nobody on the host; workspace= is not possible")
    return Check(
        "users",
        "warn",
        "the engine runs as root and does not remap users",
        "consider a rootless engine, or userns-remap where workspace= is not needed",
    )


def _seccomp(security: list[str]) -> Check:
    if any("seccomp" in option for option in security):
        return Check("seccomp", "ok", "supported; sandboxes use ohsandbox's own filter")
    return Check(
        "seccomp",
        "fail",
        "not supported by this kernel or engine: sandboxes refuse to start",
        "enable CONFIG_SECCOMP_FILTER",
    )


def _cgroup(info: dict[str, Any]) -> Check:
    text = f"version {info.get('CgroupVersion', '1')}, driver {info.get('CgroupDriver', '?')}"
    missing = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota") if info.get(name) is False]
    if missing or info.get("CgroupDriver") == "none":
        lacks = f"; not enforced here: {', '.join(missing) or 'any limit'}"
        return Check("cgroup", "warn", text + lacks, "delegate the controllers (rootless), or boot with swapaccount=1")
    return Check("cgroup", "ok", text)


def _storage(info: dict[str, Any]) -> Check:
    driver = str(info.get("Driver", "?"))
    backing = next((str(v) for k, v in info.get("DriverStatus") or [] if k == "Backing Filesystem"), "?")
    text = f"{driver} on {backing}"
    if driver in {"btrfs", "zfs"}:
        return Check("storage", "ok", f"{text}: Limits(disk_bytes=...) works")
    if driver.startswith("overlay") and backing == "xfs":
        return Check("storage", "ok", f"{text}: Limits(disk_bytes=...) works if it is mounted with pquota")
    return Check(
        "storage",
        "warn",
        f"{text}: Limits(disk_bytes=...) cannot bound what a sandbox takes; what writes below the floor is killed",
        "keep the engine's data on xfs mounted with pquota",
    )


def _disk(engine: Engine, info: dict[str, Any]) -> list[Check]:
    """Check the free space of the engine's data directory; empty if it is not on this machine."""
    where = engine.address.is_local and disk.reachable(str(info.get("DockerRootDir") or ""))
    if not where:
        return []
    found = disk_space.space(where)
    if (short := disk_space.shortage(found, None)) is not None:
        return [
            Check("disk", "fail", f"it {short}: sandboxes refuse to start", "`docker system df` shows what is held")
        ]
    return [Check("disk", "ok", f"{found.free_bytes / 1024**3:.1f} GiB free of {found.total_bytes / 1024**3:.0f} GiB")]


def _runtimes(info: dict[str, Any]) -> Check:
    names = sorted(info.get("Runtimes") or {})
    strong = [name for name in names if re.search(r"runsc|kata|gvisor", name)]
    if strong:
        return Check("runtimes", "ok", f"{', '.join(names)}; stronger isolation with runtime={strong[0]!r}")
    return Check(
        "runtimes", "ok", f"{', '.join(names)}: sandboxes share the kernel", "install gVisor (runsc) for hostile code"
    )


def _socket(engine: Engine) -> Check:
    mode = socket_mode(engine.address)
    if mode is None:
        secure = engine.address.tls or "ssh://" in engine.address.url or "unix://" in engine.address.url
        if secure:
            return Check("socket", "ok", engine.address.url)
        return Check(
            "socket", "warn", f"{engine.address.url} is neither encrypted nor authenticated", "use ssh:// or TLS"
        )
    if int(mode[-1], 8) & 2:
        return Check(
            "socket", "warn", f"{mode}: every user of this machine is root through it", "chmod o-rw the socket"
        )
    return Check("socket", "ok", mode)


def _limits(info: dict[str, Any]) -> Check:
    total = int(info.get("MemTotal") or 0)
    text = f"{total / 1024**3:.1f} GiB of memory"
    if total and total < 4 * 1024**3:
        return Check(
            "memory",
            "warn",
            f"{text}: one sandbox may take 2 GiB",
            "lower Limits(memory_bytes=...), or run few at once",
        )
    return Check("memory", "ok", text)


def _warnings(info: dict[str, Any]) -> list[Check]:
    """Return the engine's own warnings, one line each."""
    return [Check("warning", "warn", str(text).removeprefix("WARNING: ")) for text in info.get("Warnings") or []]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading dotted numbers of a version: '1.1.5+ds1' is (1, 1, 5)."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
