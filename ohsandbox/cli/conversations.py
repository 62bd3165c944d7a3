"""`ohsandbox conversations` on one page; what each command does stands in `stored` and `export`."""

# ruff: noqa: PLC0415, TC001, TC003 - a command's module is loaded when it runs; typer reads annotations at run time
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox.cli.commands import Debug, command, new_app
from ohsandbox.cli.options import ConversationId, NoTui, Root, Yes
from ohsandbox.cli.values import path

conversations = new_app(
    "conversations",
    help="List the conversations on this machine; show, export, repair or delete one.",
    epilog="ID is an id, the beginning of one, 'last' for the newest, or ID/NAME for a sub-agent of it.",
)


@conversations.callback(invoke_without_command=True)
def _list(
    ctx: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, all of them.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Rows of the table; 0 is all.")] = 30,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """List the conversations on this machine, the newest first."""
    ctx.obj = root
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter(f"--json stands after {ctx.invoked_subcommand}, where that has it.")
        return 0
    from ohsandbox.cli.stored import list_conversations

    return list_conversations(root, as_json=as_json, limit=limit)


@command(conversations)
def show(
    ctx: typer.Context,
    wanted: ConversationId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is new, until nobody has it open.")
    ] = False,
    no_tui: NoTui = False,
    root: Root = None,
) -> int:
    """Show what was said and done."""
    from ohsandbox.cli.stored import show_conversation

    return show_conversation(wanted, root or ctx.obj, as_json=as_json, follow=follow, no_tui=no_tui)


@command(conversations)
def export(
    ctx: typer.Context,
    wanted: ConversationId,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", parser=path, metavar="FILE", help="A new file; else stdout.")
    ] = None,
    form: Annotated[
        Literal["jsonl", "md"],
        typer.Option("--format", help="jsonl: every event, exact, long texts included. md: to be read."),
    ] = "jsonl",
    force: Annotated[bool, typer.Option("--force", help="FILE may exist already.")] = False,
    root: Root = None,
) -> int:
    """Write a conversation to one file that needs no other."""
    from ohsandbox.cli.export import export_conversation

    return export_conversation(wanted, root or ctx.obj, output=output, form=form, force=force)


@command(conversations)
def repair(ctx: typer.Context, wanted: ConversationId, *, root: Root = None) -> int:
    """Cut a damaged log after its last good record; the log as it was is kept beside it."""
    from ohsandbox.cli.stored import repair_conversation

    return repair_conversation(wanted, root or ctx.obj)


@command(conversations)
def delete(
    ctx: typer.Context,
    wanted: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which.")] = None,
    *,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="All whose last event is older: 30d, 12h, 45min, 2w.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Delete conversations with all that they kept on this machine, their containers and checkpoints too."""
    from ohsandbox.cli.stored import delete_conversations

    return delete_conversations(wanted or [], root or ctx.obj, older_than=older_than, everything=everything, yes=yes)
