"""The command groups, `ohsandbox GROUP COMMAND`, and their arguments. A command's module is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox.cli.completion import conversation_ids, sandbox_names
from ohsandbox.cli.options.per_command import (
    EVALUATED_MODEL,
    CompareOptions,
    EvalOptions,
    RunOptions,
    ServeOptions,
    ValidateOptions,
)
from ohsandbox.cli.options.shared import (
    LAST,
    AsJson,
    ConversationId,
    McpConfig,
    NoTui,
    Root,
    SandboxOptions,
    SettingsFile,
    Yes,
)
from ohsandbox.cli.options.typer_options import Debug, argument, command, new_app, option, path, switch

# --- branches -------------------------------------------------------------------------------------

branches = new_app(
    "branches",
    lists=True,
    help="List, show, merge or drop the branches on which sandboxes work in trees of their own (--branch).",
)

_BranchName = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]
Repository = Annotated[
    Path | None,
    typer.Option("--dir", parser=path, metavar="DIR", help="Repository of the branch.  [default: any]"),
]


@branches.callback(invoke_without_command=True)
def _branches(
    ctx: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the branches as JSON.")] = False,
    directory: Repository = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """List the branches that have a tree, and what was done on them."""
    if ctx.invoked_subcommand is not None:
        return 0
    from ohsandbox.cli.commands.branches import list_branches

    return list_branches(directory, as_json=as_json)


@command(branches, "diff")
def branches_diff(name: _BranchName, *, directory: Repository = None, stat: bool = switch("Print a summary.")) -> int:
    """Print what was changed since the branch began, committed or not, as a patch."""
    from ohsandbox.cli.commands.branches import show_branch

    return show_branch(name, directory, stat=stat)


@command(branches, "merge")
def branches_merge(name: _BranchName, *, directory: Repository = None, yes: Yes = False) -> int:
    """Bring the branch to its repository, with what is not committed as one more commit, and merge it there.

    Where files conflict, or yours are not committed, the branch is there and nothing is merged.
    """
    from ohsandbox.cli.commands.branches import merge_branch

    return merge_branch(name, directory, yes=yes)


@command(branches, "drop")
def branches_drop(name: _BranchName, *, directory: Repository = None, yes: Yes = False) -> int:
    """Remove the tree of a branch; what is in no branch of the repository is told, and asked about."""
    from ohsandbox.cli.commands.branches import drop_branch

    return drop_branch(name, directory, yes=yes)


# --- cache ----------------------------------------------------------------------------------------

cache = new_app("cache", help="Show and remove what package tools keep between sandboxes (--cache).")


@command(cache, "list")
def cache_list(*, as_json: AsJson = False) -> int:
    """List the package caches with their sizes, the largest first."""
    from ohsandbox.cli.commands.sandboxes import list_caches

    return list_caches(as_json=as_json)


@command(cache, "prune")
def cache_prune(
    names: list[str] | None = argument(
        "Directories, names or ids of caches.  [default: all that no sandbox has]", "NAME..."
    ),
    *,
    dry_run: bool = switch("Print what would be removed; remove nothing."),
    yes: Yes = False,
) -> int:
    """Remove package caches that no sandbox has."""
    from ohsandbox.cli.commands.sandboxes import prune_caches

    return prune_caches(names or [], yes=yes, dry_run=dry_run)


# --- config ---------------------------------------------------------------------------------------

config = new_app(
    "config",
    shows_help=True,
    help="Show and change the settings.",
    epilog="NAME is a setting, or a key in one: model, output.max_chars, secrets.GH_TOKEN. Flags stand above "
    "environment variables, those above a project's file, that above the settings file.",
)
_SettingName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the setting.")]


@command(config, "list")
def config_list(*, as_json: AsJson = False, settings: SettingsFile = None) -> int:
    """List every setting with its value and where the value comes from. Keys are not shown."""
    from ohsandbox.cli.commands.config import list_settings

    return list_settings(settings, as_json=as_json)


@command(config, "get")
def config_get(name: _SettingName, *, settings: SettingsFile = None) -> int:
    """Print the value of a setting."""
    from ohsandbox.cli.commands.config import get_setting

    return get_setting(settings, name)


@command(config, "set")
def config_set(
    name: _SettingName,
    value: str | None = argument("Its value: text, number or JSON. An api_key is asked for.", "VALUE"),
    *,
    settings: SettingsFile = None,
) -> int:
    """Check a value and write it to the settings file; the file's other content is kept."""
    from ohsandbox.cli.commands.config import set_setting

    return set_setting(name, value, settings)


@command(config, "unset")
def config_unset(name: _SettingName, *, settings: SettingsFile = None) -> int:
    """Remove a setting from the settings file."""
    from ohsandbox.cli.commands.config import unset_setting

    return unset_setting(name, settings)


@command(config, "path")
def config_path(*, settings: SettingsFile = None) -> int:
    """Print the path of the settings file, whether it exists or not."""
    from ohsandbox.settings import Settings

    typer.echo(str(settings or Settings.file_in_use()))
    return 0


@command(config, "edit")
def config_edit(*, settings: SettingsFile = None) -> int:
    """Open the settings in $VISUAL or $EDITOR; they are written once they are valid."""
    from ohsandbox.cli.commands.config import edit_settings_file

    return edit_settings_file(settings)


# --- conversations --------------------------------------------------------------------------------

conversations = new_app(
    "conversations",
    lists=True,
    help="List, show, export, repair or delete the conversations of this machine.",
    epilog="ID is a conversation id, its beginning, 'last' for the newest, or ID/NAME for a sub-agent.",
)


@conversations.callback(invoke_without_command=True)
def _conversations(
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
    from ohsandbox.cli.commands.conversations import list_conversations

    return list_conversations(root, as_json=as_json, limit=limit)


@command(conversations, "show")
def conversations_show(
    ctx: typer.Context,
    wanted: ConversationId = LAST,
    *,
    as_json: bool = switch("Print one JSON object per event.", "--json"),
    follow: bool = switch("Print new events until no process has the conversation open.", "--follow", "-f"),
    no_tui: NoTui = False,
    root: Root = None,
) -> int:
    """Show the events of a conversation."""
    from ohsandbox.cli.commands.conversations import show_conversation

    return show_conversation(wanted, root or ctx.obj, as_json=as_json, follow=follow, no_tui=no_tui)


@command(conversations, "export")
def conversations_export(
    ctx: typer.Context,
    wanted: ConversationId = LAST,
    *,
    output: Path | None = option("File to create.  [default: stdout]", "FILE", flags=["--output", "-o"], parser=path),
    form: Literal["jsonl", "md", "html"] = option(
        "jsonl: all events, unchanged. md: Markdown to read. html: the page of `view`.",
        default="jsonl",
        flags=["--format"],
    ),
    force: bool = switch("Overwrite FILE."),
    root: Root = None,
) -> int:
    """Export a conversation to one self-contained file."""
    from ohsandbox.cli.commands.conversations import export_conversation

    return export_conversation(wanted, root or ctx.obj, output=output, form=form, force=force)


@command(conversations, "schema")
def conversations_schema() -> int:
    """Print the JSON Schema of a line of `show --json`, `export` and `run --json`."""
    from ohsandbox.cli.commands.conversations import print_event_schema

    return print_event_schema()


@command(conversations, "repair")
def conversations_repair(ctx: typer.Context, wanted: ConversationId = LAST, *, root: Root = None) -> int:
    """Truncate a damaged log after its last valid record; the damaged log is kept beside it."""
    from ohsandbox.cli.commands.conversations import repair_conversation

    return repair_conversation(wanted, root or ctx.obj)


@command(conversations, "delete")
def conversations_delete(
    ctx: typer.Context,
    wanted: list[str] | None = argument("Conversations to delete.", "ID...", autocompletion=conversation_ids),
    *,
    older_than: str | None = option("Delete conversations without an event for AGE: 30d, 12h, 45min, 2w.", "AGE"),
    everything: bool = switch("Delete all conversations.", "--all"),
    yes: Yes = False,
    root: Root = None,
) -> int:
    """Delete conversations with their files, containers and checkpoints."""
    from ohsandbox.cli.commands.conversations import delete_conversations

    return delete_conversations(wanted or [], root or ctx.obj, older_than=older_than, everything=everything, yes=yes)


# --- eval -----------------------------------------------------------------------------------------

evaluation = new_app(
    "eval",
    shows_help=True,
    runs_by_default=True,
    help="Evaluate an agent on tasks, each in a fresh sandbox: `ohsandbox eval TASKS`.",
    epilog="Exit codes: 0 pass rate reached, 1 not reached, 2 a task or option is invalid, 4 engine or sandbox failed, "
    "5 model or provider failed.",
)


Tasks = Annotated[
    list[Path],
    typer.Argument(metavar="TASKS...", help="A task, a list of tasks in .jsonl or .yaml, or a directory of tasks."),
]


@command(evaluation, "run")
def eval_run(
    tasks: Tasks,
    how: EvalOptions,
    what: Annotated[RunOptions, EVALUATED_MODEL],
) -> int:
    """Run the trials that have no result yet. The word `run` may be left out."""
    from ohsandbox.cli.commands.eval import run_tasks

    return run_tasks(tasks, how, what)


@command(evaluation, "validate")
def eval_validate(tasks: Tasks, how: ValidateOptions) -> int:
    """Check tasks: read them strictly, then run the solution, which must pass, and nothing, which must not.

    Exit codes: 0 all are valid, 1 one is not, 2 one cannot be read or carried out, 4 engine or sandbox failed.
    """
    from ohsandbox.cli.commands.eval import validate_tasks

    return validate_tasks(tasks, how)


@command(evaluation, "schema")
def eval_schema() -> int:
    """Print the JSON Schema of a task in a .jsonl or .yaml list."""
    from ohsandbox.cli.commands.eval import print_task_schema

    return print_task_schema()


@command(evaluation, "report")
def eval_report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directory; several are shards of one run.")
    ],
    *,
    output: Path | None = option(
        "Where the reports go.  [default: the first DIR]", "DIR", flags=["--output", "-o"], parser=path
    ),
    min_pass_rate: float | None = option(
        "Exit as `eval` does with this option, and with 1 if a shard is missing.  [default: exit with 0]",
        "RATE", min=0, max=1,
    ),
) -> int:  # fmt: skip
    """Write report.json, junit.xml, summary.md and report.html anew from results."""
    from ohsandbox.cli.commands.eval_reports import exit_code_of_run, report_results

    report = report_results(directories, output, is_whole=True)
    return 0 if min_pass_rate is None else exit_code_of_run(report, min_pass_rate)


@command(evaluation, "compare")
def eval_compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="Results directory or report.json, as it was.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Results directory or report.json, as it is now.")],
    how: CompareOptions,
) -> int:
    """Compare two runs task by task. Exit code 1: B is worse by more than chance; 2: they cannot be compared."""
    from ohsandbox.cli.commands.eval_reports import compare_runs

    return compare_runs(before, after, how)


# --- images ---------------------------------------------------------------------------------------

images = new_app(
    "images",
    shows_help=True,
    help="Build the images that ohsandbox ships, list those that it made, remove unused ones.",
)


@command(images, "build")
def images_build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="default, browser.  [default: both]")
    ] = None,
    *,
    base: str | None = option(
        "Debian image to build on.  [default: the one pinned in the Dockerfile; browser: default]", "IMAGE"
    ),
) -> int:
    """Build the images that ohsandbox ships, with this machine's certificates and package index."""
    from ohsandbox.cli.commands.sandboxes import build_images

    return build_images(names or [], base=base)


@command(images, "list")
def images_list(*, as_json: AsJson = False) -> int:
    """List the images that ohsandbox made: shipped ones, builds of --build, checkpoints."""
    from ohsandbox.cli.commands.sandboxes import list_images

    return list_images(as_json=as_json)


@command(images, "prune")
def images_prune(
    names: list[str] | None = argument("Images.  [default: builds of yours that no sandbox uses]", "NAME..."),
    *,
    dry_run: bool = switch("Print what would be removed; remove nothing."),
    yes: Yes = False,
) -> int:
    """Remove the images that were built for --build and that no sandbox uses."""
    from ohsandbox.cli.commands.sandboxes import prune_images

    return prune_images(names or [], yes=yes, dry_run=dry_run)


# --- mcp ------------------------------------------------------------------------------------------

mcp = new_app("mcp", shows_help=True, help="List MCP servers, approve changed tools, or serve a sandbox over MCP.")


@command(mcp, "list")
def mcp_list(
    where: Annotated[SandboxOptions, {"image", "runtime", "network", "ca_bundle"}],
    *,
    mcp_config: McpConfig = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> int:
    """Start the configured MCP servers in a sandbox and list their tools. Exit code 1: a server is not ready."""
    from ohsandbox.cli.commands.mcp_servers import list_servers

    return list_servers(where, settings=settings, mcp_config=mcp_config, as_json=as_json)


@command(mcp, "serve")
def mcp_serve(what: ServeOptions, where: SandboxOptions) -> int:
    """Serve sandbox tools to MCP clients; each session has its own sandbox, removed when the session ends."""
    from ohsandbox.cli.commands.mcp_serve import serve as run

    return run(what, where)


@command(mcp, "approve")
def mcp_approve(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Server name in the configuration.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Tool name, as the server calls it.")],
) -> int:
    """Show and approve the current definition of a tool that its server has changed."""
    from ohsandbox.cli.commands.mcp_servers import approve_tool

    return approve_tool(server, tool)


# --- services -------------------------------------------------------------------------------------

services = new_app("services", help="List what runs beside the sandboxes, such as databases, or print its log.")

Sandbox = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Conversation id or sandbox name, or its beginning.  [default: all]",
        autocompletion=sandbox_names,
    ),
]


@services.callback(invoke_without_command=True)
def _services(ctx: typer.Context, *, debug: Debug = False) -> int:  # noqa: ARG001 - eager
    if ctx.invoked_subcommand is not None:
        return 0
    from ohsandbox.cli.commands.sandboxes import list_services

    return list_services(None, as_json=False)


@command(services, "list")
def services_list(sandbox: Sandbox = None, *, as_json: AsJson = False) -> int:
    """List the services of all sandboxes, or of one: image, state and ports."""
    from ohsandbox.cli.commands.sandboxes import list_services

    return list_services(sandbox, as_json=as_json)


@command(services, "logs")
def services_logs(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="Its name.")],
    sandbox: Sandbox = None,
    *,
    tail: int = option("Only the last N lines; 0 prints all that is kept, 2 MB.", "N", min=0, default=200),
) -> int:
    """Print what a service has printed, the oldest line first."""
    from ohsandbox.cli.commands.sandboxes import print_log

    return print_log(name, sandbox, tail=tail)
