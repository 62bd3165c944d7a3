"""The commands of `ohsandbox conversations`, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox.cli.completion import conversation_ids
from ohsandbox.cli.option_values import path
from ohsandbox.cli.options import LAST, ConversationId, NoTui, Root, Yes
from ohsandbox.cli.typer_options import Debug, argument, command, new_app, option, switch

conversations = new_app(
    "conversations",
    help="List, show, export, repair or delete the conversations of this machine.",
    epilog="ID is a conversation id, its beginning, 'last' for the newest, or ID/NAME for a sub-agent.",
)


@conversations.callback(invoke_without_command=True)
def _list(
    ctx: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all conversations as JSON.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Maximum number of rows; 0 for all.")
    ] = 30,
    root: Root = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """List the conversations of this machine, newest first."""
    ctx.obj = root
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter(f"Place --json after {ctx.invoked_subcommand!r}, if that command has it.")
        return 0
    from ohsandbox.cli.conversations import list_conversations

    return list_conversations(root, as_json=as_json, limit=limit)


@command(conversations)
def show(
    ctx: typer.Context,
    wanted: ConversationId = LAST,
    *,
    as_json: bool = switch("Print one JSON object per event.", "--json"),
    follow: bool = switch("Print new events until no process has the conversation open.", "--follow", "-f"),
    no_tui: NoTui = False,
    root: Root = None,
) -> int:
    """Show the events of a conversation."""
    from ohsandbox.cli.conversations import show_conversation

    return show_conversation(wanted, root or ctx.obj, as_json=as_json, follow=follow, no_tui=no_tui)


@command(conversations)
def export(
    ctx: typer.Context,
    wanted: ConversationId = LAST,
    *,
    output: Path | None = option("File to create.  [default: stdout]", "FILE", flags=["--output", "-o"], parser=path),
    form: Literal["jsonl", "md", "html"] = option(
        "jsonl: all events, unchanged. md: Markdown to read. html: the page of `view`.",
        default="jsonl",
        flags=["--format"],
    ),
    force: bool = switch("Overwrite FILE.", "--force"),
    root: Root = None,
) -> int:
    """Export a conversation to one self-contained file."""
    from ohsandbox.cli.conversations import export_conversation

    return export_conversation(wanted, root or ctx.obj, output=output, form=form, force=force)


@command(conversations)
def schema() -> int:
    """Print the JSON Schema of a line of `show --json`, `export` and `run --json`."""
    from ohsandbox.cli.conversations import print_schema

    return print_schema()


@command(conversations)
def repair(ctx: typer.Context, wanted: ConversationId = LAST, *, root: Root = None) -> int:
    """Truncate a damaged log after its last valid record; the damaged log is kept beside it."""
    from ohsandbox.cli.conversations import repair_conversation

    return repair_conversation(wanted, root or ctx.obj)


@command(conversations)
def delete(
    ctx: typer.Context,
    wanted: list[str] | None = argument("Conversations to delete.", "ID...", autocompletion=conversation_ids),
    *,
    older_than: str | None = option("Delete conversations without an event for AGE: 30d, 12h, 45min, 2w.", "AGE"),
    everything: bool = switch("Delete all conversations.", "--all"),
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Delete conversations with their files, containers and checkpoints."""
    from ohsandbox.cli.conversations import delete_conversations

    return delete_conversations(wanted or [], root or ctx.obj, older_than=older_than, everything=everything, yes=yes)
