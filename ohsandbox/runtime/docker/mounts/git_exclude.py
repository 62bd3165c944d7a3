"""Lines in a repository's `info/exclude` for files that `guard` created: no `git add -A` commits one.

The repository may be outside of the workspace: that around a subdirectory, or that of a linked worktree or a submodule.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ohsandbox.paths import state_dir
from ohsandbox.private_files import locked, new_file
from ohsandbox.runtime.workspace.git_layout import MAX_SMALL_FILE, inside, opened_below, parents_of, read_small

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HEADER = "# The next line goes with the sandbox of ohsandbox that works {place}.\n"


def add(workspace: str, path: str, git_directories: Mapping[str, str]) -> None:
    """Have git ignore a file of the workspace.

    git_directories is by the top directory of each working tree, relative to the workspace. The workspace itself may be
    a part of one, whose top is above it (`../..`) and whose git directory is an absolute path.
    """
    top = next((above for above in (*parents_of(path), "") if above in git_directories), None)
    outer = [above for above in git_directories if above.startswith("..")]
    if top is None and not outer:
        return
    top = outer[0] if top is None else top
    if (place := _info(workspace, git_directories[top])) is None:
        return
    relative = os.path.relpath(f"{workspace}/{path}", os.path.normpath(f"{workspace}/{top}"))
    pattern = re.sub(r"([\\*?\[\]! #])", r"\\\1", relative)
    line = f"{_header(place, workspace)}/{pattern}\n"
    if line.count("\n") == len(("header", "pattern")):
        _change(place, lambda text: text if line in text else line + text)


def clean(workspace: str, git_directory: str) -> None:
    """Remove what `add` wrote for the workspace from a git directory, whose path is as in `add`."""
    if (place := _info(workspace, git_directory)) is None:
        return
    header = _header(place, workspace)

    def without_lines(text: str) -> str:
        first, *parts = text.split(header)
        return first + "".join(part.partition("\n")[2] for part in parts)

    _change(place, without_lines)


def _info(workspace: str, git_directory: str) -> tuple[str, str] | None:
    """Return the directory `info` as (root, path), below which no link is followed; None if it may be another's.

    A sandbox may have written the git directory, with a `commondir` that names any repository of this machine. It is a
    part of that repository only if it lies where git makes the directories of worktrees.
    """
    is_inside = not git_directory.startswith("/")
    root, path = (workspace, git_directory or ".") if is_inside else (os.path.realpath(git_directory), ".")
    common = inside(root, str(PurePosixPath(path, (read_small(root, f"{path}/commondir") or ".").strip())))
    if not common.startswith("/"):
        return root, f"{common}/info"
    common = os.path.realpath(common)
    return None if is_inside or str(PurePosixPath(root).parent) != f"{common}/worktrees" else (common, "info")


def _header(place: tuple[str, str], workspace: str) -> str:
    """Return the line before each of ours; in a repository that several workspaces share it names this one."""
    return _HEADER.format(place="here" if place[0] == workspace else f"in {workspace}")


def _change(place: tuple[str, str], changed: Callable[[str], str]) -> None:
    """Replace the text of `exclude` in a directory; the file is removed if it says nothing any more.

    Nothing is done where it is a link, too long to be read whole, or cannot be read or written.
    """
    root, info = place
    lock = state_dir(create=True) / "exclude.lock"
    with contextlib.suppress(OSError), opened_below(root, info) as directory, locked(lock):
        owner, mode, old = os.fstat(directory), 0o644, b""
        with contextlib.suppress(FileNotFoundError), opened_below(root, f"{info}/exclude", os.O_RDONLY) as descriptor:
            mode, old = os.fstat(descriptor).st_mode, os.read(descriptor, MAX_SMALL_FILE)
            if not stat.S_ISREG(mode):
                return
        new = changed(old.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if new == old or max(len(old), len(new)) >= MAX_SMALL_FILE:
            return
        if not new:
            os.unlink("exclude", dir_fd=directory)
            return
        with new_file(directory, "exclude") as file:
            file.write(new)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), mode & 0o777)
