"""The rules for host paths that may be bound into a sandbox, and the uid and gid of its processes."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
import stat
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox import host_programs
from ohsandbox.errors import UsageError
from ohsandbox.paths import state_dir
from ohsandbox.runtime.workspace.git_layout import LAYOUT, is_repository, looks_like_dotgit
from ohsandbox.runtime.workspace.sensitive_paths import GUARDED

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSTEM_TREES = (
    "/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run", "/usr", "/bin", "/sbin", "/lib", "/lib64",
    "/nix", "/gnu", "/snap", "/var/spool", "/var/mail", "/var/cron", "/var/at", "/var/backups", "/var/db",
    "/System", "/Library", "/Applications", "/cores",
)  # fmt: skip
"""Directories that are never bound, nor anything below them: write access there is control of the host."""
_SYSTEM_ROOTS = (
    "/", "/home", "/root", "/var", "/var/lib", "/opt", "/srv", "/mnt", "/media", "/tmp",  # noqa: S108
    "/Users", "/Users/Shared", "/private", "/private/var", "/Volumes",
)  # fmt: skip
"""Directories that are never bound as a whole, though directories below them may be, except those in the lists of
trees."""
_ENGINE_TREES = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/rancher", "/var/lib/kubelet")

_HOME_NAMES = frozenset({"bin", "library", "appdata", "applications", "snap", "maildir", "start menu", "ntuser.dat"})
"""Names in a home directory that are never bound, besides all hidden names: programs that run by themselves or by name,
keychains, browsers."""
_STARTUP_FILES = (
    ".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".login", ".cshrc", ".tcshrc", ".inputrc", ".xprofile", ".xinitrc",
    ".xsession", ".pam_environment", ".gitconfig", ".vimrc", ".emacs", ".tmux.conf", ".screenrc", ".npmrc", ".pypirc",
    ".netrc", ".pgpass", ".my.cnf", ".git-credentials", ".claude.json", ".pythonrc", ".gdbinit", ".irbrc", ".curlrc",
    ".wgetrc", ".config", ".ssh", ".gnupg", ".local", ".claude", ".codex", ".gemini", ".vim", ".emacs.d", "bin",
)  # fmt: skip
"""Start-up files that are often links into a directory of settings ("dotfiles"), which is then as sensitive as the home
directory."""
_VARIABLES = (
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "ZDOTDIR", "BASH_ENV", "ENV",
    "PYTHONSTARTUP", "PYTHONUSERBASE", "GIT_CONFIG_GLOBAL", "GNUPGHOME", "DOCKER_CONFIG", "KUBECONFIG", "CARGO_HOME",
    "CLAUDE_CONFIG_DIR", "CODEX_HOME",
)  # fmt: skip
"""Variables that move directories and files which are in the home directory by default."""
_WINDOWS_TREES = frozenset(
    {"windows", "program files", "program files (x86)", "programdata", "$recycle.bin", "system volume information"}
)
"""Directories that are never bound on a drive that WSL mounts at /mnt/<letter>."""

_OUR_CODE = "which this ohsandbox runs from"
_ANOTHER = "Name a project's own directory."
_COPY = "Work on a copy (--copy, copy=True), or name another directory."
_READ = "Mount it read-only (:ro), or name another directory."
_ELSEWHERE = (
    "Install ohsandbox outside of it (`pipx install`, `uv tool install`), work on a copy (--copy, copy=True), "
    "or name another directory."
)


_FIRST_USERS_GID = 1000
"""Lower numbers belong to groups of the system: docker, sudo, disk, and staff, which writes /usr/local on Debian."""


class Identity(NamedTuple):
    """uid, gid and user name of the processes of a sandbox with a bound workspace."""

    uid: int
    gid: int
    name: str
    may_setgid: bool = False
    """Whether files may get the setgid bit, which is effective on this machine: needed where directories have it."""

    @property
    def user(self) -> str:
        """Value for an exec's User."""
        return f"{self.uid}:{self.gid}"


def is_root(user: str) -> bool:
    """Whether the user, as named by an image or a caller, is uid 0."""
    return user.split(":", maxsplit=1)[0] in {"", "0", "root"}


def check_directory(directory: str | os.PathLike[str], *, copied: bool = False) -> str:
    """Return the real path of a directory that may be bound read-write into a sandbox (copied: only copied into one).

    Raises:
        UsageError: it does not exist, is not a directory, or is (a link to) a path that no agent may write.
    """
    return check_path(directory, read_only=copied)


def check_path(
    named: str | os.PathLike[str], *, what: str = "workspace", read_only: bool = False, may_be_file: bool = False
) -> str:
    """Return the real path of a directory or file that may be bound into a sandbox.

    Args:
        named: the path.
        what: the noun for the path in messages.
        read_only: the path is bound read-only or copied, so fewer paths are refused.
        may_be_file: accept a regular file too; sockets, FIFOs and devices are always refused.

    Raises:
        UsageError: it does not exist, is of a refused type, or is (a link to) a path that no agent may write or read.
    """
    try:
        path = Path(named).expanduser().resolve(strict=True)
        mode = path.stat().st_mode
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"The {what} {str(named)!r} cannot be used: {reason}.", remedy="Make it first.") from error
    if not (stat.S_ISDIR(mode) or (may_be_file and stat.S_ISREG(mode))):
        one = "a directory" if may_be_file or what == "workspace" else "a directory, or a file with :ro"
        kind = "neither a directory nor a file" if may_be_file else "not a directory"
        raise UsageError(f"The {what} {str(named)!r} is {kind}.", remedy=f"Name {one}.")
    if why := _forbidden(path, copied=read_only):
        may_be_read = not read_only and _forbidden(path, copied=True) is None
        on_a_copy = _COPY if what == "workspace" else _READ
        remedy = _ELSEWHERE if why.endswith(_OUR_CODE) else on_a_copy if may_be_read else _ANOTHER
        raise UsageError(f"The {what} {str(path)!r} is refused: {why}.", remedy=remedy)
    return str(path)


def _forbidden(path: Path, *, copied: bool = False) -> str | None:
    from ohsandbox.runtime.workspace.branches import is_tree  # noqa: PLC0415 - for a bound workspace alone

    if is_tree(path):
        return None
    if why := _of_the_system(path) or _of_a_home(path):
        return why
    if _touch(path, state_dir()):
        return "it touches ohsandbox's own state directory"
    return None if copied else _of_ours(path) or _of_the_environment(path) or _of_a_repository(path)


def _of_a_repository(path: Path) -> str | None:
    """Return why a part of a repository, or files that editors run, may not be bound alone; the guard would miss it."""
    for above in path.parents:
        below = path.relative_to(above)
        part = below.parts[0]
        if part == ".git" or looks_like_dotgit(part):
            return f"it lies in {part!r}, from which git runs programs"
        is_own = os.path.lexists(path / ".git")  # some agents keep whole working trees in such a directory
        if not is_own and not {part.lower(), below.as_posix().lower()}.isdisjoint(GUARDED):
            return f"it lies in {part!r}, from which editors or agents run programs"
        if is_repository({name for name in LAYOUT if os.path.lexists(above / name)}):
            return f"it lies in the repository {str(above)!r}, whose configuration and hooks git obeys"
    return None


@functools.cache
def _real(*places: str) -> dict[str, Path]:
    """Return the places with their links resolved: 0.8 ms, once."""
    return {place: Path(place).resolve() for place in places}


def _of_the_system(path: Path) -> str | None:
    for tree, real in _real(*_SYSTEM_TREES, *_ENGINE_TREES).items():
        if path.is_relative_to(real) or path == Path(tree):
            return f"it lies in {tree}, which belongs to the host"
    if path in _real(*_SYSTEM_ROOTS).values():
        return "it is a directory of the host's system"
    match [part.lower() for part in path.parts[:4]]:
        case ["/", "mnt", letter] if len(letter) == 1:
            return "it is a drive of Windows"
        case ["/", "mnt", letter, name, *_] if len(letter) == 1 and name in _WINDOWS_TREES:
            return "it belongs to Windows"
    return None


def _homes(path: Path) -> Iterator[Path]:
    """Yield the caller's home directories by environment and passwd database, and others that may contain path."""
    yield Path.home().resolve()
    names = [os.environ.get("SUDO_USER", "")] if os.geteuid() == 0 else []
    if len(path.parts) > 2 and path.parts[1] in {"home", "Users"}:  # noqa: PLR2004 - a home directory or below
        names.append(path.parts[2])
    with contextlib.suppress(KeyError):
        yield Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    for name in names:
        with contextlib.suppress(KeyError):
            yield Path(pwd.getpwnam(name).pw_dir).resolve()
    match path.parts:
        case ["/", "mnt", letter, users, name, *_] if len(letter) == 1 and users.lower() == "users":
            yield Path(*path.parts[:5])
        case ["/", "mnt", letter, users] if len(letter) == 1 and users.lower() == "users":
            yield path / "anybody"


def _of_a_home(path: Path) -> str | None:
    for home in {*_homes(path)} - {Path("/")}:
        if home.is_relative_to(path):
            return "it is or holds a home directory"
        below = path.relative_to(home).parts if path.is_relative_to(home) else ()
        if below and (below[0].startswith(".") or below[0].lower() in _HOME_NAMES):
            return f"it lies in ~/{below[0]}, where programs of yours keep what they run, or secrets"
        for name in _STARTUP_FILES:
            if (home / name).is_symlink() and _touch(path, home / name):
                return f"~/{name} leads into it, and programs of yours obey that"
    return None


def _of_ours(path: Path) -> str | None:
    schemes = sysconfig.get_paths()
    code = (
        str(Path(__file__).parents[3]), sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent),
        schemes["purelib"], schemes["platlib"], *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    )  # fmt: skip
    found = (place for place in code if place not in {"", "/"} and _touch(path, Path(place)))
    return next((f"it holds or is part of {place!r}, {_OUR_CODE}" for place in found), None)


def _of_the_environment(path: Path) -> str | None:
    for variable in _VARIABLES:
        value = os.environ.get(variable, "")
        if value.startswith("/") and value != "/" and _touch(path, Path(value)):
            return f"{variable} is {value!r}, and programs of yours obey that"
    locked = path_directories(str(path))
    for entry in host_programs.person_path().split(os.pathsep):
        found = Path(os.path.abspath(entry))  # noqa: PTH100 - no link is followed
        if (found.is_relative_to(path) or _touch(path, found)) and os.path.relpath(found, path) not in locked:
            return f"{entry or '.'!r} is on your PATH: what is written there runs by its name"
    return None


def path_directories(workspace: str) -> set[str]:
    """Return the PATH directories below a workspace, relative to it: a virtual environment's `bin`, for example.

    They are bound read-only. Missing ones, and those reached through a link, cannot be bound and are left out.
    """
    found = {os.path.abspath(entry) for entry in host_programs.person_path().split(os.pathsep)}  # noqa: PTH100 - no link is followed
    inside = {entry for entry in found if entry.startswith(f"{workspace}/") and Path(entry).is_dir()}
    return {os.path.relpath(entry, workspace) for entry in inside if os.path.realpath(entry) == entry}


def _touch(path: Path, place: Path) -> bool:
    """Whether one of the two contains the other, or they are the same."""
    try:
        real = place.resolve()
    except (OSError, RuntimeError):  # a loop of links, or a path below a current directory that was removed
        return False
    return path.is_relative_to(real) or real.is_relative_to(path)


def _has_power(gid: int) -> bool:
    """Whether a group's members may rule this machine: one of the system's (login.defs(5)), or the engine's."""
    sockets = []
    for path in ("/var/run/docker.sock", "/run/podman/podman.sock"):
        with contextlib.suppress(OSError):
            sockets.append(Path(path).stat().st_gid)
    return gid < _FIRST_USERS_GID or gid in sockets


def identity(workspace: str, *, rootless: bool) -> Identity:
    """Return the uid and gid of the sandbox's processes with which files in workspace belong to the calling user.

    For an ordinary caller they are its own, but the group of a directory that a group of the caller may write: several
    people work there; never a group with power over this machine. For root they are those of the directory's owner,
    since under sudo the tree belongs to a user. In a tree owned by root, processes run as uid 0 without any capability.
    The `mapped` seccomp filter forbids setuid and setgid bits, which would be effective on the host. A rootless engine
    maps its uid 0 to the caller.
    """
    found = Path(workspace).stat()
    is_shared = found.st_mode & stat.S_IWGRP and found.st_gid in os.getgroups() and not _has_power(found.st_gid)
    gid = found.st_gid if os.getuid() == 0 or is_shared else os.getgid()
    uid = found.st_uid if os.getuid() == 0 else os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name):
        name = "sandbox"
    if rootless:
        return Identity(0, 0, name)
    # in such a tree a change of a directory's mode names the bit, as `chmod g+w` and git do
    is_teams = found.st_mode & stat.S_ISGID and found.st_gid == gid and not _has_power(gid)
    return Identity(uid, gid, name, may_setgid=bool(is_teams))
