"""The command line on one page: every command, option and exit code. What a command does stands in its own module.

Those modules are imported when their command runs: `--help` needs none of them.
"""

# ruff: noqa: PLC0415 - a command's module is loaded when the command runs
from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox import __version__
from ohsandbox.cli.back import back
from ohsandbox.cli.conversations import conversations
from ohsandbox.cli.errors import exit_code_of, set_debug
from ohsandbox.cli.mcp import mcp

app = typer.Typer(
    name="ohsandbox",
    help="An agent loop on this machine, its hands in a container.",
    epilog="Exit codes: 0 done, 1 the run failed, 2 usage, 3 conversation open elsewhere, 4 no engine or sandbox, "
    "5 model or provider, 6 calls wait for confirmation, 129, 130 and 143 interrupted.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(conversations)
app.add_typer(back)
app.add_typer(mcp)


def main() -> None:
    """Run the command in sys.argv and leave with its exit code."""
    sys.exit(exit_code_of(lambda: app(prog_name="ohsandbox", standalone_mode=False)))


def _print_version(value: bool) -> None:  # noqa: FBT001 - an option's callback
    if value:
        typer.echo(f"ohsandbox {__version__}")
        raise typer.Exit


Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show a traceback with an error.", callback=set_debug, is_eager=True),
]
Version = Annotated[
    bool,
    typer.Option("--version", help="Show the version and leave.", callback=_print_version, is_eager=True),
]
Image = Annotated[
    str | None, typer.Option(metavar="NAME", help="Image of the sandbox; else that of the settings, else python:3.12.")
]
RuntimeName = Annotated[
    Literal["docker", "cli"] | None,
    typer.Option(help="docker: a container. cli: THIS HOST, with no container around it."),
]
Workspace = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A directory of yours to work in; at /workspace in the sandbox.")
]
Network = Annotated[
    Literal["none", "open"] | None, typer.Option(help="none: no network at all (default). open: the internet.")
]
Attach = Annotated[
    str | None, typer.Option(metavar="NAME", help="Work in a running container instead of a new one; it is kept.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the container when done.")]
CaBundle = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM certificates that the sandbox trusts as well (proxies).")
]
NoTui = Annotated[bool, typer.Option("--no-tui", help="One plain line an event; no colours, no questions.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback(invoke_without_command=True)
def _ohsandbox(ctx: typer.Context, *, debug: Debug = False, version: Version = False) -> None:  # noqa: ARG001 - eager
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def run(
    task: Annotated[
        str | None, typer.Argument(help="What to do; '-' reads it from stdin. Without it you are asked.")
    ] = None,
    *,
    image: Image = None,
    model: Annotated[str | None, typer.Option(metavar="PROVIDER/MODEL", help="The model, as litellm names it.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Its key. Visible in `ps`: prefer the settings or the environment.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="Where an OpenAI-compatible server is.")] = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else ~/.ohsandbox/settings.json.")
    ] = None,
    no_tui: NoTui = False,
    autoresume: Annotated[bool, typer.Option("--autoresume", help="Go on with the newest conversation.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with this one; the beginning of its id is enough.")
    ] = None,
    tool_choice: Annotated[
        Literal["auto", "required"], typer.Option(help="required: the model's first answer must call a tool.")
    ] = "auto",
    workspace: Workspace = None,
    network: Network = None,
    keep: Keep = False,
    attach: Attach = None,
    runtime: RuntimeName = None,
    ca_bundle: CaBundle = None,
    confirm: Annotated[
        Literal["never", "always", "risky"] | None,
        typer.Option(help="Which calls you must allow. Default: never; on this host, at a terminal, risky."),
    ] = None,
    max_iterations: Annotated[int | None, typer.Option(min=1, help="Requests to the model in one run.")] = None,
    max_time_s: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long one run may take.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens read and written in the whole conversation.")
    ] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="What the whole conversation may cost.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=env:OTHER|=file:PATH]",
            help="Give commands this variable, and hide its value from the model and the log; may be repeated.",
        ),
    ] = None,
    instructions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text that ends the system prompt: your rules for the agent.")
    ] = None,
    mcp_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help='MCP servers for the sandbox: {"mcpServers": {...}}.')
    ] = None,
    enable: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOLS", help="Give it these, too: families (browsing, web_read, ...) or tools by name."),
    ] = None,
    disable: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOLS", help="Leave these out: families (cmd, jupyter, ...) or tools by name."),
    ] = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Give an agent a task, and watch it work in a sandbox."""
    from ohsandbox.cli.run import RunOptions, run_task
    from ohsandbox.cli.sandbox import SandboxOptions

    where = SandboxOptions(
        runtime=runtime,
        image=image,
        workspace=workspace,
        network=network,
        keep=keep,
        attach=attach,
        ca_bundle=ca_bundle,
    )
    what = RunOptions(
        task=task,
        model=model,
        api_key=api_key,
        base_url=base_url,
        settings=settings,
        no_tui=no_tui,
        autoresume=autoresume,
        resume=resume,
        tool_choice=tool_choice,
        max_iterations=max_iterations,
        max_time_s=max_time_s,
        max_tokens=max_tokens,
        max_cost_usd=max_cost_usd,
        confirm=confirm,
        secrets=tuple(secret or ()),
        mcp_config=mcp_config,
        instructions=instructions,
        enable=tuple(enable or ()),
        disable=tuple(disable or ()),
    )
    return run_task(what, where)


@app.command()
def demo(
    *,
    image: Image = None,
    runtime: RuntimeName = None,
    no_tui: NoTui = False,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Watch the loop at work with a scripted model: no key needed."""
    from ohsandbox.cli.demo import run_demo

    return run_demo(image=image, runtime=runtime, no_tui=no_tui)


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[list[str], typer.Argument(metavar="CMD...", help="The program and its arguments.")],
    *,
    image: Image = None,
    attach: Attach = None,
    workspace: Workspace = None,
    network: Network = None,
    ca_bundle: CaBundle = None,
    runtime: RuntimeName = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable; may be repeated.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="User name or id in the sandbox.")] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Kill it after so long; the exit code is then 124.")
    ] = None,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", "-t/-T", help="A terminal for the command; default: when you sit at one."),
    ] = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Run one command in a fresh sandbox; its exit code is ours (124 after --timeout)."""
    from ohsandbox.cli.exec import ExecOptions, run_command
    from ohsandbox.cli.sandbox import SandboxOptions

    where = SandboxOptions(
        runtime=runtime, image=image, workspace=workspace, network=network, attach=attach, ca_bundle=ca_bundle
    )
    return run_command(command, ExecOptions(env=tuple(env or ()), user=user, timeout_s=timeout, tty=tty), where)


@app.command()
def confirm(
    conversation: Annotated[str, typer.Argument(metavar="ID", help="Which; a beginning that is its alone, or 'last'.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Allow all that waits.")] = False,
    no: Annotated[bool, typer.Option("--no", help="Refuse all that waits.")] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to the agent with --no.")] = "",
    no_run: Annotated[bool, typer.Option("--no-run", help="Only store the answer; `run --resume` acts on it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what waits as JSON, and ask nothing.")] = False,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else ~/.ohsandbox/settings.json.")
    ] = None,
    no_tui: NoTui = False,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Answer for the calls that wait in a conversation, and go on with its run."""
    from ohsandbox.cli.confirm import ConfirmOptions, answer_stored
    from ohsandbox.cli.run import RunOptions, run_task
    from ohsandbox.cli.sandbox import SandboxOptions

    answer = answer_stored(conversation, ConfirmOptions(yes=yes, no=no, reason=reason, run=not no_run, as_json=as_json))
    if isinstance(answer, int):
        return answer
    return run_task(RunOptions(settings=settings, no_tui=no_tui, resume=answer, talks=False), SandboxOptions())


@app.command()
def ps(*, as_json: AsJson = False, debug: Debug = False) -> int:  # noqa: ARG001 - eager
    """List the sandboxes of this engine."""
    from ohsandbox.cli.sandboxes import list_them

    return list_them(as_json=as_json)


@app.command()
def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    kept: Annotated[bool, typer.Option("--kept", help="Also those made with --keep, or left to be resumed.")] = False,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Remove the sandboxes whose owner is gone."""
    from ohsandbox.cli.sandboxes import collect

    return collect(dry_run=dry_run, kept=kept)


@app.command()
def tools(
    name: Annotated[str | None, typer.Argument(help="Only this one, with its description and schema.")] = None,
    *,
    as_json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """List the tools that an agent can have."""
    from ohsandbox.cli.tools import list_tools, show_tool

    return list_tools(as_json=as_json) if name is None else show_tool(name, as_json=as_json)


@app.command()
def doctor(*, as_json: AsJson = False, debug: Debug = False) -> int:  # noqa: ARG001 - eager
    """Say what is here, what is missing and what is weak."""
    from ohsandbox.cli.doctor import examine

    return examine(as_json=as_json)
