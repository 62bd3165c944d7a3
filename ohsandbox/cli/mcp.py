"""`ohsandbox mcp` on one page; what a command does stands in a module of its own."""

# ruff: noqa: PLC0415 - a command's module is loaded when the command runs
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ohsandbox.cli.errors import set_debug

mcp = typer.Typer(
    name="mcp",
    help="MCP: what the configured servers offer, trust in a tool that has changed, and this sandbox as a server.",
    add_completion=False,
    no_args_is_help=True,
)

Debug = Annotated[
    bool, typer.Option("--debug", help="Show a traceback with an error.", callback=set_debug, is_eager=True)
]

McpConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help='{"mcpServers": {...}}; with those of the settings.')
]


@mcp.command("list")
def list_(
    *,
    mcp_config: McpConfig = None,
    image: Annotated[str | None, typer.Option(metavar="NAME", help="Image of the sandbox to start them in.")] = None,
    runtime: Annotated[
        Literal["docker", "cli"] | None, typer.Option(help="docker: a container. cli: THIS HOST.")
    ] = None,
    network: Annotated[
        Literal["none", "open"] | None, typer.Option(help="none: no network. open: the internet.")
    ] = None,
    ca_bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificates that the sandbox trusts as well (proxies).")
    ] = None,
    settings: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings; else those at home.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Start the servers in a sandbox, and say how each is and which tools it has. Exit code 1: one is not there."""
    from ohsandbox.cli.sandbox import SandboxOptions
    from ohsandbox.cli.servers import list_servers

    where = SandboxOptions(runtime=runtime, image=image, network=network, ca_bundle=ca_bundle)
    return list_servers(where, settings=settings, mcp_config=mcp_config, as_json=as_json)


@mcp.command()
def serve(
    *,
    image: Annotated[str | None, typer.Option(metavar="NAME", help="Image of the sandboxes.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A directory of yours to work in; at /workspace in the sandbox.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve over HTTP at /mcp; default: stdin and stdout.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="env:NAME|file:PATH", help="With --http: clients must know this bearer token."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="With --http: so many sandboxes at a time.")] = 8,
    idle_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="With --http: a session ends when it is idle so long.")
    ] = 1800.0,
    network: Annotated[
        Literal["none", "open"] | None, typer.Option(help="none: no network. open: the internet.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the container when done.")] = False,
    attach: Annotated[str | None, typer.Option(metavar="NAME", help="Work in a running container; it is kept.")] = None,
    runtime: Annotated[
        Literal["docker", "cli"] | None, typer.Option(help="docker: a container. cli: THIS HOST.")
    ] = None,
    ca_bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificates that the sandbox trusts as well (proxies).")
    ] = None,
    enable: Annotated[
        list[str] | None, typer.Option(metavar="TOOLS", help="Offer these, too (web_read, browsing).")
    ] = None,
    disable: Annotated[
        list[str] | None, typer.Option(metavar="TOOLS", help="Leave these out (cmd, editor, jupyter, search, ...).")
    ] = None,
    settings: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings; else those at home.")] = None,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Offer a sandbox's own tools to an MCP client; each session has a sandbox, removed when the client goes."""
    from ohsandbox.cli.mcp_serve import ServeOptions
    from ohsandbox.cli.mcp_serve import serve as run
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
    what = ServeOptions(
        http=http,
        token=token,
        max_sessions=max_sessions,
        idle_timeout_s=idle_timeout,
        enable=tuple(enable or ()),
        disable=tuple(disable or ()),
        settings=settings,
    )
    return run(what, where)


@mcp.command()
def approve(
    server: Annotated[str, typer.Argument(help="As in the configuration.")],
    tool: Annotated[str, typer.Argument(help="By the server's own name.")],
    *,
    debug: Debug = False,  # noqa: ARG001 - eager
) -> int:
    """Trust a tool as it is now, after its server changed what it says of it. Prints what that is."""
    from ohsandbox.cli.servers import approve_tool

    return approve_tool(server, tool)
