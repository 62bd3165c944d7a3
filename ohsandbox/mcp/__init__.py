"""MCP servers as sources of tools; stdio servers run inside the sandbox. Importing this loads no fastmcp."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ohsandbox.lazy_names import lazy_names

if TYPE_CHECKING:
    from ohsandbox.mcp.client import MCPClient
    from ohsandbox.mcp.config import MCPConfig, ServerConfig, Timeouts
    from ohsandbox.mcp.content import MCPToolObservation
    from ohsandbox.mcp.definition import MCPAction, MCPToolAction, MCPToolDefinition, MCPToolExecutor
    from ohsandbox.mcp.errors import (
        MCPConfigError,
        MCPError,
        MCPProtocolError,
        MCPRefusedError,
        MCPServerGoneError,
        MCPTimeoutError,
        MCPToolWithheldError,
    )
    from ohsandbox.mcp.process import Command, SandboxTransport
    from ohsandbox.mcp.server import MCPEvent, ServerState, ServerStatus
    from ohsandbox.mcp.servers import MCPServers, create_mcp_tools, read_mcp_config
    from ohsandbox.mcp.tool_pinning import Pins

os.environ.setdefault(
    "FASTMCP_ENV_FILE", os.devnull
)  # otherwise fastmcp reads settings from `.env` in the working directory

__all__ = [
    "Command",
    "MCPAction",
    "MCPClient",
    "MCPConfig",
    "MCPConfigError",
    "MCPError",
    "MCPEvent",
    "MCPProtocolError",
    "MCPRefusedError",
    "MCPServerGoneError",
    "MCPServers",
    "MCPTimeoutError",
    "MCPToolAction",
    "MCPToolDefinition",
    "MCPToolExecutor",
    "MCPToolObservation",
    "MCPToolWithheldError",
    "Pins",
    "SandboxTransport",
    "ServerConfig",
    "ServerState",
    "ServerStatus",
    "Timeouts",
    "create_mcp_tools",
    "read_mcp_config",
]

if not TYPE_CHECKING:  # most conversations have no server
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".client": "MCPClient",
            ".config": "MCPConfig ServerConfig Timeouts",
            ".content": "MCPToolObservation",
            ".definition": "MCPAction MCPToolAction MCPToolDefinition MCPToolExecutor",
            ".errors": "MCPConfigError MCPError MCPProtocolError MCPRefusedError MCPServerGoneError MCPTimeoutError "
            "MCPToolWithheldError",
            ".process": "Command SandboxTransport",
            ".server": "MCPEvent ServerState ServerStatus",
            ".servers": "MCPServers create_mcp_tools read_mcp_config",
            ".tool_pinning": "Pins",
        },
    )
