"""The commands of `ohsandbox mcp`, and their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from ohsandbox.cli.options import AsJson, McpConfig, SandboxOptions, SettingsFile
from ohsandbox.cli.options_commands import ServeOptions
from ohsandbox.cli.typer_options import command, new_app

mcp = new_app("mcp", help="List MCP servers, approve changed tools, or serve a sandbox over MCP.")


@mcp.callback(invoke_without_command=True)
def _mcp(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@command(mcp, "list")
def list_(
    where: Annotated[SandboxOptions, {"image", "runtime", "network", "ca_bundle"}],
    *,
    mcp_config: McpConfig = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> int:
    """Start the configured MCP servers in a sandbox and list their tools. Exit code 1: a server is not ready."""
    from ohsandbox.cli.mcp_servers import list_servers

    return list_servers(where, settings=settings, mcp_config=mcp_config, as_json=as_json)


@command(mcp)
def serve(what: ServeOptions, where: SandboxOptions) -> int:
    """Serve sandbox tools to MCP clients; each session has its own sandbox, removed when the session ends."""
    from ohsandbox.cli.mcp_serve import serve as run

    return run(what, where)


@command(mcp)
def approve(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Server name in the configuration.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Tool name, as the server calls it.")],
) -> int:
    """Show and approve the current definition of a tool that its server has changed."""
    from ohsandbox.cli.mcp_servers import approve_tool

    return approve_tool(server, tool)
