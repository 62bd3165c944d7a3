"""The commands that go back in time, and those that show and bring along what was changed."""

# ruff: noqa: PLC0415, TC001, TC003 - a command's module is loaded when it runs; typer reads annotations at run time
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohsandbox.cli.commands import command, new_app
from ohsandbox.cli.options import ConversationId, Root, Yes
from ohsandbox.cli.values import path

back = new_app(None)


@command(back)
def undo(
    conversation: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The conversation, or how its id begins; else the newest.")
    ] = None,
    turns: Annotated[str | None, typer.Argument(metavar="[N]", help="So many turns; else one.")] = None,
    *,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Take back the agent's last N turns, files and .git included, in a new conversation; the old one stays.

    In a directory of yours what you changed since stays; a file that both have changed is left, and named.
    """
    from ohsandbox.cli.undo import undo_turns

    return undo_turns(conversation, turns, root, yes=yes)


@command(back)
def redo(
    conversation: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="What undo made, or how its id begins; else the newest.")
    ] = None,
    *,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Bring back what undo took, and the conversation of before with it."""
    from ohsandbox.cli.undo import redo_undone

    return redo_undone(conversation, root, yes=yes)


@command(back)
def fork(
    conversation: ConversationId,
    *,
    at: Annotated[int | None, typer.Option(metavar="EVENT", help="The last event to take along; else all.")] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(parser=path, metavar="DIR", help="An empty directory for its files, where they lie in yours."),
    ] = None,
    root: Root = None,
) -> int:
    """Make a new conversation that begins like another, with its files as they were then."""
    from ohsandbox.cli.undo import fork_at

    return fork_at(conversation, at, root, workspace=workspace)


@command(back)
def diff(
    conversation: ConversationId,
    a: Annotated[int | None, typer.Argument(metavar="[A]", help="From after this event; else the start.")] = None,
    b: Annotated[int | None, typer.Argument(metavar="[B]", help="To after this event; else now.")] = None,
    *,
    stat: Annotated[bool, typer.Option("--stat", help="Only the names.")] = False,
    root: Root = None,
) -> int:
    """Show what the agent changed in its workspace, as a patch that `git apply` takes."""
    from ohsandbox.cli.changes import show_diff

    return show_diff(conversation, a, b, root, stat=stat)


@command(back, "apply")
def apply_(
    conversation: ConversationId,
    *,
    to: Annotated[
        Path | None, typer.Option(parser=path, metavar="DIR", help="Where to; else where the copy came from, or here.")
    ] = None,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Bring what the agent changed to a directory of yours, after showing it."""
    from ohsandbox.cli.changes import apply_changes

    return apply_changes(conversation, root, to=to, yes=yes)
