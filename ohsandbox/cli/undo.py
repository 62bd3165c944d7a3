"""`ohsandbox undo` and `ohsandbox fork`: back to how the conversation and its files were."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from ohsandbox.cli.prompt import confirm
from ohsandbox.cli.view import safe_line
from ohsandbox.conversation.checkpointing import SNAPSHOTS_NAME
from ohsandbox.conversation.fork import Forked, empty_directory, find_files, fork, put_workspace, turns_back
from ohsandbox.conversation.snapshots import Snapshots, changes_between, look
from ohsandbox.conversation.store import default_root
from ohsandbox.conversation.stored import LAST, find_stored
from ohsandbox.conversation.workspace_then import bound_workspace
from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.persistence import holder_of, stream_events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ohsandbox.conversation.snapshots import Change, Refused

MAX_LINES = 20
_MAX_TURNS_DIGITS = 3
"""A longer number is the beginning of an id: those begin with the date."""


def undo_turns(wanted: str | None, turns: str | None, root: Path | None, *, yes: bool) -> int:
    """Fork the conversation before its last turns, and put a bound workspace back.

    Raises:
        ConversationOpenError: a process works in it.
        UsageError: there are no such turns, their files were not kept, or nobody can be asked.
    """
    if turns is None and wanted is not None and wanted.isdecimal() and len(wanted) <= _MAX_TURNS_DIGITS:
        wanted, turns = None, wanted
    if turns is not None and not turns.isdecimal():
        raise UsageError(f"{turns!r} is no number of turns. Write `ohsandbox undo ID 2`.")
    directory = find_stored(root or default_root(), wanted or LAST)
    if (holder := holder_of(directory)) is not None:
        raise ConversationOpenError(f"Conversation {directory.name!r} is open in process {holder}. Close it there.")
    at = turns_back(directory, int(turns or 1))
    bound = find_files(directory, max(at, 0)).data.get("workspace")
    workspace = None if bound is None else bound_workspace(directory)
    if bound is not None and workspace is not None:
        doomed = _to_put(directory, str(bound["snapshot"]), workspace)
        if not _agreed(doomed, workspace, yes=yes):
            print("Nothing was changed.")
            return 1
    forked = fork(directory, at, workspace=workspace)
    refused = [] if workspace is None else put_workspace(forked, workspace)
    print(f"Conversation {forked.id} is {directory.name} without its last {int(turns or 1)} turn(s); that one stays.")
    return _told(forked, workspace, refused, root)


def fork_at(wanted: str, at: int | None, root: Path | None, *, workspace: Path | None) -> int:
    """Make a conversation of the first events of another, with the files of then.

    Raises:
        UsageError: there is no such event, its files were not kept, or workspace does not fit.
    """
    directory = find_stored(root or default_root(), wanted)
    seq = stream_events(directory, lambda _: None).records - 1 if at is None else at
    bound = find_files(directory, seq).data.get("workspace")
    if bound is not None and workspace is None:
        raise UsageError("They lie in a directory of this machine. Say --workspace DIR: an empty one, for the fork.")
    if bound is None and workspace is not None:
        raise UsageError("Its files lie in its container. Leave --workspace out.")
    place = None if workspace is None else empty_directory(workspace)
    forked = fork(directory, seq, workspace=place)
    refused = [] if place is None else put_workspace(forked, place)
    print(f"Conversation {forked.id} goes on from event {seq} of {directory.name}.")
    return _told(forked, place, refused, root)


def _to_put(directory: Path, snapshot: str, workspace: Path) -> list[Change]:
    store = Snapshots(directory / SNAPSHOTS_NAME)
    return changes_between(look(workspace, store.keep), store.load(snapshot))


def _agreed(changes: Sequence[Change], workspace: Path, *, yes: bool) -> bool:
    """A person's word on what is done to their directory.

    Raises:
        UsageError: there is nobody to ask.
    """
    if not changes:
        return True
    print(f"In {safe_line(workspace)}:")
    for change in changes[:MAX_LINES]:
        verb = {"new": "comes back", "changed": "is put back", "gone": "is removed"}[change.word]
        print(f"  {safe_line(change.path)} {verb}")
    if len(changes) > MAX_LINES:
        print(f"  and {len(changes) - MAX_LINES} more")
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{len(changes)} files would be changed, and nobody can be asked. Say --yes.")
    return confirm(f"Put {len(changes)} files back? What they are now is kept in the new conversation.")


def _told(forked: Forked, workspace: Path | None, refused: Sequence[Refused], root: Path | None) -> int:
    for one in refused[:MAX_LINES]:
        print(f"Not put back: {safe_line(one.path)}: {safe_line(one.why)}", file=sys.stderr)
    where = "" if workspace is None else f" --workspace {shlex.quote(str(workspace))}"
    if root is None:
        print(f"To go on with it: ohsandbox run --resume {forked.id}{where}")
    return 1 if refused else 0
