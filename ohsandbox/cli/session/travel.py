"""Slash commands that change the point in time or the conversation: `/diff`, `/undo`, `/redo`, `/fork`, `/resume`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.rendering.file_changes import (
    change_lines,
    coloured_patch,
    leading_lines,
    sizes_of,
    split_binaries,
    stat_lines,
)
from ohsandbox.cli.rendering.tables import open_console
from ohsandbox.cli.rendering.text import age, safe_line, truncated
from ohsandbox.cli.sandbox.runtime import make_runtime
from ohsandbox.cli.session import approvals
from ohsandbox.cli.session.resume import ResumedConversation, find_resumed, in_directory
from ohsandbox.cli.settings.model import with_kept_server, with_model_of
from ohsandbox.cli.settings.project import use_project
from ohsandbox.cli.settings.run_settings import settings_elsewhere
from ohsandbox.conversation.storage import find_conversation, list_stored, nearest_first
from ohsandbox.errors import ConversationOpenError, UsageError
from ohsandbox.paths import conversations_dir
from ohsandbox.persistence import holder_of
from ohsandbox.text import counted
from ohsandbox.timetravel import undo
from ohsandbox.timetravel.turns import seq_before_turns
from ohsandbox.timetravel.workspace_diff import diff_workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.cli.session.run_session import RunSession
    from ohsandbox.cli.session.slash_commands import CommandContext
    from ohsandbox.conversation.storage import StoredConversation

MAX_DIFF_LINES = 500
"""Number of lines of a diff that are shown, about ten screens; `ohsandbox diff` has no limit."""
MAX_TITLE_CHARS = 44
MAX_TURNS_DIGITS = 6


# --- /diff ------------------------------------------------------------------------------------------


def show_diff(context: CommandContext, arguments: Sequence[str]) -> None:
    """Show the changes in the workspace: all of them, or those of the last turns."""
    session = context.session
    words = [one for one in arguments if one != "--stat"]
    if len(words) > 1:
        raise UsageError(f"Too many words: {' '.join(arguments)!r}. Write /diff [last|N] [--stat].")
    if not session.has_begun:
        context.show("Nothing has run in this conversation yet, so nothing was changed.")
        return
    directory = session.conversation.directory
    since = None
    if words:
        since = max(seq_before_turns(directory, 1 if words[0] == "last" else _count(words[0], "/diff [last|N]")), 0)
    with diff_workspace(directory, since, ignored=False) as work:
        for line in leading_lines([f"{path}: {why}" for path, why in work.left_out.items()], "{} more"):
            context.warn(f"left out: {line}")
        if not work.changes:
            context.show("Nothing was changed.")
        elif "--stat" in arguments:
            context.show(Text("\n").join(stat_lines(work, columns=open_console().width)))
        else:
            texts, binaries = split_binaries(work)
            binary = (Text(f"binary: {safe_line(one.path)}: {sizes_of(one)}") for one in binaries)
            lines = [*coloured_patch(texts, work), *binary]
            context.show(Text("\n", no_wrap=True).join(lines[:MAX_DIFF_LINES]))
            if len(lines) > MAX_DIFF_LINES:
                more = len(lines) - MAX_DIFF_LINES
                context.show(f"{more:,} more lines: ohsandbox diff {session.conversation.id}")
        if not work.is_whole:
            context.warn("What was done after the last checkpoint is not in this.")


def _count(word: str, usage: str) -> int:
    if not (word.isascii() and word.isdecimal() and int(word[:MAX_TURNS_DIGITS]) > 0):
        raise UsageError(f"Invalid number of turns {word!r}: expected a whole number. Usage: {usage}")
    return int(word[:MAX_TURNS_DIGITS])


def _check_begun(session: RunSession) -> None:
    if not session.has_begun:
        raise UsageError("This conversation has no messages to go back to. Send one first.")


# --- /undo, /redo, /fork ------------------------------------------------------------------------------


def undo_turns(context: CommandContext, arguments: Sequence[str]) -> None:
    """Undo the last turns: continue in a fork before them, with the files as they were."""
    session = context.session
    turns = _count(arguments[0], "/undo [N]") if arguments else 1
    _check_begun(session)
    plan = undo.plan_undo(session.conversation.directory, turns)
    if not _agreed(context, plan, "/redo brings it back."):
        return
    forked, refused = undo.undo(plan)
    _warn_left_out(context, "Not put back", refused)
    before = session.conversation.id
    _switch(session, forked.id, session.where)
    taken = "The last turn is" if turns == 1 else f"The last {turns} turns are"
    place = "in the directory" if plan.workspace is not None else "in the container"
    place += " as well" if not refused else " too, but for what is named above"
    context.show(f"{taken} taken back, {place}. /redo brings it back; {before} has all of it.")
    if session.runtime.copied_workspace is not None:
        context.show("What `ohsandbox apply` wrote to your own directory stays there.")


def redo_undone(context: CommandContext, _arguments: Sequence[str]) -> None:
    """Restore what an undo removed, and continue in the original conversation."""
    session = context.session
    _check_begun(session)
    plan = undo.plan_redo(session.conversation.directory)
    if not _agreed(context, plan, "/undo takes it away again."):
        return
    older, refused = undo.redo(plan)
    _warn_left_out(context, "Not put back", refused)
    _switch(session, older.name, session.where)
    left = ", but for what is named above" if refused else ""
    context.show(f"What /undo had taken is there again{left}.")


def fork_here(context: CommandContext, arguments: Sequence[str]) -> None:
    """Continue in a copy of the conversation; the original stays as it is now."""
    session = context.session
    _check_begun(session)
    bound = session.runtime.host_workspace
    if bound is not None and not arguments:
        raise UsageError(f"The files are in {str(bound)!r}: name an empty directory for the copy's, as in /fork DIR.")
    if bound is None and arguments:
        raise UsageError("The files are in the container, and the copy gets one of its own. Leave the directory out.")
    place = None if bound is None else Path(arguments[0]).expanduser()
    before = session.conversation.id
    forked = session.conversation.fork(workspace=place)
    where = session.where if place is None else in_directory(session.where, place.resolve())
    _switch(session, forked.id, where)
    context.show(f"This is a copy, {forked.id}. The one of before: /resume {before}")


def turn_numbers(session: RunSession) -> list[str]:
    """Return the completions of `/undo`."""
    return [str(turn.number) for turn in session.conversation.cost.turns if turn.number]


def _agreed(context: CommandContext, plan: undo.UndoPlan, remedy: str) -> bool:
    """Ask the person to agree to changes in their directory; changes inside a container need no answer."""
    if plan.workspace is None:
        return True
    _warn_left_out(context, "not kept, so not brought back", [*plan.left_out.items()])
    _warn_left_out(context, "Left as it is", plan.kept_back)
    if not plan.changes:
        return True
    if plan.is_cut_off:
        context.warn("The last turn was cut off: what you changed since it began cannot be told from the agent's work.")
    lines = [f"In {safe_line(plan.workspace)}:", *(f"  {one}" for one in change_lines(plan.changes))]
    context.show(Text("\n").join(map(Text, leading_lines(lines, "  and {} more"))))
    count = len(plan.changes)
    files = "this file" if count == 1 else f"these {count} files"
    agreed = context.confirm(f"Change {files}? {remedy}", what=f"{count} files would be changed")
    if not agreed:
        context.show("Nothing was changed.")
    return agreed


def _warn_left_out(context: CommandContext, heading: str, left: Sequence[tuple[str, str]]) -> None:
    for line in leading_lines([f"{path}: {why}" for path, why in left], "{} more"):
        context.warn(f"{heading}: {line}")


def _switch(session: RunSession, conversation_id: str, where: SandboxOptions) -> None:
    """Switch to another conversation of the same directory, in a sandbox of its own."""
    own = replace(where, attach=None)
    session.switch(own, _resumed(conversation_id, session, own), drops_sandbox=True)


def _resumed(conversation_id: str, session: RunSession, where: SandboxOptions) -> ResumedConversation:
    known = find_resumed(conversation_id, SandboxOptions())
    return known._replace(where=where, model=session.settings.model, is_followed=True)


# --- /resume ----------------------------------------------------------------------------------------


def resume(context: CommandContext, arguments: Sequence[str]) -> None:
    """Switch to another conversation: the named one, or one chosen from a list."""
    session, root = context.session, conversations_dir()
    if arguments:
        wanted = find_conversation(root, arguments[0])
    else:
        others = [one for one in resumable() if one.id != session.conversation.id]
        if not others:
            context.show("No other conversation exists.")
            return
        title = "Conversations, those of this directory first:"
        chosen = context.choose(title, [row_of(one, with_id=not session.person) for one in others])
        if chosen is None:
            return
        wanted = others[chosen].id
    if wanted == session.conversation.id:
        raise UsageError("This conversation is open already. Choose another, or go on with it.")
    if (holder := holder_of(root / wanted)) is not None:
        raise ConversationOpenError(f"Conversation {wanted!r} is open in process {holder}. Close it there.")
    found = find_resumed(wanted, SandboxOptions())
    project = use_project(found.where, session.what.settings, person=session.person)
    settings = settings_elsewhere(session.what, project, given=session.given)
    settings = with_kept_server(with_model_of(settings, found.model), root / wanted)
    settings = settings.with_flags(confirm=session.what.confirm or approvals.kept_policy(root / wanted))
    where = (found.where if project is None else project.applied_to(found.where, is_resumed=True)).checked()
    make_runtime(where.with_settings(settings))  # what is wrong is said while the other one is open
    before, had_begun = session.conversation.id, session.has_begun
    session.switch(where, found, settings=session.completed(settings))
    if had_begun:
        context.show(f"The one of before: /resume {before}")
    session.go_on(in_talk=True)


def resumable() -> list[StoredConversation]:
    """Return the conversations that can be resumed, those of this directory first; empty ones are left out."""
    found = [one for one in list_stored(conversations_dir()) if not one.metadata.is_empty and one.fault is None]
    return [*nearest_first(found)]


def resume_completions(session: RunSession) -> list[str]:
    """Return the completions of `/resume`."""
    return [one.id for one in resumable() if one.id != session.conversation.id]


def row_of(one: StoredConversation, *, with_id: bool = False) -> str:
    """Return age, title, steps and directory; with the id if the row cannot be chosen."""
    known = one.metadata
    title = truncated(safe_line(known.title or "no title"), MAX_TITLE_CHARS)
    steps = counted(known.steps, "step")
    place = known.workspace or known.directory or ""
    home = str(Path.home())
    place = f"~{place.removeprefix(home)}" if f"{place}/".startswith(f"{home}/") else place
    opened = ", open elsewhere" if one.holder is not None else ""
    shown = f"{age(known.updated_at):>6}  {title:<{MAX_TITLE_CHARS}}  {steps:<9}  {place}{opened}"
    return safe_line(f"{one.id}  {shown}" if with_id else shown, limit_chars=1000)
