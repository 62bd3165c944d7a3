"""What a conversation changed in its workspace in all, as an entry of its page: by file, side by side."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.lines import patch_lines
from ohsandbox.cli.rendering.text import masked, safe_line
from ohsandbox.cli.viewer.diffs import MAX_PATH_CHARS, difference
from ohsandbox.errors import OhsandboxError
from ohsandbox.text import counted
from ohsandbox.timetravel.checkpoints import CheckpointIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.timetravel.snapshots import FileChange
    from ohsandbox.timetravel.workspace_diff import WorkspaceDiff

MAX_FILES = 300
MAX_ROWS = 20_000
"""Of all files: a browser has to hold them. `ohsandbox diff` has no limit."""


def changes_block(directory: Path) -> dict[str, Any] | None:
    """The block that has them; None where no checkpoint was taken, so that nothing was changed, or it is not known.

    Of a container, which is not looked at while it works, it has the files of the last checkpoint. It may take as long
    as `ohsandbox diff` does: a second, where the files are in an image.
    """
    with contextlib.suppress(OhsandboxError):  # a damaged log, which the page tells of itself
        if CheckpointIndex.of(directory).kept:
            return _looked_at(directory)
    return None


def _looked_at(directory: Path) -> dict[str, Any]:
    from ohsandbox.timetravel.workspace_diff import diff_workspace  # noqa: PLC0415 - what it needs is slow to import

    try:
        with diff_workspace(directory, ignored=False) as work:
            return _block(work)
    except OhsandboxError as error:
        told = safe_line(f"What was changed in all is not known: {error}", limit_chars=1000)
        return {"is": "changes", "text": told, "files": [], "notes": []}


def _block(work: WorkspaceDiff) -> dict[str, Any]:
    from ohsandbox.cli.time_travel import sizes_of, split_binaries  # noqa: PLC0415 - as above
    from ohsandbox.timetravel.snapshots import patch_of  # noqa: PLC0415 - as above

    texts, binaries = split_binaries(work)
    shown = texts[:MAX_FILES]
    patches: dict[str, str] = {}
    for part in patch_of(shown, lambda name: _masked(work.store.content(name))):
        patches[part.path] = patches.get(part.path, "") + part.text.decode("utf-8", "replace")
    files = _files(shown, patches)
    files += [_file(one, note=f"binary, {sizes_of(one).removeprefix(f'{one.word}, ')}") for one in binaries[:MAX_FILES]]
    added, removed = (sum((one.get("difference") or {}).get(kind, 0) for one in files) for kind in ("added", "removed"))
    notes = [safe_line(f"left out: {path}: {why}", limit_chars=MAX_PATH_CHARS) for path, why in work.left_out.items()]
    if (more := len(texts) + len(binaries) - len(files) - sum(one.is_of_directories for one in shown)) > 0:
        notes.append(f"{counted(more, 'more file')}: `ohsandbox diff` shows them.")
    if not work.is_whole:
        notes.append("What was done after the last checkpoint is not in this.")
    said = f"Changed files: {len(files):,}, {counted(added, 'line')} added, {removed:,} removed"
    return {
        "is": "changes",
        "text": said if files else "No file was changed.",
        "files": files,
        "notes": notes[:MAX_FILES],
    }


def _files(changes: Sequence[FileChange], patches: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    rows = 0
    for change in changes:
        if change.is_of_directories:
            continue
        lines = patch_lines(patches.get(change.path, ""))
        rows += len(lines)
        if rows > MAX_ROWS:
            found.append(_file(change, note="too long for this page: `ohsandbox diff` shows it"))
        elif (made := difference(change.path, lines)) is not None:
            found.append(_file(change) | {"difference": made})
        else:
            found.append(_file(change, note="empty, or its mode or kind alone has changed"))
    return found


def _file(change: FileChange, *, note: str = "") -> dict[str, Any]:
    return {"path": safe_line(change.path, limit_chars=MAX_PATH_CHARS), "word": change.word, "note": note}


def _masked(content: bytes) -> bytes:
    """A text without secrets, before it is cut into lines: one of several lines is found then, too."""
    return masked(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
