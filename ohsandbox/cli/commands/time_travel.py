"""`ohsandbox undo`, `redo`, `fork`, `diff` and `apply`: earlier states of a conversation and its files."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.prompts.prompt import is_agreed, person_present
from ohsandbox.cli.rendering.file_changes import (
    change_lines,
    coloured_patch,
    leading_lines,
    sizes_of,
    split_binaries,
    stat_lines,
)
from ohsandbox.cli.rendering.tables import open_console, print_paged
from ohsandbox.cli.rendering.text import safe_line, say
from ohsandbox.cli.rendering.view import PlainView
from ohsandbox.cli.sandbox.post_run_report import report_changes
from ohsandbox.cli.session.resume import copy_options
from ohsandbox.conversation.storage import LAST, find_stored, read_stored
from ohsandbox.errors import ConversationOpenError, OhsandboxError, UsageError
from ohsandbox.events import ConversationStatus
from ohsandbox.paths import check_own, conversations_dir
from ohsandbox.persistence import holder_of, stream_events
from ohsandbox.runtime.workspace.changes import compare_scans, scan_tree
from ohsandbox.text import counted
from ohsandbox.timetravel import undo
from ohsandbox.timetravel.checkpoints import find_checkpoint
from ohsandbox.timetravel.fork import empty_directory, fork, not_kept, restore_workspace
from ohsandbox.timetravel.snapshots.manifest import is_over_limit, is_too_large
from ohsandbox.timetravel.snapshots.patch import patch_of
from ohsandbox.timetravel.snapshots.restore import write_changes
from ohsandbox.timetravel.snapshots.three_way_merge import merge_changes
from ohsandbox.timetravel.snapshots.workspaces import Workspaces
from ohsandbox.timetravel.workspace_diff import (
    BEFORE,
    bound_workspaces,
    copied_workspace,
    diff_workspace,
    scan_changed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ohsandbox.timetravel.snapshots.manifest import FileChange
    from ohsandbox.timetravel.snapshots.restore import UnappliedChange
    from ohsandbox.timetravel.workspace_diff import WorkspaceDiff

_MAX_TURNS_DIGITS = 3
"""A longer number is the prefix of a conversation id, which begins with a date."""
_MAX_EVENT_DIGITS = 6
"""As above, for an event number."""


# --- undo, redo and fork ----------------------------------------------------------------------------


def undo_turns(wanted: str, turns: str | None, root: Path | None, *, yes: bool) -> int:
    """Fork the conversation before its last turns, and revert the agent's changes in a bound workspace."""
    if turns is None and wanted.isdecimal() and len(wanted) <= _MAX_TURNS_DIGITS:
        wanted, turns = LAST, wanted
    if turns is not None and not (turns.isdecimal() and int(turns)):
        raise UsageError(f"Invalid number of turns {turns!r}: expected 1 or more, as in `ohsandbox undo ID 2`.")
    directory = _closed(wanted, root)
    plan = undo.plan_undo(directory, int(turns or 1))
    if not _agreed(plan, "`ohsandbox redo` brings it back.", yes=yes):
        print("Nothing was changed.")
        return 1
    forked, refused = undo.undo(plan)
    copy_options(directory, forked.directory, workspace=plan.workspace.only if plan.workspace else None)
    taken = "turn" if int(turns or 1) == 1 else f"{int(turns or 1)} turns"
    print(f"Conversation {forked.id} is {directory.name} without its last {taken}; that one stays.")
    if (source := copied_workspace(directory)) is not None:
        print(f"{safe_line(source)} is unchanged, with what `ohsandbox apply` wrote there: the agent worked on a copy.")
    return _print_result(forked.id, plan.workspace, refused, root)


def redo_undone(wanted: str, root: Path | None, *, yes: bool) -> int:
    """Restore what an undo removed and return to the original conversation."""
    plan = undo.plan_redo(_closed(wanted, root))
    if not _agreed(plan, "`ohsandbox undo` takes it away again.", yes=yes):
        print("Nothing was changed.")
        return 1
    older, refused = undo.redo(plan)
    print(f"What {plan.directory.name} had taken back is there again, and conversation {older.name} with it.")
    return _print_result(older.name, plan.workspace, refused, root)


def _own(wanted: str, root: Path | None) -> Path:
    """Find a conversation whose log may decide what is written where: nobody else can have written it."""
    directory = find_stored(root or conversations_dir(), wanted)
    check_own(directory)
    return directory


def _closed(wanted: str, root: Path | None) -> Path:
    directory = _own(wanted, root)
    if (holder := holder_of(directory)) is not None:
        raise ConversationOpenError(f"Conversation {directory.name!r} is open in process {holder}. Close it there.")
    return directory


def fork_at(wanted: str, at: int | None, root: Path | None, *, workspace: Path | None) -> int:
    """Create a conversation from the first events of another, with the files at that event."""
    directory = _own(wanted, root)
    seq = stream_events(directory, lambda _: None).records - 1 if at is None else at
    bound = Workspaces.recorded(find_checkpoint(directory, seq).data.get("workspace"))
    if bound is not None and workspace is None:
        raise UsageError(
            "The files are in a directory of this machine. Name an empty directory for the fork with --workspace."
        )
    if bound is None and workspace is not None:
        raise UsageError("The files are in the container of the conversation. Leave out --workspace.")
    place = None if workspace is None else empty_directory(workspace)
    moved = None if bound is None or place is None else bound.moved(place)
    forked = fork(directory, seq, workspace=moved)
    refused = restore_workspace(forked)
    copy_options(directory, forked.directory, workspace=place)
    if place is not None:
        _print_paths(f"not kept, so not in {place}", not_kept(forked).items())
    print(f"Conversation {forked.id} goes on from event {seq} of {directory.name}.")
    return _print_result(forked.id, moved, refused, root)


def _agreed(plan: undo.UndoPlan, remedy: str, *, yes: bool) -> bool:
    """Ask the person to agree to the changes in their directory."""
    if plan.workspace is None:
        return True
    _print_paths("not kept, so not brought back", plan.left_out.items())
    _print_paths("Left as it is", plan.kept_back)
    if not plan.changes:
        return True
    if plan.is_cut_off:
        print("The last turn was cut off: what you changed since it began cannot be told from what the agent did.")
    print(f"In {safe_line(plan.workspace)}:")
    for line in leading_lines(change_lines(plan.changes), "and {} more"):
        print(f"  {line}")
    count = len(plan.changes)
    return is_agreed(
        f"Change {_file_noun(count)}? {remedy}", what=f"{counted(count, 'file')} would be changed", yes=yes
    )


def _print_result(
    conversation: str, workspace: Workspaces | None, refused: Sequence[UnappliedChange], root: Path | None
) -> int:
    _print_paths("Not put back", refused)
    one = workspace.only if workspace else None  # of several all are known, those that are only read as well
    where = "" if one is None else f" --workspace {shlex.quote(str(one))}"
    if (copied := copied_workspace((root or conversations_dir()) / conversation)) is not None:
        where = f" --workspace {shlex.quote(str(copied))} --copy"
    if root is None:
        print(f"To go on with it: ohsandbox run --resume {conversation}{where}")
    return 1 if refused else 0


# --- diff and apply ---------------------------------------------------------------------------------


def show_diff(
    wanted: str, a: int | None, b: int | None, root: Path | None, *, stat: bool, everything: bool = False
) -> int:
    """Print the workspace's changes: coloured and paged at a terminal, otherwise as the bytes of a patch."""
    if wanted.isdecimal() and len(wanted) <= _MAX_EVENT_DIGITS and b is None:  # `diff 3 7`, without an id
        wanted, a, b = LAST, int(wanted), a
    with diff_workspace(find_stored(root or conversations_dir(), wanted), a, b, ignored=everything) as work:
        _print_left_out(work)
        if stat:
            print_paged(stat_lines(work, columns=open_console().width))
            return 0
        texts, binaries = ([*work.changes], []) if everything else split_binaries(work)
        if binaries:
            _print_paths("binary", [(change.path, sizes_of(change)) for change in binaries])
        if not everything and (binaries or work.has_unwanted):
            say("`ohsandbox diff --all` has what was left out as well.")
        if sys.stdout.isatty():
            print_paged(coloured_patch(texts, work))
        else:
            sys.stdout.flush()
            for part in patch_of(texts, work.store.content):
                sys.stdout.buffer.write(part.text)
            sys.stdout.buffer.flush()
    return 0


def apply_changes(wanted: str, root: Path | None, *, to: Path | None, yes: bool) -> int:
    """Show the agent's changes and, if the person agrees, apply all of them to a directory, or none."""
    directory = _own(wanted, root)
    target = (to or copied_workspace(directory) or Path.cwd()).resolve()
    if not target.is_dir():
        raise UsageError(f"Directory {str(target)!r} does not exist. Create it, or name another with --to.")
    if any(bound.resolve() == target for bound in bound_workspaces(directory)):
        raise UsageError(f"The agent worked in {str(target)!r} itself: its changes are there. See `ohsandbox undo`.")
    _warn_cut_off(directory)
    with diff_workspace(directory) as work:
        _print_left_out(work)
        facts = target.stat()
        there = scan_changed(target, work.changes, work.store)
        found = merge_changes(work.changes, there, work.store, owner=(facts.st_uid, facts.st_gid))
        if found.conflicts:
            _print_paths(f"Not applied to {target}, because it does not fit", found.conflicts)
            print("Nothing was changed.")
            return 1
        if not found.changes:
            print(f"Nothing to do: {safe_line(target)} has it all.")
            return 0
        if not yes or sys.stdout.isatty():
            _show_patch(found.changes, work)
        for change in found.changes:
            if change.new is not None and change.new.kind == "link":
                print(f"A symlink: {safe_line(change.path)} -> {safe_line(change.new.what)}", file=sys.stderr)
        count = len(found.changes)
        what = f"{counted(count, 'file')} would be changed in {str(target)!r}"
        if not is_agreed(f"Change {_file_noun(count)} in {safe_line(target)}?", what=what, yes=yes):
            print("Nothing was changed.")
            return 1
        before = scan_tree(target)
        refused = write_changes(target, found.changes, work.store, git=False)
    print(f"{counted(count - len(refused), 'change')} made in {safe_line(target)}.")
    report_changes(compare_scans(target, before, scan_tree(target)), target, warn=PlainView().warn)
    print("`ohsandbox undo` does not undo this: it changes the agent's copy, not your directory.")
    _print_paths("Not written", refused)
    return 1 if refused else 0


def _warn_cut_off(directory: Path) -> None:
    """Warn about a turn that was killed: the checkpoint was taken before it, so its changes are missing."""
    stored = read_stored(directory)
    if stored.holder is None and stored.metadata is not None and stored.metadata.status is ConversationStatus.RUNNING:
        say(
            "Its last turn was cut off, and what it changed is in its sandbox alone. First: "
            f"ohsandbox run --resume {directory.name}"
        )


def _show_patch(changes: Sequence[FileChange], work: WorkspaceDiff) -> None:
    """Print the patch for a person to read before they agree."""
    console = open_console()
    for line in coloured_patch(changes, work):
        console.print(line, soft_wrap=True)


def _file_noun(count: int) -> str:
    return "this file" if count == 1 else f"these {count:,} files"


def _print_paths(heading: str, left_out: Iterable[tuple[str, str]]) -> None:
    """Print the paths that were left out and the reasons, most serious first."""
    for line in leading_lines([f"{path}: {why}" for path, why in left_out], "{} more"):
        say(f"{heading}: {line}")


def _print_left_out(work: WorkspaceDiff) -> None:
    sys.stdout.flush()
    _print_paths("left out", work.left_out.items())
    over = [one for one in work.left_out.items() if is_over_limit(one[1]) and not one[1].endswith(BEFORE)]
    if work.image is not None and over:
        path, why = over[0]
        program = "cat" if is_too_large(why) else "tar -cf -"
        inside = shlex.quote(f"{work.place}/{path}")
        command = f"ohsandbox exec --image {work.image} -- {program} {inside} > FILE"
        say(f"what is over a limit is not brought along. To get it: {command}")
    if not work.is_whole:
        say("what was done after the last checkpoint is not in this; resume it to see.")


def offer_changes(conversations: Iterable[str]) -> None:
    """Ask whether changes that conversations made in a copy, for an engine elsewhere, are applied to the directory."""
    for conversation in dict.fromkeys(conversations) if person_present() else ():
        try:
            apply_changes(conversation, None, to=None, yes=False)
        except UsageError:  # it has changed nothing
            continue
        except (OhsandboxError, KeyboardInterrupt) as error:
            why = f"{error} " if isinstance(error, OhsandboxError) else ""
            say(f"{why}Its changes are kept: ohsandbox apply {conversation}")
