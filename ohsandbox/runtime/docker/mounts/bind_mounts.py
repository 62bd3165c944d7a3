"""Files and directories of this machine in a sandbox: the rules for sources and targets, and checks of the mounts.

A path is resolved once, and the result is vetted (`mount_policy`). The engine resolves it again when it starts the
container. Therefore the file in the container is compared with the vetted one (`verify_identity`).
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.arguments import expect_path, wrong
from ohsandbox.errors import SandboxRefused, UsageError
from ohsandbox.runtime.docker.mounts import mount_policy
from ohsandbox.runtime.docker.mounts.guard_mounts import Git, GuardMount, HardLinks, LinkedFile  # noqa: TC001 - pydantic reads annotations at run time
from ohsandbox.runtime.mount_text import (
    MORE_WORKSPACES,
    Mount,
    moved_places,
    parse_path,
    place_of_workspace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ohsandbox.runtime.results import PullProgress

_MAX_BINDS = 64
_MAX_WALKS = 3
"""Another sandbox that starts in the same directory, or a package tool, may replace files while they are looked at."""
_NO_TARGETS = (
    "/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/bin",
    "/usr/local/sbin", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/hosts", "/etc/hostname",
    "/etc/resolv.conf", "/etc/mtab", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.cache", "/etc/pam.d",
    "/etc/sudoers", "/etc/sudoers.d", "/etc/security", "/.dockerenv", "/usr/local/share/ohsandbox-ca.pem",
    "/usr/local/share/ohsandbox-ca.pem.wgetrc", "/usr/local/share/ohsandbox-ca.pem.apt",
)  # fmt: skip
"""Targets that are refused, with everything below them and every directory that contains one: the kernel, the engine
and ohsandbox use them."""
_NOT_WHOLE = ("/home/ohsandbox", "/tmp", "/var/tmp", "/root", "/opt/ohsandbox", MORE_WORKSPACES)  # noqa: S108
"""Targets that are refused, with every directory that contains one; a target below them is allowed."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f:]")
_ELSEWHERE = "Name another directory, such as /data or one below /workspaces or /mnt."


class Bind(NamedTuple):
    """A vetted mount, with the nested mounts that protect its contents."""

    source: str
    """The real path on this machine."""
    target: str
    read_only: bool = False
    guard: tuple[GuardMount, ...] = ()
    """The nested mounts; their paths are below target."""
    inode: int = 0
    """Inode of source when it was vetted; 0: unknown."""
    hard_links: str = ""
    """A line for a person: which files have, or had until now, names outside of what is bound."""


# --- arguments of the caller --------------------------------------------------------------------------


def asked_workspaces(given: object, *, same_path: bool) -> list[Mount]:
    """Return the workspaces of an argument: a path, a text such as "DIR:ro", a `Mount`, or a sequence of them.

    Raises:
        UsageError: the argument is of another type, a path cannot be resolved, or two workspaces would have the same
            path in the sandbox.
    """
    several = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
    found_mounts: list[Mount] = []
    for workspace in several:
        if isinstance(workspace, Mount):
            found_mounts.append(workspace)
            continue
        expect_path("workspace", workspace)
        path, read_only = parse_path(str(workspace))
        try:
            real = str(Path(path).expanduser().resolve())
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"The workspace {path!r} cannot be used: {error}. Name a directory.") from error
        target = place_of_workspace(real, is_first=not found_mounts, same_path=same_path)
        found_mounts.append(Mount(source=path, target=target, read_only=read_only))
    counts = Counter(mount.target for mount in found_mounts)
    if twice := [mount.source for mount in found_mounts if counts[mount.target] > 1]:
        raise UsageError(
            f"The workspaces {' and '.join(map(repr, twice))} would both be at {found_mounts[-1].target!r}. Use "
            "--same-path (same_path=True), or in Python Mount(source=..., target=...) with a place of its own."
        )
    return found_mounts


def moved(workspaces: Sequence[Mount], directory: Path | Mapping[str, Path] | None) -> list[Mount]:
    """Return the workspaces with each writable one moved to another directory, or, of several, below it.

    A mapping gives a directory for each path in the sandbox.

    Raises:
        UsageError: the mapping's paths are not those of the writable workspaces.
    """
    writable = [mount for mount in workspaces if not mount.read_only]
    if directory is None or not writable:
        return list(workspaces)
    targets = [mount.target for mount in writable]
    places = directory if isinstance(directory, Mapping) else moved_places(targets, directory)
    if {*places} != {*targets}:
        raise UsageError(
            f"Workspaces were kept for {sorted(places)}, and are at {sorted(targets)}. Resume with the same."
        )
    return [
        mount if mount.read_only else mount.model_copy(update={"source": str(places[mount.target])})
        for mount in workspaces
    ]  # fmt: skip


def copied_directory(workspaces: Sequence[Mount]) -> str:
    """Return the only workspace, which is to be copied.

    Raises:
        UsageError: there is no workspace, or more than one.
    """
    if len(workspaces) != 1:
        which = "needs a directory to copy" if not workspaces else f"copies one directory, not {len(workspaces)}"
        raise UsageError(f'copy= {which}. Pass workspace=DIR, and others as mounts=["DIR:/place:ro"].')
    return workspaces[0].source


def asked_mounts(given: object) -> list[Mount]:
    """Return the mounts of an argument: a sequence of texts and of `Mount`.

    Raises:
        UsageError: the argument is not such a sequence.
    """
    if given is None:
        return []
    if not isinstance(given, list | tuple) or not all(isinstance(mount, str | Mount) for mount in given):
        raise wrong("mounts", given, 'Give a list of "SOURCE:TARGET[:ro]" and Mount(...).')
    return [mount if isinstance(mount, Mount) else Mount.parse(mount) for mount in given]


def vetted(workspaces: Sequence[Mount], mounts: Sequence[Mount], *, taken: Sequence[str] = ()) -> list[list[Mount]]:
    """Return both lists with real paths, after vetting each. taken are paths that the sandbox uses already.

    Raises:
        UsageError: a source may not be bound, a target is refused, two overlap, or there are more than 64.
    """
    if len(workspaces) + len(mounts) > _MAX_BINDS:
        raise UsageError(f"At most {_MAX_BINDS} mounts and workspaces. Mount a directory that holds several.")
    real = [
        [
            mount.model_copy(update={"source": _vetted_source(mount, what), "target": _checked_target(mount)})
            for mount in mounts_of_kind
        ]
        for mounts_of_kind, what in ((workspaces, "workspace"), (mounts, "mount"))
    ]  # fmt: skip
    _refuse_overlaps([*real[0], *real[1]], taken)
    return real


def _vetted_source(mount: Mount, kind: str = "mount") -> str:
    """Return the real path of a mount's source.

    Raises:
        UsageError: the source may not be bound.
    """
    may_be_file = kind == "mount" and mount.read_only
    return mount_policy.check_path(mount.source, what=kind, read_only=mount.read_only, may_be_file=may_be_file)


def _checked_target(mount: Mount) -> str:
    """Return the target in normal form.

    Raises:
        UsageError: the target is refused.
    """
    target = mount.target

    def refused(why: str, remedy: str = _ELSEWHERE) -> UsageError:
        return UsageError(f"{mount.source!r} cannot be mounted at {target!r}: {why}. {remedy}")

    if not target.startswith("/") or ".." in target.split("/"):
        raise refused("it is not an absolute path without '..'")
    if _CONTROL.search(target) or not target.isprintable():
        raise refused("a colon or a control character is in it", "Choose another name for it.")
    normal = "/" + "/".join(part for part in target.split("/") if part not in {"", "."})
    if reserved := next((reserved for reserved in _NO_TARGETS if _nested(normal, reserved)), None):
        raise refused(f"{reserved} belongs to the sandbox's system")
    if reserved := next((reserved for reserved in _NOT_WHOLE if _is_below(reserved, normal)), None):
        raise refused(f"{reserved} is needed as it is")
    return normal


def _is_below(path: str, directory: str) -> bool:
    """Whether path is directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _nested(path: str, other: str) -> bool:
    return _is_below(path, other) or _is_below(other, path)


def _refuse_overlaps(mounts: Sequence[Mount], taken: Sequence[str]) -> None:
    """Refuse a mount inside another one, in the sandbox or here: a second path to a file would evade its guard."""
    for reserved, mount in ((place, one) for place in taken for one in mounts):
        if _nested(reserved, mount.target):
            raise UsageError(
                f"{mount.source!r} cannot be mounted at {mount.target!r}: {reserved} is used. {_ELSEWHERE}"
            )
    above = [{_identity(path) for path in (Path(mount.source), *Path(mount.source).parents)} for mount in mounts]
    own = [_identity(Path(mount.source)) for mount in mounts]
    for index, mount in enumerate(mounts):
        for other_index, other in enumerate(mounts[:index]):
            if _nested(mount.target, other.target):
                raise UsageError(
                    f"{mount.source!r} cannot be mounted at {mount.target!r}: {other.source!r} is at {other.target!r}. "
                    f"{_ELSEWHERE}"
                )
            if own[index] in above[other_index] or own[other_index] in above[index]:
                raise UsageError(
                    f"{mount.source!r} and {other.source!r} are one directory, or one lies in the other: what protects "
                    "the one would not hold in the other. Name the outer one only."
                )


def _identity(path: Path) -> tuple[int, int]:
    """Return device and inode: bind mounts and case-insensitive file systems give one directory two paths."""
    try:
        stats = path.stat()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be used: {error.strerror}. Name another.") from error
    return stats.st_dev, stats.st_ino


# --- binds -------------------------------------------------------------------------------------------


def binds_of(
    mounts: Iterable[Mount],
    git: Git,
    hard_links: HardLinks = "separate",
    *,
    free_bytes: int | None = None,
    progress: Callable[[PullProgress], None] | None = None,
) -> tuple[Bind, ...]:
    """Return the binds, with nested mounts for their present contents; creates missing mount sources.

    Files of writable mounts that have names outside of them get copies in their place, unless hard_links keeps them.
    free_bytes is what must stay free on the disk then; progress is called while they are made.

    Raises:
        UsageError: a source was replaced by a link or another type of file since it was vetted, or cannot be guarded;
            or a file cannot be separated from its names outside.
    """
    mounts, lines = tuple(mounts), dict[str, str]()
    changed: list[str] = []
    for _ in range(_MAX_WALKS):
        linked: list[LinkedFile] = []
        binds = tuple(
            Bind(
                mount.source,
                mount.target,
                mount.read_only,
                _guard_of(mount, git, mounts, linked),
                inode_of(mount.source),
            )
            for mount in mounts
        )
        if linked:
            from ohsandbox.runtime.docker.mounts import hard_links as links  # noqa: PLC0415 - few workspaces have any

            if hard_links == "keep":
                lines = links.describe_kept(linked) | lines
                linked = links.with_guarded_names(linked)
            separated, changed = links.separate(linked, free_bytes=free_bytes, progress=progress)
            lines = separated | lines
        if not (linked and changed):
            return tuple(bind._replace(hard_links=lines.get(bind.source, "")) for bind in binds)
    raise UsageError(
        f"{changed[0]!r} has names outside of what is bound, and changes while it is separated from them.",
        remedy="End what changes it, and try again.",
    )


def _guard_of(mount: Mount, git: Git, mounts: Sequence[Mount], linked: list[LinkedFile]) -> tuple[GuardMount, ...]:
    from ohsandbox.runtime.docker.mounts import guard  # noqa: PLC0415 - only a bound directory is guarded

    if not mount.read_only:
        beside = [other.source for other in mounts if other is not mount]
        return guard.guard(mount.source, git, beside=beside, linked=linked)
    return guard.hide_ways_out(mount.source) if Path(mount.source).is_dir() else ()


def inode_of(source: str) -> int:
    """Return the inode of a real path, after checking that no part of it has become a link.

    Raises:
        UsageError: a part has become a link, or the path is gone.
    """
    descriptor, why = os.open("/", os.O_RDONLY | os.O_DIRECTORY), ""
    try:
        for part in PurePosixPath(source).parts[1:]:
            inner = os.open(part, getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            if stat.S_ISLNK(os.fstat(inner).st_mode):
                why = f"{part!r} is a link now"
                break
        else:
            return os.fstat(descriptor).st_ino
    except OSError as error:
        why = str(error.strerror)
    finally:
        os.close(descriptor)
    raise UsageError(f"{source!r} is not what was looked at any more: {why}. End what changes it, and try again.")


def verify_identity(binds: Sequence[Bind], listed: str) -> None:
    """Compare what is mounted with what was vetted; listed is the output of `ls -di` for the targets.

    `?` stands for a target that is not mounted, which the self-check refuses.

    Raises:
        SandboxRefused: another file is mounted, because a name was replaced meanwhile.
    """
    inodes = [line.split(maxsplit=1)[0] for line in listed.splitlines() if line.strip()]
    for index, bind in enumerate(binds if inodes else ()):  # empty for an image without `ls`
        if bind.inode and (index >= len(inodes) or inodes[index] not in {str(bind.inode), "?"}):
            raise SandboxRefused(
                f"{bind.target} in the sandbox is not {bind.source!r} as it was looked at: something replaced it "
                "meanwhile. End what changes that directory, and try again."
            )
