"""The command line: every command and its arguments, and the exit codes. Groups are in `app_groups`.

What a command does is in a module of its own, imported when the command runs: `--help` imports none of them. Whatever
it raises, `entrypoint` explains on one line, and makes it an exit code.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox import __version__, host_programs
from ohsandbox.cli import completion
from ohsandbox.cli.app_groups import branches, cache, config, conversations, evaluation, images, mcp, services
from ohsandbox.cli.entrypoint import exit_code_of, importing, leave, prepare_streams
from ohsandbox.cli.options.per_command import ConfirmOptions, ExecOptions, InitOptions, RunOptions, ShellOptions
from ohsandbox.cli.options.shared import LAST, AsJson, ConversationId, NoTui, Root, SandboxOptions, SettingsFile, Yes
from ohsandbox.cli.options.typer_options import Debug, argument, command, new_app, option, path, switch

_COMMIT_CHARS = 12

app = new_app(
    "ohsandbox",
    help="""Run an AI agent on this machine; its tools run in a sandbox container.

    \b
    Examples:
      ohsandbox run --workspace . "Find out why the tests fail, and fix it"
      ohsandbox run --copy --workspace . "Try it on a copy"   # then: ohsandbox diff
      ANSWER=$(ohsandbox run --quiet "What is 6 * 7?")        # in a script
    """,
    panels={
        "Work": "run demo exec shell",
        "See what is done, and have a say": "top conversations diff cost net view confirm approvals",
        "Take back, branch off, bring over": "undo redo fork apply branches",
        "Sandboxes": "ps services cache gc images",
        "Set up": "init config trust doctor tools mcp completion",
        "Evaluate": "eval",
    },
    epilog="What is it doing: top. What did it change: diff. Undo that: undo. What did it cost: cost. Why does it "
    "wait: confirm. Why was a call refused: conversations show. Without an ID, the last conversation of this "
    "directory is meant."
    "\n\nExit codes: 0 success, 1 run failed, 2 usage error, 3 conversation open in another process, 4 engine or "
    "sandbox unavailable, 5 model or provider error, 6 calls wait for confirmation, 129, 130 and 143 interrupted."
    "\n\nSettings, conversations and leases are kept in ~/.ohsandbox, or in the directory that OHSANDBOX_HOME names.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command in sys.argv and exit with its exit code."""
    prepare_streams()
    host_programs.clean_own_path()
    if completion.VARIABLE in os.environ:
        completion.answer(app)
    leave(exit_code_of(lambda: app(prog_name="ohsandbox", standalone_mode=False)))


def _print_version(value: bool) -> None:  # noqa: FBT001 - an option's callback
    if value:
        typer.echo(
            f"ohsandbox {__version__}" + (f" ({commit})" if (commit := _commit(Path(__file__).parents[1])) else "")
        )
        raise typer.Exit


def _commit(package: Path) -> str:
    """Return the beginning of the commit of this build, or of the clone with the package; "" if neither is known."""
    import subprocess

    try:
        return (package / "commit").read_text("ascii").strip()[:_COMMIT_CHARS]
    except (OSError, ValueError):
        pass
    if not (package.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(package.parent), "rev-parse", "HEAD"]
    try:
        ended = host_programs.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(ended.stdout).strip()[:_COMMIT_CHARS]


Version = Annotated[
    bool,
    typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
]


@app.callback(invoke_without_command=True)
def _ohsandbox(ctx: typer.Context, *, debug: Debug = False, version: Version = False) -> None:  # noqa: ARG001 - eager
    if ctx.invoked_subcommand is not None:
        return
    from ohsandbox.cli.interactive.start import can_be_interactive, run_interactive

    if can_be_interactive(RunOptions()):
        raise typer.Exit(run_interactive(RunOptions(), SandboxOptions()))
    typer.echo(ctx.get_help())


# --- run ------------------------------------------------------------------------------------------


@command(app)
def run(what: RunOptions, where: SandboxOptions) -> int:
    """Run an agent on a task in a sandbox."""
    from ohsandbox.cli.interactive.start import can_be_interactive, run_interactive

    if can_be_interactive(what):
        return run_interactive(what, where)
    with importing():
        from ohsandbox.cli.commands.run import run_task

    return run_task(what, where)


@command(app)
def demo(where: Annotated[SandboxOptions, {"image", "runtime"}], *, no_tui: NoTui = False) -> int:
    """Run a scripted agent in a sandbox; no API key is needed."""
    from ohsandbox.cli.commands.run import run_demo
    from ohsandbox.cli.interactive.start import can_be_interactive, on_screen

    if can_be_interactive(RunOptions(no_tui=no_tui)):
        return on_screen(lambda work: run_demo(where, no_tui=no_tui, work=work))
    return run_demo(where, no_tui=no_tui)


@command(app, "exec", context_settings={"allow_interspersed_args": False})
def exec_(
    program: Annotated[list[str], typer.Argument(metavar="CMD...", help="Program and its arguments.")],
    how: ExecOptions,
    where: Annotated[SandboxOptions, {one.name for one in fields(SandboxOptions)} - {"keep", "env", "user"}],
) -> int:
    """Run a command in a new sandbox and exit with its exit code (124 after --timeout).

    With --copy or --copy-all, the copy is deleted when the command ends, with everything the command changed in it.
    """
    from ohsandbox.cli.commands.exec import run_command

    return run_command(program, how, where)


@command(app, context_settings={"allow_interspersed_args": False})
def shell(
    how: ShellOptions,
    where: Annotated[SandboxOptions, {one.name for one in fields(SandboxOptions)} - {"env", "user"}],
    program: list[str] | None = argument("Program and its arguments.  [default: a shell]", "PROGRAM..."),
) -> int:
    """Open a terminal in a sandbox: a shell, or any program, such as a coding agent.

    The exit code is the program's. Its sandbox is removed at the end, with all that runs in it; --keep keeps it, and
    --attach opens another terminal in a running one. With --copy, the copy goes with the sandbox.
    """
    from ohsandbox.cli.commands.exec import open_terminal

    return open_terminal(program or [], how, where)


@command(app)
def confirm(
    how: ConfirmOptions, *, conversation: ConversationId = LAST, settings: SettingsFile = None, no_tui: NoTui = False
) -> int:
    """Approve or reject the pending calls of a conversation, then continue its run."""
    from ohsandbox.cli.commands.confirm import answer_stored

    answer = answer_stored(conversation, how)
    if isinstance(answer, int):
        return answer
    return run(RunOptions(settings=settings, no_tui=no_tui, resume=answer, talks=False), SandboxOptions())


@command(app)
def approvals(
    conversation: ConversationId = LAST,
    *,
    revoke: list[int] | None = option("Revoke approval number N; may be repeated.", "N"),
    revoke_all: bool = switch("Revoke all approvals."),
    as_json: AsJson = False,
    root: Root = None,
) -> int:
    """List or revoke the standing approvals of a conversation."""
    from ohsandbox.cli.commands.confirm import list_or_revoke

    return list_or_revoke(conversation, root, revoke=revoke or [], revoke_all=revoke_all, as_json=as_json)


@command(app)
def view(
    conversation: ConversationId = LAST,
    *,
    output: Path | None = option(
        "File to write.  [default: in its directory]", "FILE", flags=["--output", "-o"], parser=path
    ),
    serve: bool | None = option(
        "Serve it on this machine, live, until Ctrl-C.  [default: while a process has it open]",
        flags=["--serve/--file"],
    ),
    port: int | None = option("Port to serve it at.  [default: a free one]", "PORT", min=0, max=65535),
    opens: bool | None = option("Open a browser.  [default: where there is one]", flags=["--open/--no-open"]),
    root: Root = None,
) -> int:
    """Show a conversation as a page for the browser: one file, which loads nothing, or a live page.

    The page of `ohsandbox run --view` answers questions, stops the agent and takes messages; any other only reads.
    """
    from ohsandbox.cli.commands.conversations import view_conversation

    return view_conversation(conversation, root, output=output, serve=serve, port=port, opens=opens)


# --- this machine ---------------------------------------------------------------------------------


@command(app)
def net(
    which: str | None = argument("Conversation id or sandbox name, its beginning, or 'last'.  [default: last]", "ID"),
    *,
    as_json: AsJson = False,
) -> int:
    """Show what a sandbox asked its allowlist for: which hosts were reached or blocked, why, and how many bytes."""
    from ohsandbox.cli.commands.net import show_network

    return show_network(which or LAST, as_json=as_json)


@command(app)
def ps(
    *,
    labels: list[str] | None = option(
        "Only sandboxes with this label; may be repeated.", "NAME=VALUE", flags=["--label"]
    ),
    as_json: AsJson = False,
) -> int:
    """List the sandboxes of the engine."""
    from ohsandbox.cli.commands.sandboxes import print_sandboxes

    return print_sandboxes(labels=labels or (), as_json=as_json)


@command(app)
def top(
    *,
    once: bool = switch("Print a plain table and exit."),
    as_json: AsJson = False,
    root: Root = None,
) -> int:
    """Watch all sandboxes and conversations: what each does, uses and costs; go on, open a shell, stop, remove."""
    from ohsandbox.cli.commands.top import show_top

    return show_top(root, once=once, as_json=as_json)


@command(app)
def gc(
    *,
    dry_run: bool = switch("Print what would be removed; remove nothing."),
    kept: bool = switch("Also remove sandboxes kept by --keep or for `run --resume`."),
) -> int:
    """Remove the sandboxes whose owner process has ended."""
    from ohsandbox.cli.commands.sandboxes import collect_garbage

    return collect_garbage(dry_run=dry_run, kept=kept)


@command(app)
def tools(
    name: str | None = argument("Show the description and schema of this tool.", "NAME"),
    *,
    as_json: AsJson = False,
) -> int:
    """List the tools that an agent can use."""
    from ohsandbox.cli.commands.tools import list_tools, show_tool

    return list_tools(as_json=as_json) if name is None else show_tool(name, as_json=as_json)


@command(app)
def doctor(*, as_json: AsJson = False) -> int:
    """Check the installation, the settings and the engine."""
    from ohsandbox.cli.commands.doctor import print_checks

    return print_checks(as_json=as_json)


@command(app, "completion")
def complete(
    ctx: typer.Context,
    act: Annotated[Literal["show", "install"], typer.Argument(metavar="show|install", help="Print it, or set it up.")],
    shell: completion.Shell | None = argument("bash, zsh or fish.  [default: yours, by $SHELL]", "SHELL"),
) -> int:
    """Set up completion with Tab in bash, zsh or fish: `ohsandbox completion install`."""
    completion.show(ctx, shell) if act == "show" else completion.install(ctx, shell)
    return 0


@command(app)
def init(how: InitOptions) -> int:
    """Set up model, key, image and network: asked, checked by one small request, shown, and written.

    The key is kept in the system's keyring, or in a file that only you can read.
    """
    from ohsandbox.cli.commands.init import init as run

    return run(how)


@command(app)
def trust(
    directory: Path | None = argument("Directory of the project.  [default: current directory]", "DIR"),
    *,
    listed: bool = switch("List the trusted directories.", "--list"),
    revoked: bool = switch("Trust the directory no more.", "--revoke"),
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Show what a project's file asks for beyond your settings, and trust the directory with this content.

    The file is .ohsandbox.toml, or [tool.ohsandbox] of pyproject.toml.
    """
    from ohsandbox.cli.settings.project import list_trusted, revoke_directory, trust_directory

    if listed:
        return list_trusted(as_json=as_json)
    return revoke_directory(directory) if revoked else trust_directory(directory, yes=yes)


# --- time travel ----------------------------------------------------------------------------------


@command(app)
def undo(
    conversation: ConversationId = LAST,
    turns: str | None = argument("Number of turns.  [default: 1]", "N"),
    *,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Undo the agent's last N turns, files and .git included, in a new conversation; the original is kept.

    In a bound workspace, your own later changes stay; a file that you and the agent changed is skipped and listed.
    What `ohsandbox apply` wrote to a directory stays there.
    """
    from ohsandbox.cli.commands.time_travel import undo_turns

    return undo_turns(conversation, turns, root, yes=yes)


@command(app)
def redo(
    conversation: ConversationId = LAST,
    *,
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Restore what `undo` removed and return to the original conversation. ID is the one that `undo` created."""
    from ohsandbox.cli.commands.time_travel import redo_undone

    return redo_undone(conversation, root, yes=yes)


@command(app)
def fork(
    conversation: ConversationId = LAST,
    *,
    at: int | None = option("Last event to copy.  [default: last]", "EVENT"),
    workspace: Path | None = option("Empty directory for the files of a bound workspace.", "DIR", parser=path),
    root: Root = None,
) -> int:
    """Create a conversation from the first events of another, with the files at that event."""
    from ohsandbox.cli.commands.time_travel import fork_at

    return fork_at(conversation, at, root, workspace=workspace)


@command(app)
def diff(
    conversation: ConversationId = LAST,
    a: int | None = argument("Compare from event A.  [default: start]", "A"),
    b: int | None = argument("Compare to event B.  [default: now]", "B"),
    *,
    stat: bool = switch("Print only the names of changed files, with bars."),
    everything: bool = switch("Also binary files, and new ones that git ignores.", "--all"),
    root: Root = None,
) -> int:
    """Print the agent's changes to its workspace as a patch for `git apply`."""
    from ohsandbox.cli.commands.time_travel import show_diff

    return show_diff(conversation, a, b, root, stat=stat, everything=everything)


@command(app)
def cost(conversation: ConversationId = LAST, *, as_json: AsJson = False, root: Root = None) -> int:
    """Print what a conversation has cost, by turn and in all: tokens and US dollars."""
    from ohsandbox.cli.commands.conversations import show_cost

    return show_cost(conversation, root, as_json=as_json)


@command(app, "apply")
def apply_(
    conversation: ConversationId = LAST,
    *,
    to: Path | None = option(
        "Directory to change.  [default: source of the copy, else current directory]", "DIR", parser=path
    ),
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Show the agent's changes, then apply them to a directory of this machine.

    `ohsandbox undo` does not undo this: it changes the agent's copy, not your directory.
    """
    from ohsandbox.cli.commands.time_travel import apply_changes

    return apply_changes(conversation, root, to=to, yes=yes)


# --- groups ---------------------------------------------------------------------------------------

for _group in (branches, cache, config, conversations, images, mcp, evaluation, services):
    app.add_typer(_group)
