"""`ohsandbox mcp` on one page; what a command does stands in a module of its own."""

# ruff: noqa: PLC0415, TC001 - a command's module is loaded when it runs; typer reads annotations at run time
from __future__ import annotations

from typing import Annotated

import typer

from ohsandbox.cli.commands import Only, command, new_app
from ohsandbox.cli.options import AsJson, McpConfig, SandboxOptions, ServeOptions, SettingsFile

mcp = new_app(
    "mcp",
    help="MCP: what the configured servers offer, trust in a tool that has changed, and this sandbox as a server.",
)


@mcp.callback(invoke_without_command=True)
def _mcp(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@command(mcp, "list")
def list_(
    where: Annotated[SandboxOptions, Only.of("image", "runtime", "network", "ca_bundle")],
    *,
    mcp_config: McpConfig = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> int:
    """Start the servers in a sandbox, and say how each is and which tools it has. Exit code 1: one is not there."""
    from ohsandbox.cli.servers import list_servers

    return list_servers(where, settings=settings, mcp_config=mcp_config, as_json=as_json)


@command(mcp)
def serve(what: ServeOptions, where: SandboxOptions) -> int:
    """Offer a sandbox's own tools to an MCP client; each session has a sandbox, removed when the client goes."""
    from ohsandbox.cli.mcp_serve import serve as run

    return run(what, where)


@command(mcp)
def approve(
    server: Annotated[str, typer.Argument(help="As in the configuration.")],
    tool: Annotated[str, typer.Argument(help="By the server's own name.")],
) -> int:
    """Trust a tool as it is now, after its server changed what it says of it; shows that, and asks at a terminal."""
    from ohsandbox.cli.servers import approve_tool

    return approve_tool(server, tool)
