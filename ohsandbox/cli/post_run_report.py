"""What a person is told of a directory that a sandbox worked in: see `runtime.workspace_changes`."""

from __future__ import annotations

import time
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import safe_line
from ohsandbox.paths import subdirectory
from ohsandbox.private_files import write_atomically
from ohsandbox.runtime.workspace.changes import ChangeKind, WorkspaceChange, WorkspaceReport, compare, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ohsandbox.cli.rendering.view import View

MAX_NAMES = 200
"""So many names of a kind are printed; more of a kind are an attack by themselves, and all stand in a file."""
MAX_EXECUTABLES = 20
"""A build makes hundreds: more are counted by directory."""


def tell_changes(
    report: WorkspaceReport, directory: Path, *, warn: Callable[[str], None], killed: bool = False
) -> None:
    """Say what should be looked at; nothing where nothing is.

    Args:
        report: what changed.
        directory: where.
        warn: prints a line, and makes control characters in it visible.
        killed: it is of an earlier session that could not tell it.
    """
    if not report.changes:
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.since))
    since = f" (since {when}, when a session began that was killed)" if killed else ""
    warn(f"Look at these before you work in {directory} again; this machine may run or obey them by itself{since}:")
    more = dict(report.not_held)
    cut = bool(more)
    for kind, group in groupby(report.changes, key=lambda change: change.kind):
        changes = list(group)
        total = len(changes) + more.get(kind, 0)
        warn(f"{kind.words} ({total}):")
        lines = list(_executables(changes) if kind is ChangeKind.EXECUTABLE else map(_line, changes))
        for line in lines[:MAX_NAMES]:
            warn(f"  {line}")
        if len(lines) > MAX_NAMES:
            warn(f"  and {total - MAX_NAMES} more")
        cut = cut or len(lines) > MAX_NAMES or len(lines) != len(changes)
    if cut:
        warn(f"All by name: {_write_all(report)}")


class PostRunReport:
    """Takes a look at a directory, and says afterwards what should be looked at by a person."""

    def __init__(self, directory: Path) -> None:
        """Look now."""
        self._directory = directory
        self._before = scan(directory)

    def print_to(self, view: View) -> None:
        """Say what is new or changed since."""
        tell_changes(compare(self._directory, self._before, scan(self._directory)), self._directory, warn=view.warn)


def _line(change: WorkspaceChange) -> str:
    detail = f" ({change.detail})" if change.detail else ""
    return f"{'new' if change.is_new else 'changed'}: {change.path}{detail}"


def _executables(changes: list[WorkspaceChange]) -> Iterator[str]:
    if len(changes) <= MAX_EXECUTABLES:
        yield from map(_line, changes)
        return
    for top, count in Counter(_top(change.path) for change in changes).most_common():
        yield f"{count} in {top}"


def _top(path: str) -> str:
    head, slash, _ = path.partition("/")
    return head if slash else "."


def _write_all(report: WorkspaceReport) -> str:
    """Every line in a private file; its path."""
    path = subdirectory("workspaces") / time.strftime("report-%Y%m%d-%H%M%S.txt")
    lines = [f"{one.kind.words}: {safe_line(_line(one), limit_chars=10_000)}" for one in report.changes]
    lines += [f"{kind.words}: {count} more, which were counted only" for kind, count in report.not_held]
    try:
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"), durable=False)
    except OSError as error:
        return f"they could not be written ({error.strerror})"
    return str(path)
