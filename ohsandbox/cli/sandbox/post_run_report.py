"""Report, after a run, of files in a bound directory that this machine may execute or obey by itself."""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.runtime.workspace.changes import ChangeKind, WorkspaceChange, WorkspaceReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

MAX_NAMES = 200
"""Number of names of each kind that are printed; a file has all of them."""
MAX_EXECUTABLES = 20
"""Number of executables that are named; a build makes hundreds, so more are counted by directory."""


def report_new_changes(runtime: Runtime | None, warn: Callable[[str], None], *, last: bool = False) -> None:
    """Report what appeared or changed in the bound directory since the last report; last: no more changes follow."""
    if runtime is None or (directory := runtime.watched) is None:
        return
    killed = runtime.previous_was_killed
    report_changes(runtime.workspace_changes(), directory, warn=warn, killed=killed)
    if last:
        runtime.discard_changes()


def report_changes(
    report: WorkspaceReport, directory: Path, *, warn: Callable[[str], None], killed: bool = False
) -> None:
    """Print what should be checked; nothing if there is nothing.

    Args:
        report: the changes.
        directory: the bound directory.
        warn: prints a line, and makes control characters in it visible.
        killed: the changes are those of an earlier session that was killed before its report.
    """
    if not report.changes:
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.since))
    since = f" (since {when}, when a session began that was killed)" if killed else ""
    warn(f"Look at these before you work in {directory} again; this machine may run or obey them by itself{since}:")
    not_held = dict(report.not_held)
    is_cut = bool(not_held)
    for kind, group in groupby(report.changes, key=lambda change: change.kind):
        changes = list(group)
        total = len(changes) + not_held.get(kind, 0)
        warn(f"{kind.words} ({total}):")
        lines = [_line(change) for change in changes]
        if kind is ChangeKind.EXECUTABLE and len(changes) > MAX_EXECUTABLES:
            tops = Counter(change.path.partition("/")[0] if "/" in change.path else "." for change in changes)
            lines = [f"{count} in {top}" for top, count in tops.most_common()]
        for line in lines[:MAX_NAMES]:
            warn(f"  {line}")
        if len(lines) > MAX_NAMES:
            warn(f"  and {total - MAX_NAMES} more")
        is_cut = is_cut or len(lines) > MAX_NAMES or len(lines) != len(changes)
    if is_cut:
        warn(f"All by name: {_write_all(report)}")


def _line(change: WorkspaceChange) -> str:
    detail = f" ({change.detail})" if change.detail else ""
    return f"{'new' if change.is_new else 'changed'}: {change.path}{detail}"


def _write_all(report: WorkspaceReport) -> str:
    """Write every line to a private file; return its path."""
    path = subdirectory("workspaces") / time.strftime("report-%Y%m%d-%H%M%S.txt")
    lines = [f"{change.kind.words}: {safe_line(_line(change), limit_chars=10_000)}" for change in report.changes]
    lines += [f"{kind.words}: {count} more, which were counted only" for kind, count in report.not_held]
    try:
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"), durable=False)
    except OSError as error:
        return f"they could not be written ({error.strerror})"
    return str(path)
