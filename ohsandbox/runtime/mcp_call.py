"""A call of an MCP tool by name, as `Runtime.call_tool_mcp` takes it, and who answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from ohsandbox.schema import Action

if TYPE_CHECKING:
    from ohsandbox.schema import Observation


class MCPAction(Action):
    """Which tool, and what with."""

    name: str
    """As the model calls the tool, or `server__tool`."""
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallsMCP(Protocol):
    """The MCP servers of a sandbox; `ohsandbox.mcp.MCPServers` is it."""

    def call_tool_mcp(self, action: MCPAction) -> Observation:
        """Call a tool.

        Raises:
            ToolError: there is no such tool, or no result.
        """
