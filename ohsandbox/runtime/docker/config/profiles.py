"""Profiles, platforms and OCI runtimes: validation, and their effect on a container."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ohsandbox.arguments import wrong
from ohsandbox.errors import UsageError
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.mounts.mount_policy import is_root

if TYPE_CHECKING:
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine

_STRICT_USER = "1000:1000"
"""User of a `strict` sandbox if neither the image nor the caller names another user than root: most images that have an
ordinary user give it this id."""
_PLATFORM = re.compile(r"(?:linux/)?([a-z0-9_]{1,20})(/v[0-9])?")
_OWN_KERNEL = re.compile(r"runsc|gvisor|kata|firecracker|krun", re.IGNORECASE)
"""Matches name, path or type of an OCI runtime that gives each sandbox a kernel of its own."""


def checked_platform(platform: str) -> str:
    """Return the platform with its operating system, which must be Linux.

    Raises:
        UsageError: the text is not a Linux platform.
    """
    match = _PLATFORM.fullmatch(platform)
    if match is None:
        raise wrong("platform", platform, "Give one such as 'linux/amd64' or 'linux/arm64'.")
    return f"linux/{match[1]}{match[2] or ''}"


def check(found: DockerOptions) -> None:
    """Refuse a profile, platform or cache that contradicts other options.

    Raises:
        UsageError: an option would weaken `strict`; root of a `trusted` sandbox would have rights on this machine; the
            binds are not those of `mapped` or `contained`; platform and build are both given; a cache is given with
            disk_bytes; or the cache of a project has no directory.
    """
    if found.platform is not None and found.build is not None:
        raise UsageError("build= makes an image for the engine's platform. Leave out platform=, or pass image=.")
    if found.profile == "mapped" and not found.writable:
        raise UsageError("profile='mapped' needs a directory. Pass workspace=DIR.")
    if found.profile == "contained" and found.writable:
        raise UsageError(
            "profile='contained' binds no directory to be written. Leave out workspace=, or pass copy=True."
        )
    if found.profile == "trusted" and found.writable:
        raise UsageError(
            "profile='trusted' gives root in the sandbox rights that on a bound directory are rights on this machine "
            "(setuid files, owners). Work on a copy (--copy, copy=True), or leave out profile=."
        )
    if found.cache is not None and found.limits.disk_bytes is not None:
        raise UsageError("cache= lies outside of what disk_bytes (--disk) bounds. Leave one out, as --no-cache does.")
    if found.cache == "project" and found.workspace is None and found.copy_of is None:
        raise UsageError("cache='project' needs a directory. Pass workspace=DIR, or a name of its own.")
    if found.profile != "strict":
        return
    wide = {
        "user='root'": is_root(found.user or _STRICT_USER),
        "gpus=": found.gpus,
        "cache=": found.cache,
        "copy= (the copy would be in no checkpoint)": found.copy_of,
    }
    if option := next((name for name, value in wide.items() if value), None):
        raise UsageError(f"profile='strict' and {option} exclude each other. Leave one out.")


def ordinary_user(asked: DockerOptions, user: str, engine: Engine, *, is_bound: bool) -> str:
    """Return the user of a strict sandbox: not root, except for a bound directory with a rootless engine.

    Raises:
        UsageError: the bound directory belongs to root.
    """
    if not is_root(user):
        return user
    if not is_bound:
        return _STRICT_USER
    with engine_errors("asking the engine how it maps users"):
        is_rootless = "name=rootless" in " ".join(engine.api.info().get("SecurityOptions") or [])
    if is_rootless:  # uid 0 of a rootless engine is the caller, without capabilities
        return user
    raise UsageError(
        f"profile='strict' has no process of root's, and {asked.writable[0]!r} belongs to root. "
        "Give the directory to an ordinary user, or name one with user=."
    )


def oci_runtime(name: str, engine: Engine) -> dict[str, Any]:
    """Return the fields of `ContainerConfig` that describe an OCI runtime; empty for the engine's default.

    Raises:
        UsageError: the engine has no such runtime.
    """
    if not name:
        return {}
    with engine_errors("asking the engine for its OCI runtimes"):
        info = engine.api.info()
    runtimes: dict[str, Any] = info.get("Runtimes") or {}
    if name not in runtimes:
        there = ", ".join(sorted(runtimes)) or "none"
        raise UsageError(
            f"The engine has no OCI runtime {name!r}; it has: {there}. "
            "Register it in the engine's daemon.json, or leave --oci-runtime (runtime=) out."
        )
    return {
        "runtime": name,
        "own_kernel": bool(_OWN_KERNEL.search(f"{name} {runtimes[name]}")),
        "engine_kernel": str(info.get("KernelVersion") or ""),
        "engine_memory_bytes": int(info.get("MemTotal") or 0),
    }
