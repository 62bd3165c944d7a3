"""Changes of files for a person: a line each, the size of a binary, counts with a bar, a patch in colour."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ohsandbox.cli.rendering.text import safe, safe_line, size
from ohsandbox.text import counted
from ohsandbox.timetravel.snapshots.manifest import is_git
from ohsandbox.timetravel.snapshots.patch import patch_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ohsandbox.timetravel.snapshots.manifest import FileChange, FileEntry
    from ohsandbox.timetravel.workspace_diff import WorkspaceDiff

MAX_LINES = 20
_MAX_BAR = 50
"""Length of the bar, in characters, of the file with the most changes."""
_BINARY_BYTES = 8000
"""Length of the prefix, in bytes, that is searched for a NUL byte, as git does."""
_OBEYED = {"config", "config.worktree", "hooks", "info", "commondir"}
"""Names in a `.git` directory that control what git runs."""
_STYLES = (
    (("diff --git", "index ", "old mode", "new mode", "deleted file", "new file", "--- ", "+++ "), "bold"),
    (("@@ ",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
)


def change_lines(changes: Sequence[FileChange]) -> list[str]:
    """Return a line for each change to what git obeys, one for each outside `.git`, and one for the rest of `.git`."""
    verbs = {"new": "comes back", "changed": "is put back", "gone": "is removed"}
    plain = [change for change in changes if not is_git(change.path)]
    obeyed = [change for change in changes if is_git(change.path) and _OBEYED & {*change.path.split("/")}]
    shown = [f"{safe_line(change.path)} {verbs[change.word]}" for change in (*obeyed, *plain)]
    within = len(changes) - len(shown)
    return [f".git is put back ({counted(within, 'file')})", *shown] if within else shown


def split_binaries(work: WorkspaceDiff) -> tuple[list[FileChange], list[FileChange]]:
    """Separate changes of text files from those of binaries, which have a NUL near the beginning, as in git."""
    by_kind: dict[bool, list[FileChange]] = {False: [], True: []}
    for change in work.changes:
        by_kind[any(_is_binary(entry, work) for entry in (change.old, change.new))].append(change)
    return by_kind[False], by_kind[True]


def _is_binary(entry: FileEntry | None, work: WorkspaceDiff) -> bool:
    return entry is not None and entry.kind == "file" and b"\0" in work.store.content(entry.what)[:_BINARY_BYTES]


def sizes_of(change: FileChange) -> str:
    """Describe a binary's change: `new, 12 kB`, `changed, 12 kB before, 13 kB now`, `gone, 12 kB before`."""
    old = f"{size(change.old.size)} before" if change.old is not None else ""
    new = f"{size(change.new.size)}{' now' if old else ''}" if change.new is not None else ""
    return ", ".join(filter(None, [change.word, old, new]))


def stat_lines(work: WorkspaceDiff, *, columns: int) -> Iterator[Text]:
    """Yield a line for each file with a bar of added and removed lines, and a total."""
    texts, binaries = split_binaries(work)
    counts: dict[str, tuple[int, int]] = {}
    for part in patch_of(texts, work.store.content):
        _, _, hunks = part.text.partition(b"\n@@ ")
        rows = hunks.split(b"\n")[1:]
        was = counts.get(part.path, (0, 0))
        counts[part.path] = was[0] + sum(row[:1] == b"+" for row in rows), was[1] + sum(row[:1] == b"-" for row in rows)
    names = {change.path: safe_line(change.path, limit_chars=1000) for change in work.changes}
    wide = max(map(cell_len, names.values()), default=0)
    most = max((sum(pair) for pair in counts.values()), default=0)
    room = max(min(columns - wide - 20, _MAX_BAR), 5)
    for change in work.changes:
        head = f"{change.word:8}{set_cell_size(names[change.path], wide)}"
        if change in binaries:
            yield Text(f"{head}  binary, {sizes_of(change).removeprefix(f'{change.word}, ')}")
        elif change.path in counts:
            added, removed = counts[change.path]
            scale = room / most if most > room else 1
            bar = Text.assemble(("+" * ceil(added * scale), "green"), ("-" * ceil(removed * scale), "red"))
            yield Text(f"{head}  {added + removed:>5} ").append_text(bar)
        else:
            yield Text(head.rstrip())
    if files := sum(not change.is_of_directories for change in work.changes):
        added, removed = (sum(pair[at] for pair in counts.values()) for at in (0, 1))
        yield Text(f"{counted(files, 'file')} changed, {counted(added, 'line')} added, {removed:,} removed")


def coloured_patch(changes: Sequence[FileChange], work: WorkspaceDiff) -> Iterator[Text]:
    """Return the lines of the patch, coloured, with nothing in them hidden."""
    for part in patch_of(changes, work.store.content):
        for line in part.text.decode("utf-8", "replace").split("\n")[:-1]:
            style = next((style for beginnings, style in _STYLES if line.startswith(beginnings)), "")
            yield Text(safe(line), style=style)


def leading_lines(lines: Sequence[str], more: str) -> list[str]:
    """Return the first lines and the number of the rest."""
    return [*lines[:MAX_LINES], *([more.format(len(lines) - MAX_LINES)] if len(lines) > MAX_LINES else [])]
