"""Calls of tools by name in a runtime: `execute_bash`, `file_read`, `file_write`, the registered ones, and MCP's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from ohsandbox.arguments import expect, wrong
from ohsandbox.content import DEFAULT_LIMITS
from ohsandbox.errors import ToolError, UsageError
from ohsandbox.runtime import file_tools
from ohsandbox.runtime.execute_bash import CmdRunAction, ExecuteBashExecutor, bash_description
from ohsandbox.schema import Action, ErrorObservation
from ohsandbox.schema.execution import parse_action

if TYPE_CHECKING:
    import threading

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.schema import Observation


def definitions() -> list[dict[str, Any]]:
    """Return name, description and inputSchema of each tool, as in MCP."""
    tools: list[tuple[str, str, type[Action]]] = [
        ("execute_bash", bash_description(), CmdRunAction),
        ("file_read", file_tools.FILE_READ_DESCRIPTION, file_tools.FileReadAction),
        ("file_write", file_tools.FILE_WRITE_DESCRIPTION, file_tools.FileWriteAction),
    ]
    return [
        {"name": name, "description": DEFAULT_LIMITS.fill(description), "inputSchema": action.to_mcp_schema()}
        for name, description, action in tools
    ]


def execute(
    runtime: Runtime, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None = None
) -> Observation:
    """Run a tool; return an ErrorObservation for a model's mistake. cancel ends a command, as in `Runtime.execute`."""
    expect("name", name, str, optional=False)
    if not isinstance(arguments, Mapping):
        raise wrong("arguments", arguments, "Give a dict of the tool's arguments.")
    try:
        match name:
            case "execute_bash":
                return ExecuteBashExecutor(runtime, cancel=cancel)(parse_action(name, CmdRunAction, arguments))
            case "file_read":
                return file_tools.read_file(runtime, parse_action(name, file_tools.FileReadAction, arguments))
            case "file_write":
                return file_tools.write_file(runtime, parse_action(name, file_tools.FileWriteAction, arguments))
        return runtime.registered_tools.execute(name, arguments, cancel=cancel)
    except (ToolError, UsageError) as error:
        return ErrorObservation(message=str(error))


class MCPAction(Action):
    """A call of an MCP tool by name."""

    name: str
    """The tool's name for the model, or `server__tool`."""
    arguments: dict[str, Any] = Field(default_factory=dict)


class MCPToolCaller(Protocol):
    """The MCP servers of a sandbox, as `ohsandbox.mcp.MCPServers` implements them."""

    def call_tool_mcp(self, action: MCPAction) -> Observation:
        """Call a tool.

        Raises:
            ToolError: the tool does not exist, or returns no result.
        """


def call_mcp(servers: MCPToolCaller | None, action: MCPAction) -> Observation:
    """Call a tool of the sandbox's servers; return an ErrorObservation if it does not exist or returns no result."""
    if servers is None:
        return ErrorObservation(message=f"Unknown tool: {action.name[:100]}. No MCP server runs in this sandbox.")
    try:
        return servers.call_tool_mcp(action)
    except ToolError as error:
        return ErrorObservation(message=str(error))
