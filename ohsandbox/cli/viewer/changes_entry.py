"""The changes of a conversation to its workspace, as an entry of its page: by file, side by side."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ohsandbox.cli.rendering.lines import patch_lines
from ohsandbox.cli.rendering.text import masked, safe_line
from ohsandbox.errors import OhsandboxError
from ohsandbox.text import counted
from ohsandbox.timetravel.checkpoints import CheckpointIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ohsandbox.cli.rendering.lines import BlockLine
    from ohsandbox.timetravel.snapshots.manifest import FileChange
    from ohsandbox.timetravel.workspace_diff import WorkspaceDiff

MAX_FILES = 300
MAX_ROWS = 20_000
"""Largest number of rows, over all files, for the browser's sake. `ohsandbox diff` has no limit."""


def changes_block(directory: Path) -> dict[str, Any] | None:
    """Return the block with the changes; None without a checkpoint, when nothing was changed or nothing is known.

    A working container is not examined; its files are those of the last checkpoint. It may take as long
    as `ohsandbox diff` does: a second, if the files are in an image.
    """
    with contextlib.suppress(OhsandboxError):  # a damaged log, which the page tells of itself
        if CheckpointIndex.of(directory).kept:
            return _looked_at(directory)
    return None


def _looked_at(directory: Path) -> dict[str, Any]:
    from ohsandbox.timetravel.workspace_diff import diff_workspace  # noqa: PLC0415 - slow, and only a page with changes needs it

    try:
        with diff_workspace(directory, ignored=False) as work:
            return _block(work)
    except OhsandboxError as error:
        message = safe_line(f"What was changed in all is not known: {error}", limit_chars=1000)
        return {"is": "changes", "text": message, "files": [], "notes": []}


def _block(work: WorkspaceDiff) -> dict[str, Any]:
    from ohsandbox.cli.rendering.file_changes import sizes_of, split_binaries  # noqa: PLC0415 - slow, and only a page with changes needs it
    from ohsandbox.timetravel.snapshots.patch import patch_of  # noqa: PLC0415 - slow, and only a page with changes needs it

    texts, binaries = split_binaries(work)
    shown = texts[:MAX_FILES]
    patches: dict[str, str] = {}
    for part in patch_of(shown, lambda name: _masked(work.store.content(name))):
        patches[part.path] = patches.get(part.path, "") + part.text.decode("utf-8", "replace")
    files = _files(shown, patches)
    files += [
        _file(change, note=f"binary, {sizes_of(change).removeprefix(f'{change.word}, ')}")
        for change in binaries[:MAX_FILES]
    ]
    added, removed = (
        sum((file.get("difference") or {}).get(kind, 0) for file in files) for kind in ("added", "removed")
    )
    notes = [
        safe_line(f"left out: {path}: {reason}", limit_chars=MAX_PATH_CHARS) for path, reason in work.left_out.items()
    ]
    if (more := len(texts) + len(binaries) - len(files) - sum(change.is_of_directories for change in shown)) > 0:
        notes.append(f"{counted(more, 'more file')}: `ohsandbox diff` shows them.")
    if not work.is_whole:
        notes.append("What was done after the last checkpoint is not in this.")
    summary = f"Changed files: {len(files):,}, {counted(added, 'line')} added, {removed:,} removed"
    return {
        "is": "changes",
        "text": summary if files else "No file was changed.",
        "files": files,
        "notes": notes[:MAX_FILES],
    }


def _files(changes: Sequence[FileChange], patches: dict[str, str]) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    rows = 0
    for change in changes:
        if change.is_of_directories:
            continue
        lines = patch_lines(patches.get(change.path, ""))
        rows += len(lines)
        if rows > MAX_ROWS:
            files.append(_file(change, note="too long for this page: `ohsandbox diff` shows it"))
        elif (file_difference := difference(change.path, lines)) is not None:
            files.append(_file(change) | {"difference": file_difference})
        else:
            files.append(_file(change, note="empty, or its mode or kind alone has changed"))
    return files


def _file(change: FileChange, *, note: str = "") -> dict[str, Any]:
    return {"path": safe_line(change.path, limit_chars=MAX_PATH_CHARS), "word": change.word, "note": note}


def _masked(content: bytes) -> bytes:
    """Mask secrets before the text is split into lines, so that secrets of several lines are found."""
    return masked(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


# --- one file -------------------------------------------------------------------------------------

MAX_LINES = 5000
"""Largest number of lines of a change; a longer one is cut."""
MAX_PATH_CHARS = 1000

Row = list[Any]
"""Number and text of the old line, number and text of the new one (None for a missing side); or a text between rows."""


def difference(path: str, lines: Sequence[BlockLine]) -> dict[str, Any] | None:
    """Return a change for the page, from its printable lines; None if the lines are not a change."""
    counts = {kind: sum(line.kind == kind for line in lines) for kind in ("added", "removed")}
    if not any(counts.values()):
        return None
    rows = list(_rows(lines[:MAX_LINES]))
    left_out = max(0, len(lines) - MAX_LINES)
    return {"path": safe_line(path, limit_chars=MAX_PATH_CHARS), "rows": rows, "left_out": left_out, **counts}


def _rows(lines: Sequence[BlockLine]) -> Iterator[Row]:
    """Yield rows; each run of removed lines is beside the run of added lines that follows it."""
    old: list[BlockLine] = []
    new: list[BlockLine] = []
    ahead = 0  # by so much is a number of the new text larger than that of the same line in the old one
    for at, line in enumerate(lines):
        (old if line.kind == "removed" else new if line.kind == "added" else []).append(line)
        follows = lines[at + 1].kind if at + 1 < len(lines) else ""
        if line.kind in {"added", "removed"} and follows in {"added", "removed"} and not (new and follows == "removed"):
            continue
        yield from _paired_rows(old, new)
        ahead += len(new) - len(old)
        old, new = [], []
        if line.kind == "same":
            yield [line.number - ahead if line.number else None, line.text, line.number or None, line.text]
        elif line.kind not in {"added", "removed"}:
            yield [line.text]


def _paired_rows(old: Sequence[BlockLine], new: Sequence[BlockLine]) -> Iterator[Row]:
    for at in range(max(len(old), len(new))):
        left_cells = [old[at].number or None, old[at].text] if at < len(old) else [None, None]
        right = [new[at].number or None, new[at].text] if at < len(new) else [None, None]
        yield [*left_cells, *right]
