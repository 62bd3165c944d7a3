"""Caches of package tools: an engine volume per project, image and user, mounted at CACHE_DIR in their sandboxes.

Files that a sandbox leaves in its cache run in the next sandbox that mounts it: tools do not verify what they have
unpacked before. Therefore only sandboxes that could change each other's files anyway share a cache. The volume's name
is a keyed hash of everything that they must have in common; no option, image or file of a sandbox can name the cache of
another.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import time
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import SandboxRefused, UsageError
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import locked, read_regular, write_atomically
from ohsandbox.runtime.docker.engine.error_mapping import engine_errors
from ohsandbox.runtime.docker.mounts.mount_policy import is_root
from ohsandbox.runtime.inventory import CacheInfo, removal
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ohsandbox.runtime.docker.config.container_config import ContainerConfig
    from ohsandbox.runtime.docker.config.options import DockerOptions
    from ohsandbox.runtime.docker.engine.connection import Engine
    from ohsandbox.runtime.inventory import GcResult

CACHE_DIR = "/var/cache/ohsandbox"
"""Mount point of the volume with the caches of package tools."""
PROJECT = "project"
"""The cache of the directory in which the sandbox works; any other word is the name of a cache."""
ENVIRONMENT = {
    "PIP_CACHE_DIR": f"{CACHE_DIR}/pip",
    "UV_CACHE_DIR": f"{CACHE_DIR}/uv",
    "UV_LINK_MODE": "copy",
    "NPM_CONFIG_CACHE": f"{CACHE_DIR}/npm",
}
"""uv warns in each command if it cannot create hard links, for example from another file system. apt gets a
configuration file and cargo (whose variable would also move its programs) gets links in its directory: see SET_UP."""
SET_UP = """
cache=$1 apt=$2 bundle=$3 home=${4:-$HOME} own=${2%/*}/apt-archives
umask 0
cd "$cache" || exit
for one in pip uv npm apt cargo-registry cargo-git; do mkdir "$one" 2>/dev/null || :; done
for one in registry git; do
    [ -e "${CARGO_HOME:-$home/.cargo}/$one" ] && continue
    mkdir -p "${CARGO_HOME:-$home/.cargo}" && ln -s "$cache/cargo-$one" "${CARGO_HOME:-$home/.cargo}/$one"
done 2>/dev/null
umask 022
command -v apt-get >/dev/null || exit 0
share="sh $apt.share $cache $own"
mkdir -p "$own/partial" && printf %s "$5" >"$apt.share" && {
    [ -z "$bundle" ] || echo "Acquire::https::CaInfo \\"$bundle\\";"
    echo "Dir::Cache::Archives \\"$own\\"; APT::Keep-Downloaded-Packages \\"true\\";"
    echo "Binary::apt::APT::Keep-Downloaded-Packages \\"true\\"; DPkg::Pre-Install-Pkgs { \\"$share\\"; };"
    echo "DPkg::Post-Invoke { \\"$share </dev/null\\"; }; APT::Update::Post-Invoke { \\"$share </dev/null\\"; };"
} >"$apt" && $share </dev/null
"""
"""Runs as root in the sandbox. mkdir creates a directory or fails: what an earlier sandbox left in its place, even a
link, is neither followed nor changed."""
SHARE_APT = """
{
cd "$1/apt" && [ "$(pwd -P)" = "$(cd "$1" && pwd -P)/apt" ] || exit 0
while read -r one; do
    [ -L "$one" ] || { new=$(mktemp ./XXXXXXXX) && cp "$one" "$new" && chmod 644 "$new" && mv "$new" "${one##*/}"; }
done
ln -sf "$1"/apt/*.deb "$2"
rm -f "$2/*.deb"
exit 0
} 2>/dev/null
"""
"""Called by apt with the packages that it is about to install on standard input, and after its other steps with empty
input. apt locks its download directory and fails if it is locked (2.6). So each sandbox has its own directory, with
links to the cached packages; packages that it downloads are copied to the cache. If the cache is empty, `ln` makes a
link of the pattern itself, which is removed."""
UNUSED_S = 30 * 24 * 3600.0
"""Seconds after which `gc` removes an unused cache: refilling it costs minutes, and keeping it costs a few GiB."""
_PREFIX = "ohsandbox-cache-"
_LABEL = "ohsandbox.cache"
_STATE_LABEL = "ohsandbox.cache-state"
"""Label with the state directory that owns a volume, as the JSON of `_State`."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_KEY_NAME = "key"
_RECORD_SUFFIX = ".json"


class CacheRecord(BaseModel):
    """Our record of a volume; the file's modification time is when a sandbox last mounted it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    volume: str
    engine: str
    scope: str
    """Path of a directory, or the name of a cache."""
    is_project: bool
    image: str
    user: str


class _State(NamedTuple):
    """The state directory that owns a volume; it holds the volume's record."""

    uid: int
    host: str
    home: str
    key: str
    """Hash of the state directory's secret key; it tells a recreated directory of the same name apart."""

    @classmethod
    def here(cls) -> Self:
        return cls(os.getuid(), socket.gethostname(), str(subdirectory("caches").parent.resolve()), _digest(_key()))

    @property
    def is_lost(self) -> bool:
        """Whether the state directory was this user's on this machine, and cannot be found or was recreated."""
        if (self.uid, self.host) != (os.getuid(), socket.gethostname()):
            return False
        try:
            return _digest(read_regular(Path(self.home) / "caches" / _KEY_NAME)) != self.key
        except OSError:
            return True


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def check(name: str | None) -> None:
    """Refuse an invalid cache name.

    Raises:
        UsageError: name is not a valid name of a cache.
    """
    if name is not None and (not _NAME.fullmatch(name) or name == "none"):
        raise UsageError(
            f"{name!r} is not a cache's name. Use 'project', or lower-case letters, digits, '-', '_' and '.'."
        )


def attach(engine: Engine, options: DockerOptions, config: ContainerConfig) -> ContainerConfig:
    """Return the configuration with the volume of the options' cache, which is created if missing.

    Raises:
        SandboxRefused: a volume of that name exists with another driver, or with options.
        UsageError: the OCI runtime gives sandboxes a kernel of their own.
        SandboxUnavailable: the engine cannot create the volume.
    """
    if options.cache is None:
        return config
    if config.own_kernel:
        raise UsageError(
            f"OCI runtime {config.runtime!r} has a kernel of its own, which may fail to write to a volume (gVisor "
            "20221219: EINVAL), so it cannot have package caches. Leave --cache (cache=) out."
        )
    record = _record(engine, options, config)
    write_atomically(_path(record.volume), record.model_dump_json().encode(), durable=False)
    with engine_errors(f"making the package cache {record.volume}"):
        labels = {_LABEL: "1", _STATE_LABEL: json.dumps(_State.here())}
        volume = engine.api.create_volume(record.volume, driver="local", labels=labels)
    if volume.get("Driver") != "local" or volume.get("Options"):
        raise SandboxRefused(
            f"Volume {record.volume} leads elsewhere ({volume.get('Driver')}, {volume.get('Options')}), and is not our "
            f"cache. Run `docker volume rm {record.volume}`, or use --no-cache."
        )
    return config.model_copy(update={"cache_volume": record.volume})


def _record(engine: Engine, options: DockerOptions, config: ContainerConfig) -> CacheRecord:
    """Return the record whose volume name covers everything that the volume's sandboxes must have in common."""
    project = options.workspace or options.copy_of
    is_project = options.cache == PROJECT and project is not None
    scope = str(project) if is_project else str(options.cache)
    build = options.build
    image = options.image if build is None else f"{build.context}/{build.dockerfile} {build.target or ''}".rstrip()
    user = "0" if is_root(config.user) else config.user
    # a directory that was removed and recreated may be another project
    inode = Path(scope).stat().st_ino if is_project else 0
    parts = (os.getuid(), is_project, scope, inode, image, config.architecture, user, options.hardening)
    digest = hmac.new(_key(), repr(parts).encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
    volume = _PREFIX + digest[:32]
    return CacheRecord(
        volume=volume, engine=engine.address.url, scope=scope, is_project=is_project, image=image, user=user
    )


def _key() -> bytes:
    """Return a secret of this state directory: on an engine shared by machines, paths and user ids may coincide.

    Raises:
        UsageError: its file cannot be read or written.
    """
    path = subdirectory("caches") / _KEY_NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            return read_regular(path)
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                write_atomically(path, secrets.token_bytes(32))
        return read_regular(path)
    except OSError as error:
        raise UsageError(f"The caches' key {str(path)!r} cannot be used: {error.strerror}. Move it away.") from None


def _path(volume: str) -> Path:
    return subdirectory("caches") / (volume + _RECORD_SUFFIX)


def volume_of(found: Mapping[str, Any]) -> str:
    """Return the volume at CACHE_DIR in the engine's description of a container; empty without one."""
    mounts = found.get("Mounts") or []
    return next((str(mount.get("Name")) for mount in mounts if mount.get("Destination") == CACHE_DIR), "")


# --- listing and removing ------------------------------------------------------------------------------


def _records(engine: Engine) -> Iterator[tuple[CacheRecord, float]]:
    """Yield our caches in this engine, each with the time when a sandbox last mounted it."""
    for path in sorted(subdirectory("caches").glob(f"{_PREFIX}*{_RECORD_SUFFIX}")):
        with contextlib.suppress(OSError, ValidationError):
            record, used_at = CacheRecord.model_validate_json(read_regular(path)), path.stat().st_mtime
            if record.engine == engine.address.url and path == _path(record.volume):
                yield record, used_at


def _orphans(engine: Engine) -> dict[str, _State]:
    """Return the volumes whose state directory, one of this user's, cannot be found."""
    with engine_errors("listing the package caches"):
        listed = engine.api.volumes(filters={"label": _STATE_LABEL}).get("Volumes") or []
    states = {}
    for one in listed:
        with contextlib.suppress(ValueError, TypeError):
            state = _State(*load_json((one.get("Labels") or {})[_STATE_LABEL]))
            if state.is_lost and str(one["Name"]).startswith(_PREFIX):
                states[str(one["Name"])] = state
    return states


def infos(engine: Engine) -> list[CacheInfo]:
    """Return our caches in this engine, the largest first; for this the engine measures all its volumes and images."""
    records = {record.volume: (record, datetime.fromtimestamp(at, UTC)) for record, at in _records(engine)}
    found = []
    for one in _measured(engine, records):
        record, used_at = records[str(one["Name"])]
        found.append(_info(one, record.scope, used_at, image=record.image, user=record.user))
    return sorted(found, key=lambda one: -one.size_bytes)


def orphan_infos(engine: Engine) -> list[CacheInfo]:
    """Return the caches whose state directory cannot be found, as their labels describe them."""
    orphans = _orphans(engine)
    return [
        _info(one, f"state directory {orphans[one['Name']].home!r}", datetime.fromisoformat(one["CreatedAt"]))
        for one in _measured(engine, orphans)
    ]


def _measured(engine: Engine, wanted: Collection[str]) -> list[Mapping[str, Any]]:
    if not wanted:
        return []
    with engine_errors("measuring the package caches"):
        return [one for one in engine.api.df().get("Volumes") or [] if one.get("Name") in wanted]


def _info(volume: Mapping[str, Any], scope: str, used_at: datetime, *, image: str = "", user: str = "") -> CacheInfo:
    usage = volume.get("UsageData") or {}
    size_bytes, in_use = int(usage.get("Size") or 0), int(usage.get("RefCount") or 0) > 0
    return CacheInfo(str(volume["Name"]), scope, image, user, size_bytes, used_at, in_use)


def remove(engine: Engine, volume: str) -> bool:
    """Remove one of our caches; return False if a container uses it.

    Raises:
        UsageError: the volume is not ours.
        SandboxUnavailable: the engine failed.
    """
    from docker.errors import APIError, NotFound  # noqa: PLC0415 - slow import, needed only with an engine

    if volume not in {record.volume for record, _ in _records(engine)} | _orphans(engine).keys():
        raise UsageError(f"{volume!r} is not a cache of yours. Choose one that `ohsandbox cache list` shows.")
    with engine_errors(f"removing the package cache {volume}"):
        try:
            engine.api.remove_volume(volume)
        except NotFound:
            pass
        except APIError as error:
            if error.status_code == HTTPStatus.CONFLICT:
                return False
            raise
    _path(volume).unlink(missing_ok=True)
    return True


def unused(engine: Engine) -> list[tuple[str, str]]:
    """Return the volumes that `collect` removes unless a container uses them, each with the reason."""
    now = time.time()
    found = []
    for record, used_at in _records(engine):
        if now - used_at > UNUSED_S:
            found.append((record.volume, f"no sandbox had it for {UNUSED_S / 86400:.0f} days"))
    return found


def collect(engine: Engine) -> list[GcResult]:
    """Remove caches that are no longer needed."""
    found = unused(engine)
    return [one for volume, why in found for one in removal(volume, volume, why, partial(remove, engine, volume))]
