"""Read-only protection inside a bound workspace: nested bind mounts over the files from which git and editors run code.

`mv .git .g; cp -r .g .git` evades a read-only mount on `.git/config` alone. A mount point cannot be renamed (EBUSY), so
every directory above a guarded name is also a mount point, still writable. Files that git would read and that do not
exist are created on the host first; otherwise the sandbox could create them.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.paths import DIRECTORY, state_dir
from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.docker.mount_policy import path_directories
from ohsandbox.runtime.workspace import git_layout
from ohsandbox.runtime.workspace.sensitive_paths import GUARDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Git = Literal["guarded", "ro", "rw"]
"""`guarded`: commits work; config, hooks and info are read-only. `ro`: all of `.git` is read-only. `rw`: no guard."""

WORKSPACE = "/workspace"
MAX_MOUNTS = 2000
"""The engine takes 0.25 s to start a container, 0.4 s with 700 nested mounts (100 submodules), 0.8 s with 2,100."""

_COMMON_DIR = b".\n"
"""A repository that contains `commondir` reads configuration and hooks from the directory that it names; "." is the
repository itself (git 2.39: commit, gc, worktrees and submodules work as without the file)."""
_LOCK = (
    b"A sandbox of ohsandbox works here: until it ends, git does not change the configuration.\n"
    b"If none does (`ohsandbox ps`), remove this file.\n"
)
"""Linux removes a mount from a name that another mount namespace unlinks or renames over: `git config`, `push -u` and
`branch -u` on the host would leave their new file unguarded (measured, Linux 6). git takes no lock that exists."""
_FILES = {
    "config.lock": _LOCK,
    "config.worktree.lock": _LOCK,
    "config": b"",
    "config.worktree": b"",
    "commondir": _COMMON_DIR,
}
_LOCKS = ("config.lock", "config.worktree.lock")
_UNMADE = {**dict.fromkeys(_LOCKS, _LOCK), "config.worktree": b"", "commondir": _COMMON_DIR}
_DIRECTORIES = ("hooks", "info")
_WORKTREE_FILES = ("commondir", "gitdir")
_WORD = re.compile(r"[^\s'\"=;|&()<>`$]+")


class GuardMount(NamedTuple):
    """A nested bind mount."""

    path: str
    """Path below the workspace, with slashes."""
    read_only: bool
    source: str = ""
    """File that is mounted there instead; empty: the path itself."""


class _WorkspaceContents(NamedTuple):
    """What a scan of the workspace found."""

    layouts: dict[str, set[str]]
    """Directories that contain names of `git_layout.LAYOUT`, with these names."""
    dotgits: dict[str, int]
    """`.git` entries and their modes (st_mode)."""
    sockets: list[str]
    """Sockets on which a program of this machine answers."""
    pointers: dict[str, str | None]
    """Target of each `.git` file, below the workspace or absolute; None: no target."""


def guard(workspace: str, git: Git) -> tuple[GuardMount, ...]:
    """Return the nested mounts for the workspace in its present state; creates missing mount sources.

    Raises:
        UsageError: something cannot be guarded: a link in place of `.git`, too many repositories, an unreadable name.
    """
    found = _look(workspace)
    plan = _MountPlan(workspace)
    for path in path_directories(workspace):
        plan.lock(path)
    for path in found.sockets:
        plan.mask(path)
    if git != "rw":
        _guard_git(plan, found, git)
    return plan.mounts()


def _guard_git(plan: _MountPlan, found: _WorkspaceContents, git: Git) -> None:
    """Add the mounts for git's files and for agents' files."""
    workspace = plan.workspace
    for path, kind in sorted(found.dotgits.items()):
        if stat.S_ISLNK(kind):
            raise _refused(path, "it is a symbolic link", "put the directory in its place")
        if stat.S_ISREG(kind):
            plan.lock(path)
    named = {target for target in found.pointers.values() if target is not None and target != "."}
    for path in sorted(_repositories(workspace, found)):
        _guard_repository(plan, found, path, git=git, writable=_is_gits(path, named))
    for path in _missing_submodules(workspace, found):
        plan.lock(path)
    for path in _agents_files(workspace):
        plan.lock(path)


def release(workspace: str, paths: Iterable[str] | None = None, *, gone: bool) -> None:
    """Remove what `guard` created, in any session. Empty `hooks` and `info` stay, as `git init` creates them.

    Args:
        workspace: the directory.
        paths: the guarded paths; None searches the whole workspace.
        gone: no container binds it any more; else only the locks are removed, since removing a name removes its mount.
    """
    for path in [seen.path for seen in git_layout.walk(workspace)] if paths is None else paths:
        parent, _, name = path.rpartition("/")
        if name not in (_UNMADE if gone else _LOCKS):
            continue
        head = f"{parent}/HEAD" if parent else "HEAD"
        if (name not in _LOCKS and not _kind(workspace, head)) or git_layout.read_small(workspace, path) != _UNMADE[
            name
        ].decode():
            continue
        with contextlib.suppress(OSError):
            directory = _open_directory(workspace, parent)
            try:
                os.unlink(name, dir_fd=directory)
            finally:
                os.close(directory)


def verify(guarded: Iterable[GuardMount], mountinfo: str) -> None:
    """Compare the requested mounts with the sandbox's mounts (proc(5), mountinfo).

    A name that was replaced by a link between our check and the engine's mount has another root.

    Raises:
        SandboxUnavailable: a mount is missing, writable, or of another file.
    """
    there = {}
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 5:  # noqa: PLR2004 - the mount options are the sixth field
            there[_unescaped(fields[4])] = (fields[2], _unescaped(fields[3]), fields[5].split(","))
    device, root, _ = there.get(WORKSPACE, ("", "", []))
    for mount in guarded:
        found = there.get(f"{WORKSPACE}/{mount.path}")
        moved = found is None
        if found is not None and mount.source:  # a mount's root is the path on its own file system
            moved = not mount.source.endswith(found[1])
        elif found is not None:
            moved = found[0] == device and found[1] != f"{root.rstrip('/')}/{mount.path}"
        if found is None or moved or (mount.read_only and "ro" not in found[2]):
            raise SandboxUnavailable(
                f"The sandbox is not as strict as asked: {mount.path!r} of the workspace is not guarded. "
                "Remedy: end what else changes the workspace, and try again; `ohsandbox doctor` looks at the engine."
            )


class _MountPlan:
    """Collects nested mounts."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self._wanted: dict[str, bool] = {}
        self._masked: list[str] = []

    def mask(self, path: str) -> None:
        """Hide a file behind an empty one. The name may move along with its directory."""
        self._masked.append(path)

    def hold(self, path: str) -> None:
        """Keep a directory and those above it in place."""
        while path:
            self._wanted.setdefault(path, False)
            path = path.rpartition("/")[0]

    def lock(self, path: str) -> None:
        """Make a file or a directory read-only, and keep it in place."""
        self.hold(path.rpartition("/")[0])
        self._wanted[path] = True

    def mounts(self) -> tuple[GuardMount, ...]:
        """Return the mounts, outer ones first; none below a locked one, which covers it.

        Raises:
            UsageError: there are too many, or the engine's JSON cannot hold a name.
        """
        made: list[GuardMount] = []
        locked: set[str] = set()
        for path, read_only in sorted(self._wanted.items(), key=lambda pair: (pair[0].count("/"), pair[0])):
            if any(parent in locked for parent in _parents(path)):
                continue
            try:
                path.encode()
            except UnicodeEncodeError:
                raise _refused(path, "its name is not valid UTF-8", "rename it") from None
            if read_only:
                locked.add(path)
            made.append(GuardMount(path, read_only))
        made += [GuardMount(path, read_only=True, source=_nothing()) for path in self._masked]
        if len(made) > MAX_MOUNTS:
            raise UsageError(
                f"The workspace {self.workspace!r} needs {len(made)} mounts to guard repositories: over {MAX_MOUNTS}."
                " Remedy: name a smaller directory, or --git rw (git='rw'), which guards nothing."
            )
        return tuple(made)


def _look(workspace: str) -> _WorkspaceContents:
    found = _WorkspaceContents({}, {}, [], {})
    for path, entry, _ in git_layout.walk(workspace):
        if entry is None:
            continue
        if entry.name in git_layout.LAYOUT:
            found.layouts.setdefault(path.rpartition("/")[0], set()).add(entry.name)
        elif entry.name == ".git":
            found.dotgits[path] = entry.stat(follow_symlinks=False).st_mode
            if entry.is_file(follow_symlinks=False):
                found.pointers[path] = git_layout.pointed(workspace, path)
        elif _is_special(entry) and _answers(workspace, path):
            found.sockets.append(path)
    return found


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Whether it is neither file, directory nor symlink, by the type in the directory entry; no system call."""
    file, directory = entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
    return not (file or directory or entry.is_symlink())


def _answers(workspace: str, path: str) -> bool:
    """Whether a program listens, or may, on a socket. One that refuses is dead: bind(2) fails on an existing name.

    Neither a network namespace nor a read-only mount prevents a container from connecting to a socket by its path.
    """
    parent, _, name = path.rpartition("/")
    try:
        directory = git_layout.open_below(workspace, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        if not stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)  # noqa: FBT003 - the standard library's
            caller.connect(f"/proc/self/fd/{directory}/{name}" if sys.platform == "linux" else f"{workspace}/{path}")
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # the socket has another type, is not accessible to us, or is busy
        return True
    finally:
        os.close(directory)
    return True


def _nothing() -> str:
    """Return the path of our empty file that is mounted over a socket.

    Raises:
        UsageError: the state directory cannot be written.
    """
    path = state_dir(create=True) / "nothing"
    try:
        path.touch(mode=0o400)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be made: {error.strerror}. Make it writable.") from error
    return str(path.resolve())


def _repositories(workspace: str, found: _WorkspaceContents) -> Iterator[str]:
    """Yield each directory with a repository, with a worktree's part of one, or with the remains of one."""
    for path, names in found.layouts.items():
        if git_layout.is_repository(names):
            yield path
    for path in found.dotgits:
        if not git_layout.is_repository(found.layouts.get(path, set())) and not _is_empty(workspace, path):
            yield path


def _missing_submodules(workspace: str, found: _WorkspaceContents) -> Iterator[str]:
    """Yield directories of submodules that are not checked out; missing ones are created.

    `git status` in the repository above enters a repository that a sandbox creates in one.

    Raises:
        UsageError: an index cannot be read, or one of the paths is not a directory.
    """
    places = [
        (workspace, path, f"{workspace}/{top}")
        for path in _repositories(workspace, found)
        for top in _tops(workspace, found, path)
    ]
    for root, path, top in [*places, *_above(workspace)]:
        try:
            submodules = sorted(git_layout.gitlinks(root, path))
        except ValueError as error:
            raise _refused(path or ".", f"its index is not understood ({error})", "mend it with git") from error
        for submodule in submodules:
            below = git_layout.inside(workspace, f"{top}/{submodule}")
            is_ours = not below.startswith("/") and below != "."
            if is_ours and not _is_checked_out(workspace, found, below) and _make(workspace, below, None):
                yield below


def _is_checked_out(workspace: str, found: _WorkspaceContents, submodule: str) -> bool:
    """Whether it has a `.git` that is guarded itself."""
    mode = found.dotgits.get(f"{submodule}/.git", 0)
    return stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not _is_empty(workspace, f"{submodule}/.git"))


def _tops(workspace: str, found: _WorkspaceContents, path: str) -> set[str]:
    """Return the working trees, below the workspace, of a repository or of a worktree's part of one."""
    tops = {pointer.removesuffix(".git") for pointer, target in found.pointers.items() if target == path}
    if path.rpartition("/")[2] == ".git":
        tops.add(path.removesuffix(".git"))
    if tree := dict(_pairs(workspace, f"{path}/config")).get("core.worktree"):
        tops.add(git_layout.inside(workspace, f"{path}/{tree}"))
    return {top for top in tops if not top.startswith("/")}


def _above(workspace: str) -> Iterator[tuple[str, str, str]]:
    """Yield the repository that contains a workspace without one: its directory, as (root, path), and its top."""
    for top in [workspace, *map(str, PurePosixPath(workspace).parents)]:
        if not os.path.lexists(f"{top}/.git"):
            continue
        target = git_layout.pointed(top, ".git") if Path(top, ".git").is_file() else ".git"
        if top != workspace and target is not None:
            yield (target, "", top) if target.startswith("/") else (top, target, top)
        return


def _is_empty(workspace: str, path: str) -> bool:
    """Whether it is empty, or cannot be reached without a link."""
    try:
        descriptor = git_layout.open_below(workspace, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True
    try:
        with os.scandir(descriptor) as entries:
            return next(entries, None) is None
    finally:
        os.close(descriptor)


def _is_gits(path: str, named: set[str]) -> bool:
    """Whether people and agents work in it; otherwise it is a bare repository among the files, such as a fixture."""
    return not path or ".git" in path.split("/") or path in named


def _guard_repository(plan: _MountPlan, found: _WorkspaceContents, path: str, *, git: Git, writable: bool) -> None:
    prefix = f"{path}/" if path else ""
    if path and (git == "ro" or not writable):
        plan.lock(path)
        for other in _obeyed(plan.workspace, found, prefix) if writable else ():
            plan.lock(other)
        return
    plan.hold(path)
    names = found.layouts.get(path, set())
    if "commondir" in names and "objects" not in names:  # of a worktree: the rest is in the repository that it names
        fixed = {name: b"" for name in _WORKTREE_FILES if _kind(plan.workspace, prefix + name) == "file"}
        files = {"config.worktree.lock": _LOCK, "config.worktree": b"", **fixed}
    else:
        files = _FILES
        for name in _DIRECTORIES:
            if _make(plan.workspace, prefix + name, None):
                plan.lock(prefix + name)
    for name, content in files.items():
        if not _make(plan.workspace, prefix + name, content):
            continue
        if content is _LOCK and git_layout.read_small(plan.workspace, prefix + name) != _LOCK.decode():
            raise _refused(prefix + name, "another git changes the configuration", "wait, or remove it")
        plan.lock(prefix + name)
    for other in _obeyed(plan.workspace, found, prefix):
        plan.lock(other)


def _obeyed(workspace: str, found: _WorkspaceContents, prefix: str) -> Iterator[str]:
    """Yield the files of the workspace from which a repository takes hooks, configuration (includes too) and programs.

    Raises:
        UsageError: a path leads through a link.
    """
    config = _pairs(workspace, prefix + "config")
    tree = dict(config).get("core.worktree")
    tree = prefix.removesuffix(".git/") if tree is None else git_layout.inside(workspace, prefix + tree) + "/"
    trees = list(_trees(found, prefix))
    if "worktrees" not in prefix.split("/"):
        trees.append(tree)
    todo, seen = [prefix + "config", prefix + "config.worktree"], set[str]()
    yield from _run_by_hooks(workspace, prefix + "hooks", trees)
    while todo:
        file = todo.pop()
        seen.add(file)
        base = f"{parent}/" if (parent := file.rpartition("/")[0]) else ""
        for key, value in _pairs(workspace, file):
            if key in {"include.path", "includeif.path"}:
                for path in _made(workspace, [base], value, b""):
                    yield path
                    todo += [path] if path not in seen else []
            elif key == "core.hookspath":
                for path in _made(workspace, trees, value, None):
                    yield path
                    yield from _run_by_hooks(workspace, path, trees)
            elif git_layout.may_name_program(key, value):
                yield from _named(workspace, value, trees)


def _pairs(workspace: str, config: str) -> list[tuple[str, str]]:
    return list(git_layout.config_values(git_layout.read_small(workspace, config) or ""))


def _trees(found: _WorkspaceContents, prefix: str) -> Iterator[str]:
    """Yield the tops of its `.git` files, linked worktrees too: bases of relative paths (git-config(1), hooksPath)."""
    for path, target in found.pointers.items():
        if target is not None and (f"{target}/" == prefix or target.startswith(f"{prefix}worktrees/")):
            yield path.removesuffix(".git")


def _made(workspace: str, bases: Iterable[str], value: str, content: bytes | None) -> Iterator[str]:
    """Yield the paths below the workspace that a configured path means; missing ones are created."""
    if not value or value.startswith("~"):
        return
    for base in bases:
        path = git_layout.inside(workspace, value if value.startswith("/") else base + value)
        if path != "." and not path.startswith("/") and _make(workspace, path, content):
            yield path


def _named(workspace: str, text: str, trees: Iterable[str]) -> Iterator[str]:
    """Yield the files of the workspace that a text names."""
    words = set(_WORD.findall(text))
    for tree in trees:
        paths = (git_layout.inside(workspace, tree + word.lstrip("!")) for word in words)
        yield from (path for path in paths if _kind(workspace, path) == "file")


def _run_by_hooks(workspace: str, hooks: str, trees: Iterable[str]) -> Iterator[str]:
    """Yield the targets of hooks that are links, and the executable files that scripts among the hooks name."""
    try:
        directory = git_layout.open_below(workspace, hooks, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.name.endswith(".sample")]
    finally:
        os.close(directory)
    for name in names:
        real = os.path.realpath(f"{workspace}/{hooks}/{name}")
        path = git_layout.inside(workspace, real)
        if _kind(workspace, path) != "file":
            continue
        if path != f"{hooks}/{name}":
            yield path
        text = git_layout.read_small(workspace, path) or ""
        if text.startswith("#!"):
            yield from (one for one in _named(workspace, text, trees) if os.access(f"{workspace}/{one}", os.X_OK))


def _agents_files(workspace: str) -> Iterator[str]:
    for path in GUARDED:
        if _kind(workspace, path) in {"file", "directory"}:
            yield path


def _kind(workspace: str, path: str) -> str:
    """Return "file", "directory", "other", or "" for a path that does not exist or is absolute."""
    if path.startswith("/"):
        return ""
    try:
        descriptor = git_layout.open_below(workspace, path, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    except OSError:
        return "other"
    try:
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def _make(workspace: str, path: str, content: bytes | None) -> bool:
    """Create a missing file with content, or a directory if None; its owner is that of the directory above.

    Returns:
        Whether it exists now. If not, the sandbox cannot create it either: the directory is another user's.

    Raises:
        UsageError: a link or something else has its name, or it cannot be created.
    """
    wanted = "directory" if content is None else "file"
    parent, _, name = path.rpartition("/")
    try:
        if parent and not _kind(workspace, parent):
            _make(workspace, parent, None)
        directory = _open_directory(workspace, parent)
        try:
            made = _make_in(directory, name, content)
        except PermissionError:
            if os.fstat(directory).st_uid != os.geteuid() and not _kind(workspace, path):
                return False
            raise
        finally:
            os.close(directory)
    except OSError as error:
        raise _refused(path, f"it cannot be made ({error.strerror})", "make it") from error
    if not made and (kind := _kind(workspace, path)) != wanted:
        raise _refused(
            path, f"it is not a {wanted}, or is a link" if kind else "it was removed meanwhile", "put one in its place"
        )
    return True


def _open_directory(workspace: str, path: str) -> int:
    if not path:
        return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return git_layout.open_below(workspace, path, os.O_RDONLY | os.O_DIRECTORY)


def _make_in(directory: int, name: str, content: bytes | None) -> bool:
    owner = os.fstat(directory)
    try:
        if content is None:
            os.mkdir(name, 0o755, dir_fd=directory)
            made = os.open(name, DIRECTORY, dir_fd=directory)
        else:
            made = os.open(name, NEW_FILE, 0o644, dir_fd=directory)
    except FileExistsError:
        return False
    try:
        if content:
            os.write(made, content)
        if os.geteuid() == 0:
            os.fchown(made, owner.st_uid, owner.st_gid)
    finally:
        os.close(made)
    return True


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _unescaped(field: str) -> str:
    """Decode a field of mountinfo, which writes space, tab, newline and backslash as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _refused(path: str, why: str, remedy: str) -> UsageError:
    return UsageError(
        f"{path!r} in the workspace cannot be guarded: {why}. Remedy: {remedy}, or --git rw (git='rw') guards nothing."
    )
