"""The directories of ohsandbox on this machine, and opening directories without following symlinks."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory and nothing else: no symlink is followed, no FIFO is waited for."""

_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to pass through a directory that may be entered but not read (`/home` with mode 0711); macOS has no O_PATH."""

_MAX_LINKS = 40
"""Most symlinks that are followed in one path, as on Linux (path_resolution(7))."""

_SYSTEM_DIRECTORIES = frozenset({"/", "/home", "/Users", "/var", "/private", "/mnt", "/media", "/opt", "/srv"})
"""A symlink directly in one of these belongs to the system (`/tmp` on macOS, a home on another disk): none is ever
bound.
"""

STATE_VARIABLE = "OHSANDBOX_HOME"
"""The environment variable that names the state directory."""

_DEFAULT_STATE_NAME = ".ohsandbox"
"""The state directory's name below HOME where STATE_VARIABLE is not set."""

_UNKNOWN_USER = 65534
"""What owns the directories of the machine in a container with users of its own (user_namespaces(7), `overflowuid`)."""

_STALE_S = 24 * 3600.0
"""Age after which leftovers of a killed process in `staging` are removed: a day, since no transfer takes that long."""


# --- our own -----------------------------------------------------------------------------------


def state_dir(*, create: bool = False) -> Path:
    """Return the one directory of everything that ohsandbox keeps here: `$OHSANDBOX_HOME`, or `~/.ohsandbox`.

    Settings, conversations, pins of MCP servers, leases, locks, checkpoint records and staged files lie in it.

    Args:
        create: whether it is created, with mode 0700, where it is missing.

    Raises:
        UsageError: OHSANDBOX_HOME or HOME holds no absolute path, there is no home directory, other users may write
            the directory, or it cannot be created.
    """
    path = _named_state_dir()
    if create:
        _create(path)
    check_private(path)
    return path


def _named_state_dir() -> Path:
    for variable, relative in ((STATE_VARIABLE, "."), ("HOME", _DEFAULT_STATE_NAME)):
        if directory_name := os.environ.get(variable):
            if Path(directory_name).is_absolute():
                return Path(directory_name) / relative
            raise UsageError(
                f"Invalid {variable} {directory_name!r}: expected an absolute path. Set {variable} to one."
            )
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir) / _DEFAULT_STATE_NAME
    except KeyError:
        raise UsageError(
            f"HOME is not set, and user {os.getuid()} has no home directory. Set HOME or {STATE_VARIABLE}."
        ) from None


def subdirectory(name: str) -> Path:
    """Return a directory below the state directory; created with mode 0700 where it is missing.

    Raises:
        UsageError: as `state_dir`.
    """
    path = state_dir(create=True) / name
    _create(path)
    return path


def conversations_dir() -> Path:
    """Return the directory of conversations unless `persist_dir` or `--dir` says otherwise; it is not created here.

    Raises:
        UsageError: as `state_dir`.
    """
    return state_dir() / "conversations"


def _create(path: Path) -> None:
    try:
        make_private_dirs(path)
    except OSError as error:
        raise UsageError(
            f"State directory {str(path)!r} cannot be created: {error.strerror}. "
            f"Set {STATE_VARIABLE} to a directory that you may write."
        ) from error


def make_private_dirs(path: Path) -> None:
    """Create a directory and its missing parents, with mode 0700 whatever the umask.

    Raises:
        OSError: it cannot be made, or something else exists at that path.
    """
    for missing in reversed([path, *path.parents]):
        if not missing.is_dir():
            missing.mkdir(mode=0o700, exist_ok=True)
            missing.chmod(0o700)


def check_private(path: Path) -> None:
    """Pass if only we (or root) can change what is at path; a path that does not exist passes.

    The real path counts: its owner and mode, and those of every directory above it, since who may write one of them can
    put another directory of the same name in its place. Under sudo the caller's files are ours.

    Raises:
        UsageError: somebody else owns one of them, or may write it.
    """
    try:
        real = path.resolve(strict=True)
        statuses = [(directory, directory.stat()) for directory in (real, *real.parents)]
    except (OSError, RuntimeError):
        return
    for directory, status in statuses:
        _check_ours(directory, status, is_above=directory is not real)


def check_own(directory: Path) -> None:
    """Pass if we made what lies in a directory: it is ours (or root's), no symlink, and nobody else may write it.

    Raises:
        UsageError: that does not hold, or it does not exist.
    """
    try:
        status = directory.lstat()
    except OSError as error:
        raise UsageError(f"Directory {str(directory)!r} cannot be used: {error.strerror}. Name another.") from error
    _check_ours(directory, status, is_above=False)


def _check_ours(path: Path, status: os.stat_result, *, is_above: bool) -> None:
    """Check owner and mode; others may write a directory above the one in question if it is sticky, as /tmp is.

    So may a group that holds only the owner: with user-private groups and umask 002, `~/.local` has mode 0775.
    """
    if status.st_uid not in _ourselves() and not (is_above and _is_unmapped(status.st_uid)):
        raise UsageError(
            f"{str(path)!r} belongs to user {status.st_uid}, who could change what ohsandbox does. "
            f"Make it yours (`chown`), or name one of your own with {STATE_VARIABLE} or --dir."
        )
    is_fine = is_above and (status.st_mode & stat.S_ISVTX or _is_private_group(path, status))
    if status.st_mode & 0o022 and not is_fine:
        mode = "700" if not is_above and stat.S_ISDIR(status.st_mode) else "go-w"
        raise UsageError(
            f"{str(path)!r} may be written by other users (mode {stat.S_IMODE(status.st_mode):04o}), who "
            f"could change what ohsandbox does. Look at what is in it, then run `chmod {mode} {path}`."
        )


def _is_unmapped(uid: int) -> bool:
    """Whether a user id stands for those of the machine that our user namespace does not have (user_namespaces(7))."""
    try:
        return uid == _UNKNOWN_USER and Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _is_private_group(path: Path, status: os.stat_result) -> bool:
    """Whether those who may write a directory are its owner and a group of the same name that holds nobody else."""
    import grp  # noqa: PLC0415 - few directories have such a mode

    if status.st_mode & 0o002:
        return False
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    # with an ACL, the mode shows its mask in place of the group: other users may be in it (acl(5))
    attributes: list[str] = []
    with contextlib.suppress(OSError, AttributeError):  # ignored: a file system or an operating system without any
        attributes = os.listxattr(path)
    return (
        (group.gr_gid, group.gr_name) == (owner.pw_gid, owner.pw_name)
        and {owner.pw_name}.issuperset(group.gr_mem)
        and "system.posix_acl_access" not in attributes
        and all(user.pw_uid == owner.pw_uid for user in pwd.getpwall() if user.pw_gid == group.gr_gid)
    )


def _ourselves() -> set[int]:
    """The trusted user ids: root, our own, and under sudo the caller's, whose files HOME may hold."""
    caller = os.environ.get("SUDO_UID", "")
    return {0, os.geteuid()} | ({int(caller)} if os.geteuid() == 0 and caller.isdecimal() else set())


@contextlib.contextmanager
def staging() -> Iterator[Path]:
    """Create a fresh directory that no sandbox can reach: mode 0700, in the state directory, which is never bound.

    Raises:
        UsageError: it cannot be made.
    """
    staging_root = subdirectory("staging")
    for stale in staging_root.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - stale.lstat().st_mtime > _STALE_S:
                shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=staging_root, ignore_cleanup_errors=True) as fresh:
        yield Path(fresh)


def new_id() -> str:
    """Return a fresh conversation id: UTC time, then eight hexadecimal digits. Ids sort by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def check_apart(ours: Path, workspace: Path) -> None:
    """Pass if neither of two directories lies inside the other, whatever symlinks and bind mounts lead there.

    Who may write a directory above ours can put a symlink in its place, and we would write where that leads.

    Raises:
        UsageError: one does.
    """
    for our_place, workspace_place in zip(_places(ours), _places(workspace), strict=False):
        if our_place[0] == workspace_place[0] and (
            our_place[1].is_relative_to(workspace_place[1]) or workspace_place[1].is_relative_to(our_place[1])
        ):
            raise UsageError(
                f"Conversation directory {str(ours)!r} and workspace {str(workspace)!r} lie in one another, so that "
                "the agent could lead what we write elsewhere by a link. Name another workspace, persist_dir or "
                f"{STATE_VARIABLE}."
            )


def path_below(named: str, directory: Path, root: Path, what: str) -> Path:
    """Return the absolute path that a file names; no link may lead it out of the project.

    Raises:
        UsageError: the path is outside of root, or does not exist.
    """
    target = (directory / named).resolve()
    if not target.is_relative_to(root) or named.startswith("~"):
        raise UsageError(f"{what} names {named!r}, which is outside of {str(root)!r}. Name what lies in the project.")
    if not target.exists():
        raise UsageError(f"{what} names {named!r}, which is not there. Correct it.")
    return target


def _places(path: Path) -> list[tuple[str, Path]]:
    """The real path; and on Linux the file system with the path in it, which is the same through every bind mount."""
    real = path.resolve()
    places = [("", real)]
    with contextlib.suppress(OSError):
        best: tuple[Path, str, Path] | None = None
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():  # proc(5)
            _, _, device, root, point = map(os.fsdecode, map(_unescaped, line.split(b" ")[:5]))
            if real.is_relative_to(point) and (best is None or len(point) >= len(str(best[0]))):
                best = (Path(point), device, Path(root))  # the later of two at one place lies above
        if best is not None:
            places.append((best[1], best[2] / real.relative_to(best[0])))
    return places


def _unescaped(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)


# --- those of others ---------------------------------------------------------------------------


def open_directory(path: Path, *, make: bool = False) -> int:
    """Open a directory step by step and return its descriptor; the caller closes it.

    No symlink on the way is followed but the system's own, since whoever may write a directory above could have put
    it there. What is done with the descriptor (`dir_fd`) stays in that directory, wherever its names are moved.

    Args:
        path: of the directory; a relative one begins at the current directory.
        make: directories that are missing are made.

    Raises:
        UsageError: a symlink stands in the way; the message names it.
        OSError: it is not there, no directory, or cannot be opened.
    """
    todo = [*reversed(path.absolute().parts[1:])]
    descriptor, opened_path, links = os.open("/", _PASS), "/", 0
    try:
        while todo:
            name = todo.pop()
            try:
                child_fd = _enter(name, descriptor, make=make)
            except OSError as error:
                leads_to = _link(name, descriptor) if error.errno in (errno.ENOTDIR, errno.ELOOP) else None
                if leads_to is None:
                    raise
                links += 1
                if opened_path not in _SYSTEM_DIRECTORIES or links > _MAX_LINKS:
                    raise _refused(Path(opened_path, name), leads_to) from None
                todo += reversed(Path(leads_to).parts)
                child_fd, opened_path = (
                    (os.open("/", _PASS), "/") if leads_to.startswith("/") else (os.dup(descriptor), opened_path)
                )
                todo = [part for part in todo if part != "/"]
            else:
                opened_path = os.path.normpath(Path(opened_path, name))
            os.close(descriptor)
            descriptor = child_fd
        return os.open(".", DIRECTORY, dir_fd=descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def refuse_link(name: str, directory: int, path: Path) -> None:
    """Pass if name, in an open directory, is not a symlink; path is its name for the message.

    Raises:
        UsageError: it is one.
    """
    if (leads_to := _link(name, directory)) is not None:
        raise _refused(path, leads_to)


def _enter(name: str, directory_fd: int, *, make: bool) -> int:
    try:
        return os.open(name, _PASS, dir_fd=directory_fd)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory_fd)
    return os.open(name, _PASS, dir_fd=directory_fd)


def _link(name: str, directory: int) -> str | None:
    """The target of a symlink; None for anything else, and for a path that does not exist."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _refused(link: Path, leads_to: str) -> UsageError:
    return UsageError(
        f"{str(link)!r} is a symlink, which is not followed: a sandbox that may write there could have made it. "
        f"Name what it leads to, if you mean that: {leads_to[:200]!r}"
    )
