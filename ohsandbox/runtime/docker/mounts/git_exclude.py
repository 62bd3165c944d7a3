"""Lines in a repository's `info/exclude` for files that `guard` created: no `git add -A` commits one.

The repository may be outside of the workspace: that around a subdirectory, or that of a linked worktree or a submodule.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.workspace.git_layout import MAX_SMALL_FILE, inside, opened_below, parents_of, read_small

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    root, info = _info(workspace, git_directories[top])
    relative = os.path.relpath(f"{workspace}/{path}", os.path.normpath(f"{workspace}/{top}"))
    pattern = re.sub(r"([\\*?\[\]! #])", r"\\\1", relative)
    text = read_small(root, f"{info}/exclude") or ""
    line = f"{_header(root, workspace)}/{pattern}\n"
    is_whole = len(text) < MAX_SMALL_FILE // 4  # in bytes at most four times as long: `read_small` cuts no more
    if is_whole and line.count("\n") == len(("header", "pattern")) and line not in text:
        _write(root, info, line + text)


def clean(workspace: str, git_directory: str) -> None:
    """Remove what `add` wrote for the workspace from a git directory, whose path is as in `add`."""
    root, info = _info(workspace, git_directory)
    text = read_small(root, f"{info}/exclude") or ""
    first, *parts = text.split(_header(root, workspace))
    if parts:
        _write(root, info, first + "".join(part.partition("\n")[2] for part in parts))


def _info(workspace: str, git_directory: str) -> tuple[str, str]:
    """Return the directory `info` as (root, path): below the workspace no link is followed."""
    is_inside = not git_directory.startswith("/")
    root, path = (workspace, git_directory or ".") if is_inside else (os.path.realpath(git_directory), ".")
    common = inside(root, f"{path}/{(read_small(root, f'{path}/commondir') or '.').strip()}")
    return (os.path.realpath(common), "info") if common.startswith("/") else (root, f"{common}/info")


def _header(root: str, workspace: str) -> str:
    """Return the line before each of ours; in a repository that several workspaces share it names this one."""
    return _HEADER.format(place="here" if root == workspace else f"in {workspace}")


def _write(root: str, info: str, text: str) -> None:
    """Replace `exclude` in a directory, or remove it if it says nothing; ignored where it cannot be written."""
    temporary = "exclude.ohsandbox"
    with contextlib.suppress(OSError), opened_below(root, info) as directory:
        if not text:
            os.unlink("exclude", dir_fd=directory)
            return
        owner = os.fstat(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        descriptor = os.open(temporary, NEW_FILE, 0o644, dir_fd=directory)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text.encode("utf-8", "surrogateescape"))
            if os.geteuid() == 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.rename(temporary, "exclude", src_dir_fd=directory, dst_dir_fd=directory)
