"""The container in which ohsandbox itself runs, if any.

The engine creates sandboxes beside this container, not in it. So the sources of their binds must be paths on the
engine's machine.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.runtime.docker.engine.connection import Engine

_MOUNTINFO = Path("/proc/self/mountinfo")
_OWN_FILE = re.compile(r"/([0-9a-f]{64})/(?:userdata/)?(?:hostname|hosts|resolv\.conf)")
"""Files that Docker and Podman bind into each container, from a directory named by the container's id."""


class OwnMount(NamedTuple):
    """A mount of the container in which we run."""

    place: str
    source: str
    """Path of the source on the engine's machine; empty if it has none, as a tmpfs."""
    is_volume: bool = False


@functools.cache
def own_id() -> str | None:
    """Return the id of the container in which this process runs; None outside Docker and Podman containers."""
    try:
        lines = _MOUNTINFO.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return id_in(lines)


def id_in(lines: list[str]) -> str | None:
    """Return the container id found in the lines of a /proc/PID/mountinfo; None without one."""
    for fields in (line.split() for line in lines):
        if len(fields) > 4 and fields[4] in {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}:  # noqa: PLR2004
            match = _OWN_FILE.search(fields[3])
            if match:
                return match[1]
    return None


def own_mounts(engine: Engine) -> tuple[OwnMount, ...] | None:
    """Return the mounts of our container; None if this process runs in none, or the engine does not know it."""
    if (own := own_id()) is None:
        return None
    if engine.own_mounts is None:
        try:
            with engine_errors("asking the engine for our own container"):
                inspected = engine.api.inspect_container(own)
        except OhsandboxError:
            return None
        engine.own_mounts = mounts_in(inspected)
    return engine.own_mounts


def mounts_in(found: Mapping[str, Any]) -> tuple[OwnMount, ...]:
    """Return the mounts of an inspected container, nested ones before those that contain them."""
    mounts = []
    for mount in found.get("Mounts") or []:
        kind, source = mount.get("Type"), str(mount.get("Source") or "")
        mounts.append(
            OwnMount(str(mount["Destination"]), source if kind in {"bind", "volume"} else "", kind == "volume")
        )
    mounts += [OwnMount(target, "") for target in (found.get("HostConfig") or {}).get("Tmpfs") or {}]
    return tuple(sorted(mounts, key=lambda mount: -len(PurePosixPath(mount.place).parts)))


def to_engine(path: str, mounts: tuple[OwnMount, ...]) -> str:
    """Translate one of our paths to the path on the engine's machine.

    Raises:
        UsageError: the path is in no mount of our container.
    """
    mount = _mount_of(path, mounts)
    return _joined(mount.source, str(PurePosixPath(path).relative_to(mount.place)))


def _mount_of(path: str, mounts: tuple[OwnMount, ...]) -> OwnMount:
    mount = next((candidate for candidate in mounts if _below(path, candidate.place) is not None), None)
    if mount is not None and mount.source:
        return mount
    raise UsageError(
        f"{path!r} is in this container only: the engine makes the sandbox beside this container, and does not see it. "
        "Start this container with `-v DIRECTORY:/workspace` and name what is below /workspace."
    )


def from_engine(path: str, mounts: tuple[OwnMount, ...]) -> str:
    """Translate a path on the engine's machine to one in our container; return it unchanged if it is not there."""
    seen = [
        (mount.place, inside) for mount in mounts if mount.source and (inside := _below(path, mount.source)) is not None
    ]
    return min((_joined(target, inside) for target, inside in seen), key=len, default=path)


def _below(path: str, directory: str) -> str | None:
    try:
        return str(PurePosixPath(path).relative_to(directory))
    except ValueError:
        return None


def _joined(directory: str, inside: str) -> str:
    return str(PurePosixPath(directory) / inside)


def for_engine(payload: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Return a create call's body with the sources of its binds translated to the engine's machine.

    Raises:
        UsageError: a source is in no mount of our container.
    """
    host = payload.get("HostConfig") or {}
    binds = host.get("Mounts")
    if not binds or (mounts := own_mounts(engine)) is None:
        return payload
    named = [_named_for_engine(bind, mounts) if bind["Type"] == "bind" else bind for bind in binds]
    return payload | {"HostConfig": host | {"Mounts": named}}


def _named_for_engine(bind: dict[str, Any], mounts: tuple[OwnMount, ...]) -> dict[str, Any]:
    """Return a bind with its source translated to the engine's machine.

    A volume's source lies in the engine's own data directory, which the engine binds only as `rslave` or `rshared`
    ("when mount source is within the daemon root", 20.10).
    """
    options = {"BindOptions": {"Propagation": "rslave"}} if _mount_of(bind["Source"], mounts).is_volume else {}
    return bind | {"Source": to_engine(bind["Source"], mounts)} | options


def as_we_name(found: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Return an inspected container with the sources of its binds translated to paths in our container."""
    binds = found.get("Mounts")
    if not binds or (mounts := own_mounts(engine)) is None:
        return found
    named = [
        mount | {"Source": from_engine(str(mount.get("Source")), mounts)} if mount.get("Type") == "bind" else mount
        for mount in binds
    ]
    return found | {"Mounts": named}
