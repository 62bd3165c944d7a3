"""MCP servers as sources of tools; stdio servers run inside the sandbox. Importing this loads no fastmcp."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from ohsandbox.mcp.server import MCPEvent, ServerState, ServerStatus
from ohsandbox.mcp.servers import MCPServers, create_mcp_tools, read_mcp_config
from ohsandbox.mcp.tool_pinning import Pins

if TYPE_CHECKING:
    from ohsandbox.mcp.client import MCPClient
    from ohsandbox.mcp.process import Command, SandboxTransport

os.environ.setdefault(
    "FASTMCP_ENV_FILE", os.devnull
)  # otherwise fastmcp reads settings from `.env` in the working directory

_SLOW = {"MCPClient": "client", "SandboxTransport": "process", "Command": "process"}

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


def __getattr__(name: str) -> Any:
    if name not in _SLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SLOW[name]}"), name)
