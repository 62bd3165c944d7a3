"""The commands that go back in time, and those that show and bring along what was changed."""

# ruff: noqa: PLC0415 - a command's module is loaded when the command runs
from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohsandbox.cli.errors import set_debug

back = typer.Typer()

Conversation = Annotated[str, typer.Argument(metavar="ID", help="Its id, what the id begins with, or `last`.")]
Root = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="Where conversations lie; else ~/.ohsandbox/conversations.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show a traceback with an error.", callback=set_debug, is_eager=True)
]


@back.command()
def undo(
    conversation: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The conversation, or how its id begins; else the newest.")
    ] = None,
    turns: Annotated[str | None, typer.Argument(metavar="[N]", help="So many turns; else one.")] = None,
    *,
    yes: Yes = False,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Go back before the last N turns, files included, in a new conversation; the old one stays."""
    from ohsandbox.cli.undo import undo_turns

    return undo_turns(conversation, turns, root, yes=yes)


@back.command()
def fork(
    conversation: Conversation,
    *,
    at: Annotated[int | None, typer.Option(metavar="EVENT", help="The last event to take along; else all.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An empty directory for its files, where they lie in yours.")
    ] = None,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Make a new conversation that begins like another, with its files as they were then."""
    from ohsandbox.cli.undo import fork_at

    return fork_at(conversation, at, root, workspace=workspace)


@back.command()
def diff(
    conversation: Conversation,
    a: Annotated[int | None, typer.Argument(metavar="[A]", help="From after this event; else the start.")] = None,
    b: Annotated[int | None, typer.Argument(metavar="[B]", help="To after this event; else now.")] = None,
    *,
    stat: Annotated[bool, typer.Option("--stat", help="Only the names.")] = False,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Show what the agent changed in its workspace, as a patch that `git apply` takes."""
    from ohsandbox.cli.changes import show_diff

    return show_diff(conversation, a, b, root, stat=stat)


@back.command("apply")
def apply_(
    conversation: Conversation,
    *,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to; else the current directory.")] = None,
    yes: Yes = False,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Bring what the agent changed to a directory of yours, after showing it."""
    from ohsandbox.cli.changes import apply_changes

    return apply_changes(conversation, root, to=to, yes=yes)
