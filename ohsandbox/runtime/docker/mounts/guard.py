"""Read-only protection inside a bound workspace: nested bind mounts over the files from which git and editors run code.

`mv .git .g; cp -r .g .git` evades a read-only mount on `.git/config` alone. A mount point cannot be renamed (EBUSY), so
every directory above a guarded name is also a mount point, still writable. Files that git would read and that do not
exist are created on the host first; otherwise the sandbox could create them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.paths import DIRECTORY, state_dir
from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.docker.mounts import git_exclude
from ohsandbox.runtime.docker.mounts.guard_mounts import GuardMount, LinkedFile, decode_mountinfo
from ohsandbox.runtime.docker.mounts.mount_policy import path_directories
from ohsandbox.runtime.workspace import git_layout, git_programs
from ohsandbox.runtime.workspace.git_layout import opened_below
from ohsandbox.runtime.workspace.git_settings import Names, read_settings
from ohsandbox.runtime.workspace.sensitive_paths import GUARDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ohsandbox.runtime.docker.mounts.guard_mounts import Git
    from ohsandbox.runtime.docker.ownership.tree_uses import TreeUses

MAX_MOUNTS = 2700
"""A start takes the engine 0.25 s, 0.4 s with 700 nested mounts, 0.8 s with 2,100. A repository needs 13."""

_COMMON_DIR = b".\n"
"""A repository that contains `commondir` reads configuration and hooks from the directory that it names; "." is the
repository itself (git 2.39: commit, gc, worktrees and submodules work as without the file)."""
_LOCK = (
    b"A sandbox of ohsandbox works here: until it ends, git does not change the configuration.\n"
    b"If none does (`ohsandbox ps`), remove this file.\n"
)
"""Linux removes a mount from a name that another mount namespace unlinks or renames over: `git config`, `push -u` and
`branch -u` on the host would leave their new file unguarded (measured, Linux 6). git takes no lock that exists."""
_LOCKS = {"config.lock": _LOCK, "config.worktree.lock": _LOCK}
_UNMADE = {**_LOCKS, "config.worktree": b"", "commondir": _COMMON_DIR}
"""Files that `guard` creates, with their contents; `release` removes those that are unchanged."""
_FILES = {**_LOCKS, "config": b"", "config.worktree": b"", "commondir": _COMMON_DIR}
_DIRECTORIES = ("hooks", "info")
_ALTERNATES = "objects/info/alternates"
"""Names the directories of other repositories whose objects git reads as this one's (gitrepository-layout(5)). Only the
file is read-only: git writes beside it."""
_WORKTREE_FILES = ("commondir", "gitdir")


def guard(
    workspace: str, git: Git, *, beside: Sequence[str] = (), linked: list[LinkedFile] | None = None
) -> tuple[GuardMount, ...]:
    """Return the nested mounts for the workspace in its present state; creates missing mount sources.

    Args:
        workspace: the directory, a real path.
        git: what is guarded.
        beside: other directories of the same sandbox, whose repositories may name files in this one.
        linked: a list to which the names of files with several names are added.

    Raises:
        UsageError: something cannot be guarded: a link in place of `.git`, too many repositories, an unreadable name.
    """
    plan = _MountPlan(workspace)
    for path in path_directories(workspace):
        plan.lock(path)
    if git != "rw":
        plan.guard_git(git, beside)
    mounts = plan.mounts()
    if linked is not None and plan.linked:
        read_only = {mount.path: mount.read_only for mount in mounts}
        for path, status in plan.linked:
            above = (place for place in (path, *git_layout.parents_of(path)) if place in read_only)
            is_guarded = read_only.get(next(above, ""), False)
            size = status.st_size
            if status.st_blocks > 1:  # until a new file is on the disk, ZFS counts 1 (openzfs/zfs#13991), others 0
                size = min(size, status.st_blocks * 512)  # stat(3type): a block of this count has 512 bytes
            linked.append(LinkedFile(workspace, path, status.st_dev, status.st_ino, status.st_nlink, size, is_guarded))
    return mounts


def hide_ways_out(directory: str) -> tuple[GuardMount, ...]:
    """Return the nested mounts for a directory that is bound read-only.

    A socket in it leads to a program on this machine; an empty file is mounted over it. So does a FIFO, but nothing can
    be mounted over one: engine 26.1 opens each mount point, and blocks on a FIFO for good. Engines before Docker 25
    bind a file system that is mounted below the directory writable.

    Raises:
        UsageError: there is a FIFO, there are too many sockets, or a name is unreadable.
    """
    below = [GuardMount(path, read_only=True) for path in _mounted_below(directory)]
    return (*below, *_MountPlan(directory, fifos=True).mounts())


def release(workspace: str, paths: Iterable[str] | None = None, *, uses: TreeUses) -> None:
    """Remove unchanged locks, `config.worktree` and `commondir` that `guard` created, in any session.

    So are the files that stand for a missing program or included file. Directories that it created stay, such as
    `hooks` and `info`, which `git init` creates too. What lies where a sandbox may have mounts stays, and so does all
    but the locks where a stopped sandbox may have them again.

    Args:
        workspace: the directory.
        paths: the guarded paths; None searches the whole workspace.
        uses: the sandboxes that exist.
    """
    for path in [path for path, _, _ in git_layout.walk(workspace)] if paths is None else paths:
        name = path.rpartition("/")[2]
        is_alternates = f"/{path}".endswith(f"/{_ALTERNATES}")
        repository = path.removesuffix(_ALTERNATES if is_alternates else name)
        if name == "modules" and _kind(workspace, f"{repository}HEAD"):
            _remove(workspace, path, uses, remove=os.rmdir)  # fails if something is in it
        elif name == "info":
            _clean_exclude(workspace, repository.rstrip("/"), uses)
        content = b"" if is_alternates else _UNMADE.get(name)
        if content is None or git_layout.read_small(workspace, path) != content.decode():
            continue
        if name in _LOCKS or _kind(workspace, f"{repository}HEAD"):
            _remove(workspace, path, uses, mounted_only=name in _LOCKS)
    for directory in _outer_git_directory(workspace).values():
        _clean_exclude(workspace, directory, uses)
    for path in _held_files(workspace) if paths is None else paths:
        if git_programs.is_held(workspace, path):
            _remove(workspace, path, uses)


def _clean_exclude(workspace: str, git_directory: str, uses: TreeUses) -> None:
    with contextlib.suppress(OSError), uses.excluded(os.path.realpath(Path(workspace, git_directory))):
        git_exclude.clean(workspace, git_directory)


def _held_files(workspace: str) -> Iterator[str]:
    """Yield the files that may be those created in place of a missing program or included file, by their sizes."""
    sizes = {len(git_programs.HELD_FILE), len(git_programs.HELD_PROGRAM)}
    for path, entry, _ in git_layout.walk(workspace):
        with contextlib.suppress(OSError):  # ignored: it was removed meanwhile
            if entry is not None and entry.is_file(follow_symlinks=False) and entry.stat().st_size in sizes:
                yield path


def _remove(
    workspace: str, path: str, uses: TreeUses, *, mounted_only: bool = False, remove: Callable[..., None] = os.unlink
) -> None:
    parent, _, name = path.rpartition("/")
    with (
        contextlib.suppress(OSError),
        uses.excluded(str(Path(workspace, parent)), mounted_only=mounted_only),
        opened_below(workspace, parent) as directory,
    ):
        remove(name, dir_fd=directory)


def _mounted_below(directory: str) -> list[str]:
    """Return the mount points below a real path, relative to it, outer ones first; empty if the kernel lists none."""
    try:
        listed = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    except OSError:
        return []
    points = {decode_mountinfo(line.split(" ")[4]) for line in listed}
    below = [point.removeprefix(f"{directory}/") for point in points if point.startswith(f"{directory}/")]
    return sorted(below, key=lambda path: (path.count("/"), path))


class _MountPlan:
    """A workspace as a scan found it, and the nested mounts planned for it."""

    def __init__(self, root: str, *, fifos: bool = False) -> None:  # noqa: C901 - one kind of entry after another
        """Scan root; if fifos is set, refuse a FIFO."""
        self.root = root
        self._wanted: dict[str, bool] = {}
        """The paths to mount, and whether each is read-only."""
        self._sealed: set[str] = set()
        """Directories that are read-only although mounts in them may be writable."""
        self._sockets: list[str] = []
        """Sockets on which a program of this machine answers; each is hidden behind an empty file."""
        self.linked: list[tuple[str, os.stat_result]] = []
        """Regular files with several names; not looked for in a directory that is only read."""
        self._layouts: dict[str, set[str]] = {}
        """Directories that contain names of `git_layout.LAYOUT`, with these names."""
        self._dotgits: dict[str, int] = {}
        """`.git` entries and their modes (st_mode)."""
        self._pointers: dict[str, str | None] = {}
        """Target of each `.git` file, below the workspace or absolute; None: no target."""
        for path, entry, _ in git_layout.walk(root):
            if entry is None:
                continue
            is_file = entry.is_file(follow_symlinks=False)  # read from the directory entry, without a system call
            if is_file and not fifos:
                try:  # 1.5 us a file
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink > 1:
                        self.linked.append((path, status))
                except FileNotFoundError:
                    continue  # removed meanwhile
            if entry.name in git_layout.LAYOUT:
                self._layouts.setdefault(path.rpartition("/")[0], set()).add(entry.name)
            elif entry.name == ".git":
                self._dotgits[path] = entry.stat(follow_symlinks=False).st_mode
                if is_file:
                    self._pointers[path] = git_layout.pointed(root, path)
            elif is_file or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
                continue
            elif fifos and _is_fifo(entry):
                raise UsageError(
                    f"{f'{root}/{path}'!r} is a FIFO, by which a sandbox that only reads could reach a program of this "
                    "machine. Name a directory without it, or work on a copy (--copy)."
                )
            elif _answers(root, path):
                self._sockets.append(path)

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
        """Return the mounts, outer ones first; none below a locked one, which covers it."""
        self._lock_other_names()
        made: list[GuardMount] = []
        locked: set[str] = set()
        for path, read_only in sorted(self._wanted.items(), key=lambda pair: (pair[0].count("/"), pair[0])):
            if any(str(parent) in locked for parent in PurePosixPath(path).parents):
                continue
            if path.encode(errors="replace").decode() != path:
                raise _refused(path, "its name is not valid UTF-8", "Rename it")
            if read_only:
                locked.add(path)
            made.append(GuardMount(path, read_only or path in self._sealed))
        made += [GuardMount(path, read_only=True, source=_nothing()) for path in self._sockets]
        if len(made) > MAX_MOUNTS:
            raise UsageError(
                f"The workspace {self.root!r} needs {len(made)} mounts to guard repositories: over {MAX_MOUNTS}."
                " Name a smaller directory, or --git rw (git='rw'), which guards nothing."
            )
        return tuple(made)

    def _lock_other_names(self) -> None:
        """Lock the other names of locked files: a file that is hard-linked could be written by any of its names."""
        locked = [path for path, read_only in self._wanted.items() if read_only]
        linked = {file for path in locked for file in _hard_linked(f"{self.root}/{path}")}
        for path, status in self.linked if linked else ():
            if (status.st_dev, status.st_ino) in linked:
                self.lock(path)

    def guard_git(self, git: Git, beside: Sequence[str] = ()) -> None:
        """Add the mounts for git's files and for agents' files."""
        for path, mode in sorted(self._dotgits.items()):
            if stat.S_ISLNK(mode):
                raise _refused(path, "it is a symbolic link", "Put the directory in its place")
            if stat.S_ISREG(mode):
                self.lock(path)
        # agents work in git's own directories; another layout is a bare repository, such as a fixture
        pointed = {target for target in self._pointers.values() if target is not None and target != "."}
        used = {path for path in self._repositories() if not path or ".git" in path.split("/") or path in pointed}
        for path in sorted(self._repositories()):
            if path and (git == "ro" or path not in used):
                self.lock(path)
            else:
                self._guard_parts(path)
        for path in self._missing_submodules():
            self.lock(path)
        self._lock_named(used, beside)
        for path in GUARDED:
            if _kind(self.root, path) in {"file", "directory"}:
                self.lock(path)

    def _repositories(self) -> Iterator[str]:
        """Yield each directory with a repository, with a worktree's part of one, or with the remains of one."""
        whole = {path for path, names in self._layouts.items() if git_layout.is_repository(names)}
        yield from whole
        yield from (path for path in self._dotgits if path not in whole and not _is_empty(self.root, path))

    def _guard_parts(self, path: str) -> None:
        """Lock the configuration, hooks and info of a repository, or of a worktree's part of one."""
        self.hold(path)
        prefix = f"{path}/" if path else ""
        names = self._layouts.get(path, set())
        files = _FILES
        if "commondir" in names and "objects" not in names:  # of a worktree: the rest is in its repository
            fixed = {name: b"" for name in _WORKTREE_FILES if _kind(self.root, prefix + name) == "file"}
            files = {"config.worktree.lock": _LOCK, "config.worktree": b"", **fixed}
        else:
            for name in _DIRECTORIES:
                if _make(self.root, prefix + name, None):
                    self.lock(prefix + name)
            if "objects" in names:
                files = {**files, _ALTERNATES: b""}
        for name, content in files.items():
            if not _make(self.root, prefix + name, content):
                continue
            if content is _LOCK and git_layout.read_small(self.root, prefix + name) != _LOCK.decode():
                raise _refused(prefix + name, "another git changes the configuration", "Wait, or remove it")
            self.lock(prefix + name)
        self._seal_modules(f"{prefix}modules")

    def _seal_modules(self, modules: str) -> None:
        """Keep what is in `modules` as it is, but for the inside of its repositories.

        `git submodule update --init` takes a repository that is there for the submodule's own, with its hooks.
        """
        repositories = {path for path in self._repositories() if path.startswith(f"{modules}/")}
        if _make(self.root, modules, None):
            self.hold(modules)
            self._sealed.add(modules)
        for path in repositories:
            between = [parent for parent in git_layout.parents_of(path) if f"{parent}/".startswith(f"{modules}/")]
            if repositories.isdisjoint(between):  # otherwise it is a submodule of a submodule
                self._sealed.update(between)

    def _missing_submodules(self) -> Iterator[str]:
        """Yield directories of submodules that are not checked out; missing ones are created.

        Otherwise a sandbox could create a repository in one, and `git status` in the repository above would enter it.
        """
        ours = ((path, top) for path in self._repositories() for top in self._working_trees(path))
        for root, path, top in [
            *((self.root, path, f"{self.root}/{top}") for path, top in ours),
            *_enclosing_repository(self.root),
        ]:
            try:
                submodules = sorted(git_layout.gitlinks(root, path))
            except ValueError as error:
                raise _refused(path or ".", f"its index is not understood ({error})", "Repair it with git") from error
            for submodule in submodules:
                below = git_layout.inside(self.root, f"{top}/{submodule}")
                is_ours = not below.startswith("/") and below != "."
                if is_ours and not self._is_checked_out(below) and _make(self.root, below, None):
                    yield below

    def _is_checked_out(self, submodule: str) -> bool:
        """Whether the submodule has a `.git`, which is then guarded itself."""
        mode = self._dotgits.get(f"{submodule}/.git", 0)
        return stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not _is_empty(self.root, f"{submodule}/.git"))

    def _working_trees(self, path: str) -> set[str]:
        """Return the working trees, below the workspace, of a repository or of a worktree's part of one."""
        tops = {pointer.removesuffix(".git") for pointer, target in self._pointers.items() if target == path}
        if path.rpartition("/")[2] == ".git":
            tops.add(path.removesuffix(".git"))
        for setting in read_settings(git_layout.read_small(self.root, f"{path}/config") or ""):
            if setting.key == "core.worktree":
                tops.add(git_layout.inside(self.root, f"{path}/{setting.value}"))
        return {top for top in tops if not top.startswith("/")}

    def _lock_named(self, used: Iterable[str], beside: Sequence[str]) -> None:
        """Lock what git reads or runs by settings and hooks; what is missing is created, so that the sandbox cannot.

        Left to the report after the run: packages, whose directories package managers replace, programs behind a link,
        over which nothing can be mounted, and missing modules of Python, in whose place no file may stand.
        """
        own = git_programs.repositories(self.root, used, self._pointers)
        repositories = [*own, *git_programs.repositories_beside(beside)]
        for path, names, reason, may_be_created in git_programs.named_paths(self.root, repositories):
            if not path:
                raise UsageError(
                    f"The workspace {self.root!r} is refused: git on this machine runs what is in it ({reason}).",
                    remedy="Change that setting, work on a copy (--copy, copy=True), or name another directory.",
                )
            if git_programs.package_directory(path):
                continue
            if names is Names.DIRECTORY:
                is_there = _make(self.root, path, None)
            elif names is Names.FILE:
                is_there = _make(self.root, path, git_programs.HELD_FILE)
            else:
                is_there = (kind := _kind(self.root, path)) == "file"
                if not kind and may_be_created:
                    with contextlib.suppress(UsageError):  # ignored: a directory above is a link or a file
                        is_there = _make(self.root, path, git_programs.HELD_PROGRAM)
            if is_there:
                self.lock(path)
                # `git stash -u` would fail to remove an empty directory that is a mount point
                if git_programs.is_held(self.root, path) or (names is Names.DIRECTORY and _is_empty(self.root, path)):
                    git_exclude.add(self.root, path, self._git_directories())

    def _git_directories(self) -> dict[str, str]:
        """Return the git directories by the top directory of their working tree, as `git_exclude.add` takes them."""
        own = {path: path for path, mode in self._dotgits.items() if stat.S_ISDIR(mode)}
        inside = {path: target for path, target in self._pointers.items() if target and not target.startswith("/")}
        by_top = {path.rpartition("/")[0]: directory for path, directory in (own | inside).items()}
        return _outer_git_directory(self.root) | by_top


def _enclosing_repository(workspace: str) -> Iterator[tuple[str, str, str]]:
    """Yield the repository around a workspace that has none itself: its directory, as (root, path), and its top."""
    for top in [workspace, *map(str, PurePosixPath(workspace).parents)]:
        if not os.path.lexists(f"{top}/.git"):
            continue
        target = git_layout.pointed(top, ".git") if Path(top, ".git").is_file() else ".git"
        if top != workspace and target is not None:
            yield (target, "", top) if target.startswith("/") else (top, target, top)
        return


def _outer_git_directory(workspace: str) -> dict[str, str]:
    """Return the git directory outside of the workspace that the workspace is a part of, by the top of that tree.

    It counts only if it names the working tree in turn: a sandbox may have written the workspace's `.git` file.
    """
    for number, top in enumerate([workspace, *map(str, PurePosixPath(workspace).parents)]):
        if not os.path.lexists(f"{top}/.git"):
            continue
        relative = "/".join([".."] * number)
        if Path(top, ".git").is_dir():
            is_own = relative and not Path(top, ".git").is_symlink()
            return {relative: f"{top}/.git"} if is_own else {}
        target = git_layout.pointed(top, ".git")
        directory = os.path.normpath(f"{top}/{target}") if target and not target.startswith("/") else target
        if directory is None or PurePosixPath(directory).is_relative_to(workspace):
            return {}
        back = (git_layout.read_small(directory, "gitdir") or "").strip().removesuffix("/.git")
        for setting in read_settings(git_layout.read_small(directory, "config") or ""):
            back = f"{directory}/{setting.value}" if setting.key == "core.worktree" else back
        return {relative: directory} if back and os.path.realpath(back) == top else {}
    return {}


# --- files of the workspace, reached through no link ---


def _kind(workspace: str, path: str) -> str:
    """Return "file", "directory", "other", or "" for a path that does not exist or is absolute."""
    if path.startswith("/"):
        return ""
    try:
        with opened_below(workspace, path, os.O_RDONLY) as descriptor:
            mode = os.fstat(descriptor).st_mode
    except FileNotFoundError:
        return ""
    except OSError:
        return "other"
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def _is_empty(workspace: str, path: str) -> bool:
    """Whether the directory is empty, or cannot be reached without following a link."""
    with contextlib.suppress(OSError), opened_below(workspace, path) as directory, os.scandir(directory) as entries:
        return next(entries, None) is None
    return True


def _hard_linked(path: str) -> Iterator[tuple[int, int]]:
    """Yield device and inode of each file at or below path that has several names, except a repository's objects.

    Clones on this machine share objects, and git compares each with its name.
    """
    files = [path]
    for directory, inner, names in os.walk(path):
        if "HEAD" in names and "objects" in inner:
            inner.remove("objects")
        files += [f"{directory}/{name}" for name in names]
    for file in files:
        with contextlib.suppress(OSError):  # ignored: it was removed meanwhile
            status = os.lstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield status.st_dev, status.st_ino


def _is_fifo(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # ignored: it was removed meanwhile
        return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)
    return False


def _answers(workspace: str, path: str) -> bool:
    """Whether a program may listen on a socket. One that refuses is dead: bind(2) fails on an existing name.

    Neither a network namespace nor a read-only mount prevents a container from connecting to a socket by its path.
    """
    parent, _, name = path.rpartition("/")
    with contextlib.suppress(OSError), opened_below(workspace, parent) as directory:
        try:
            if not stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                return False
            address = f"/proc/self/fd/{directory}/{name}" if sys.platform == "linux" else f"{workspace}/{path}"
            with socket.socket(socket.AF_UNIX) as caller:
                caller.setblocking(False)  # noqa: FBT003 - the standard library's
                caller.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            pass  # the socket has another type, is not accessible to us, or is busy
        return True
    return False


def _make(workspace: str, path: str, content: bytes | None) -> bool:
    """Create a missing file with content, or a directory if None; its owner is that of the directory above.

    Return whether it exists now. If not, the sandbox cannot create it either: the directory is another user's.

    Raises:
        UsageError: it cannot be created, is of another type, or is a link.
    """
    wanted = "directory" if content is None else "file"
    parent, _, name = path.rpartition("/")
    try:
        if parent and not _kind(workspace, parent):
            _make(workspace, parent, None)
        with opened_below(workspace, parent) as directory:
            try:
                made = _make_in(directory, name, content)
            except PermissionError:
                if os.fstat(directory).st_uid != os.geteuid() and not _kind(workspace, path):
                    return False
                raise
    except OSError as error:
        raise _refused(path, f"it cannot be made ({error.strerror})", "Make it") from error
    if not made and (kind := _kind(workspace, path)) != wanted:
        why = f"it is not a {wanted}, or is a link" if kind else "it was removed meanwhile"
        raise _refused(path, why, "Put one in its place")
    return True


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


def _nothing() -> str:
    """Return the path of our empty file, which is mounted over sockets."""
    path = state_dir(create=True) / "nothing"
    try:
        path.touch(mode=0o400)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be made: {error.strerror}. Make it writable.") from error
    return str(path.resolve())


def _refused(path: str, why: str, remedy: str) -> UsageError:
    return UsageError(
        f"{path!r} in the workspace cannot be guarded: {why}. {remedy}, or guard nothing with --git rw (git='rw')."
    )
