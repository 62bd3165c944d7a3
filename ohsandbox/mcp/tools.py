"""`create_mcp_tools`: from a configuration to tools, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohsandbox.mcp.config import MCPConfig
from ohsandbox.mcp.servers import MCPServers

if TYPE_CHECKING:
    import os

    from ohsandbox.mcp.definition import MCPToolDefinition
    from ohsandbox.runtime.base import Runtime


def read_mcp_config(config: MCPConfig | Mapping[str, Any] | str | os.PathLike[str]) -> MCPConfig:
    """A configuration from itself, a dict or a JSON file's path.

    Raises:
        MCPConfigError: naming the server and the key.
    """
    if isinstance(config, MCPConfig):
        return config
    return MCPConfig.parse(config) if isinstance(config, Mapping) else MCPConfig.load(Path(config))


def create_mcp_tools(
    config: MCPConfig | Mapping[str, Any] | str | os.PathLike[str],
    runtime: Runtime | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[MCPToolDefinition]:
    """Start the servers and return the tools of those that came up within timeout_s seconds (None: their own limits).

    Closing one of these tools ends all servers. For their states, and for more than one look at their tools, use
    `MCPServers`, which takes the same options.

    Raises:
        MCPConfigError: the configuration is wrong.
    """
    servers = MCPServers(read_mcp_config(config), runtime, **options).start()
    try:
        tools = servers.tools(timeout_s, owned=True)
    except BaseException:
        servers.close()
        raise
    if not tools:
        servers.close()
    return tools
