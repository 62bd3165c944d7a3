"""`ohsandbox diff` and `ohsandbox apply`: what the agent changed, shown and brought to a directory of this machine."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox.cli.aftermath import Aftermath
from ohsandbox.cli.console import open_console
from ohsandbox.cli.prompt import confirm
from ohsandbox.cli.view import safe, safe_line
from ohsandbox.conversation.snapshots import merge, patch_of, put_back
from ohsandbox.conversation.stored import find_stored
from ohsandbox.conversation.workspace_then import bound_workspace, copied_workspace, look_there, work_between
from ohsandbox.errors import UsageError
from ohsandbox.paths import conversations_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.conversation.snapshots import Change, Refused
    from ohsandbox.conversation.workspace_then import Work

MAX_LINES = 20
_STYLES = (
    (("diff --git", "index ", "old mode", "new mode", "deleted file", "new file", "--- ", "+++ "), "bold"),
    (("@@ ",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
)


def show_diff(wanted: str, a: int | None, b: int | None, root: Path | None, *, stat: bool) -> int:
    """Print what changed in the workspace: coloured at a terminal, else the bytes of a patch.

    Raises:
        UsageError: the files of then were not kept, or there is no git.
        SandboxUnavailable: the engine that has them does not serve.
    """
    with work_between(find_stored(root or conversations_dir(), wanted), a, b) as work:
        _tell_limits(work)
        if stat:
            for change in work.changes:
                print(f"{change.word:8}{safe_line(change.path, limit_chars=1000)}")
            return 0
        if sys.stdout.isatty():
            _show_patch(work.changes, work)
        else:
            _write_patch(work.changes, work)
    return 0


def apply_changes(wanted: str, root: Path | None, *, to: Path | None, yes: bool) -> int:
    """Show what the agent changed and, when the person agrees, bring it to a directory; all of it or nothing.

    Raises:
        UsageError: the directory cannot be used, the files were not kept, or nobody can be asked.
        SandboxUnavailable: the engine that has them does not serve.
    """
    directory = find_stored(root or conversations_dir(), wanted)
    target = (to or copied_workspace(directory) or Path.cwd()).resolve()
    if not target.is_dir():
        raise UsageError(f"{str(target)!r} is no directory. Make it first, or name another with --to.")
    bound = bound_workspace(directory)
    if bound is not None and bound.resolve() == target.resolve():
        raise UsageError(f"The agent worked in {str(target)!r} itself: its changes are there. See `ohsandbox undo`.")
    with work_between(directory) as work:
        _tell_limits(work)
        facts = target.stat()
        there = look_there(target, work.changes, work.store)
        found = merge(work.changes, there, work.store, owner=(facts.st_uid, facts.st_gid))
        if found.conflicts:
            return _tell_refused(found.conflicts, f"Nothing was changed in {target}: these do not fit what is there.")
        if not found.changes:
            print(f"Nothing to do: {safe_line(target)} has it all.")
            return 0
        if not yes or sys.stdout.isatty():
            _show_patch(found.changes, work)
        if not _agreed(found.changes, target, yes=yes):
            print("Nothing was changed.")
            return 1
        return _put(target, found.changes, work)


def _put(target: Path, changes: Sequence[Change], work: Work) -> int:
    from ohsandbox.cli.plain import PlainView  # noqa: PLC0415 - only what is applied is looked at

    aftermath = Aftermath(target)
    refused = put_back(target, changes, work.store, git=False)
    print(f"{len(changes) - len(refused)} changes were made in {safe_line(target)}.")
    aftermath.tell(PlainView())
    if refused:
        return _tell_refused(refused, "These could not be written:")
    return 0


def _agreed(changes: Sequence[Change], target: Path, *, yes: bool) -> bool:
    for change in changes:
        if change.new is not None and change.new.kind == "link":
            print(f"A symlink: {safe_line(change.path)} -> {safe_line(change.new.what)}", file=sys.stderr)
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"{len(changes)} files would be changed in {str(target)!r}, and nobody can be asked. Say --yes."
        )
    return confirm(f"Change these {len(changes)} files in {safe_line(target)}?")


def _write_patch(changes: Sequence[Change], work: Work) -> None:
    """The patch itself, for a program."""
    sys.stdout.flush()
    for part in patch_of(changes, work.store.content):
        sys.stdout.buffer.write(part.text)
    sys.stdout.buffer.flush()


def _show_patch(changes: Sequence[Change], work: Work) -> None:
    """The patch for a person, who may be about to agree to it."""
    console = open_console()
    for part in patch_of(changes, work.store.content):
        for line in part.text.decode("utf-8", "replace").split("\n")[:-1]:
            console.print(Text(safe(line), style=_style(line)), soft_wrap=True)


def _style(line: str) -> str:
    return next((style for beginnings, style in _STYLES if line.startswith(beginnings)), "")


def _tell_limits(work: Work) -> None:
    sys.stdout.flush()
    for path, why in [*work.left_out.items()][:MAX_LINES]:
        print(f"ohsandbox: left out: {safe_line(path)}: {safe_line(why)}", file=sys.stderr)
    if len(work.left_out) > MAX_LINES:
        print(f"ohsandbox: left out: {len(work.left_out) - MAX_LINES} more", file=sys.stderr)
    if not work.is_whole:
        print("ohsandbox: what was done after the last checkpoint is not in this; resume it to see.", file=sys.stderr)


def _tell_refused(refused: Sequence[Refused], heading: str) -> int:
    print(safe_line(heading, limit_chars=1000), file=sys.stderr)
    for one in refused[:MAX_LINES]:
        print(f"  {safe_line(one.path)}: {safe_line(one.why)}", file=sys.stderr)
    if len(refused) > MAX_LINES:
        print(f"  and {len(refused) - MAX_LINES} more", file=sys.stderr)
    return 1
