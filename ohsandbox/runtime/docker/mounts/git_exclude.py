"""Lines in a repository's `info/exclude` for files that `guard` created: no `git add -A` commits one."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from ohsandbox.private_files import NEW_FILE
from ohsandbox.runtime.workspace.git_layout import inside, opened_below, parents_of, read_small

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER = "# The next line goes with the sandbox of ohsandbox that works here.\n"
_ADDED = re.compile(re.escape(_HEADER) + r"[^\n]*\n")


def add(workspace: str, path: str, git_directories: Mapping[str, str]) -> None:
    """Have git ignore a file of the workspace; git_directories is by the top directory of each working tree."""
    top = next((above for above in (*parents_of(path), "") if above in git_directories), None)
    if top is None:  # git works outside of the workspace only
        return
    directory = git_directories[top]
    common = inside(workspace, f"{directory}/{(read_small(workspace, f'{directory}/commondir') or '.').strip()}")
    pattern = re.sub(r"([\\*?\[\]! #])", r"\\\1", path.removeprefix(f"{top}/") if top else path)
    text = read_small(workspace, f"{common}/info/exclude") or ""
    line = f"{_HEADER}/{pattern}\n"
    if "\n" not in pattern and line not in text:
        _write(workspace, f"{common}/info", text + ("\n" if text and not text.endswith("\n") else "") + line)


def clean(workspace: str, info: str) -> None:
    """Remove what `add` wrote to the file `exclude` of a directory of the workspace."""
    text = read_small(workspace, f"{info}/exclude")
    if text is not None and (own := _ADDED.sub("", text)) != text:
        _write(workspace, info, own)


def _write(workspace: str, info: str, text: str) -> None:
    """Replace `exclude` in a directory; ignored where that is a link, or cannot be written."""
    temporary = "exclude.ohsandbox"
    with contextlib.suppress(OSError), opened_below(workspace, info) as directory:
        owner = os.fstat(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        descriptor = os.open(temporary, NEW_FILE, 0o644, dir_fd=directory)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text.encode("utf-8", "surrogateescape"))
            if os.geteuid() == 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.rename(temporary, "exclude", src_dir_fd=directory, dst_dir_fd=directory)
