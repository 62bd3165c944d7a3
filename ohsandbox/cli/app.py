"""The command line on one page: every command and exit code. What a command does stands in its own module.

Those modules are imported when their command runs: `--help` needs none of them.
"""

# ruff: noqa: PLC0415 - a command's module is loaded when it runs; typer reads annotations at run time
from __future__ import annotations

import sys
from typing import Annotated

import typer

from ohsandbox import __version__
from ohsandbox.cli.back import back
from ohsandbox.cli.commands import Debug, Only, command, new_app
from ohsandbox.cli.conversations import conversations
from ohsandbox.cli.errors import exit_code_of
from ohsandbox.cli.mcp import mcp
from ohsandbox.cli.options import (
    AsJson,
    ConfirmOptions,
    ConversationId,
    ExecOptions,
    NoTui,
    Root,
    RunOptions,
    SandboxOptions,
    SettingsFile,
)
from ohsandbox.cli.streams import prepare_streams

app = new_app(
    "ohsandbox",
    help="An agent loop on this machine, its hands in a container.",
    epilog="Exit codes: 0 done, 1 the run failed, 2 usage, 3 conversation open elsewhere, 4 no engine or sandbox, "
    "5 model or provider, 6 calls wait for confirmation, 129, 130 and 143 interrupted.\n\n"
    "Settings, conversations and leases are kept in ~/.ohsandbox, or in the directory that OHSANDBOX_HOME names.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(conversations)
app.add_typer(back)
app.add_typer(mcp)


def main() -> None:
    """Run the command in sys.argv and leave with its exit code."""
    prepare_streams()
    sys.exit(exit_code_of(lambda: app(prog_name="ohsandbox", standalone_mode=False)))


def _print_version(value: bool) -> None:  # noqa: FBT001 - an option's callback
    if value:
        typer.echo(f"ohsandbox {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Show the version and leave.", callback=_print_version, is_eager=True),
]


@app.callback(invoke_without_command=True)
def _ohsandbox(ctx: typer.Context, *, debug: Debug = False, version: Version = False) -> None:  # noqa: ARG001 - eager
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@command(app)
def run(what: RunOptions, where: SandboxOptions) -> int:
    """Give an agent a task, and watch it work in a sandbox."""
    from ohsandbox.cli.run import run_task

    return run_task(what, where)


@command(app)
def demo(where: Annotated[SandboxOptions, Only.of("image", "runtime")], *, no_tui: NoTui = False) -> int:
    """Watch the loop at work with a scripted model: no key needed."""
    from ohsandbox.cli.demo import run_demo

    return run_demo(where, no_tui=no_tui)


@command(app, "exec", context_settings={"allow_interspersed_args": False})
def exec_(
    program: Annotated[list[str], typer.Argument(metavar="CMD...", help="The program and its arguments.")],
    how: ExecOptions,
    where: Annotated[
        SandboxOptions,
        Only.of("image", "attach", "workspace", "copy", "copy_all", "git", "network", "ca_bundle", "runtime"),
    ],
) -> int:
    """Run one command in a fresh sandbox; its exit code is ours (124 after --timeout)."""
    from ohsandbox.cli.exec import run_command

    return run_command(program, how, where)


@command(app)
def confirm(
    conversation: ConversationId, how: ConfirmOptions, *, settings: SettingsFile = None, no_tui: NoTui = False
) -> int:
    """Answer for the calls that wait in a conversation, and go on with its run."""
    from ohsandbox.cli.confirm import answer_stored
    from ohsandbox.cli.run import run_task

    answer = answer_stored(conversation, how)
    if isinstance(answer, int):
        return answer
    return run_task(RunOptions(settings=settings, no_tui=no_tui, resume=answer, talks=False), SandboxOptions())


@command(app)
def approvals(
    conversation: ConversationId,
    *,
    revoke: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Revoke the approval of this number; may be repeated.")
    ] = None,
    revoke_all: Annotated[bool, typer.Option("--revoke-all", help="Revoke every one.")] = False,
    as_json: AsJson = False,
    root: Root = None,
) -> int:
    """List what you allowed from now on in a conversation, or revoke it."""
    from ohsandbox.cli.approvals import list_or_revoke

    return list_or_revoke(conversation, root, revoke=revoke or [], revoke_all=revoke_all, as_json=as_json)


@command(app)
def ps(*, as_json: AsJson = False) -> int:
    """List the sandboxes of this engine."""
    from ohsandbox.cli.sandboxes import list_them

    return list_them(as_json=as_json)


@command(app)
def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    kept: Annotated[bool, typer.Option("--kept", help="Also those made with --keep, or left to be resumed.")] = False,
) -> int:
    """Remove the sandboxes whose owner is gone."""
    from ohsandbox.cli.sandboxes import collect

    return collect(dry_run=dry_run, kept=kept)


@command(app)
def tools(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its description and schema.")] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """List the tools that an agent can have."""
    from ohsandbox.cli.tools import list_tools, show_tool

    return list_tools(as_json=as_json) if name is None else show_tool(name, as_json=as_json)


@command(app)
def doctor(*, as_json: AsJson = False) -> int:
    """Say what is here, what is missing and what is weak."""
    from ohsandbox.cli.doctor import examine

    return examine(as_json=as_json)
