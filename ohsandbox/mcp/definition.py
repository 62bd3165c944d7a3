"""`MCPToolDefinition`: a server's tool, beside the native ones in an agent's tools_map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field
from rich.text import Text

from ohsandbox.mcp.observation import MCPToolObservation
from ohsandbox.runtime.tools import MCPAction
from ohsandbox.schema import Action
from ohsandbox.tool import ToolAnnotations, ToolDefinition, ToolExecutor, take_security_risk
from ohsandbox.tool.arguments import SECURITY_RISK, parse_action
from ohsandbox.tool.schema import with_security_risk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ohsandbox.mcp.listed import ListedTool

__all__ = ["MCPAction", "MCPToolAction", "MCPToolDefinition", "MCPToolExecutor"]


class MCPToolAction(Action):
    """The arguments of one call, checked against the server's schema."""

    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def visualize(self) -> Text:
        """One line an argument, as of any other action."""
        text = Text()
        for name, value in self.arguments.items():
            text.append(f"{name}: ", style="bold")
            text.append(f"{value}\n")
        text.rstrip()
        return text


class Caller(Protocol):
    """Reaches the servers."""

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> MCPToolObservation:
        """Call a tool by its server's name for it.

        Raises:
            MCPError: see `ohsandbox.mcp.errors`.
        """

    def interrupt(self, server: str, tool: str) -> None:
        """End the calls of a tool that wait for an answer; the server is told."""

    def close(self) -> None:
        """End all servers; twice is fine."""


class MCPToolExecutor(ToolExecutor[MCPToolAction, MCPToolObservation]):
    """Bound to one tool of one server."""

    def __init__(self, caller: Caller, server: str, tool: str, *, owns_caller: bool = False) -> None:
        """With owns_caller, closing the tool ends the servers, all of them."""
        self._caller, self._server, self._tool, self._owns_caller = caller, server, tool, owns_caller

    def __call__(self, action: MCPToolAction) -> MCPToolObservation:
        """Call it.

        Raises:
            MCPError: there is no result; the message says why, and what happens next.
            SandboxUnavailable: the sandbox is gone.
        """
        return self._caller.call(self._server, self._tool, action.arguments)

    def interrupt(self) -> None:
        """End the calls of this tool that wait for an answer; from any thread."""
        self._caller.interrupt(self._server, self._tool)

    def close(self) -> None:
        """End the servers, where the tool owns them."""
        if self._owns_caller:
            self._caller.close()


def believed(hints: ToolAnnotations) -> ToolAnnotations:
    """What counts of the hints of a server that nobody trusts: the title, and what speaks against the tool.

    MCP 2025-06-18, "Tools": annotations are untrusted unless they come from a trusted server.
    """
    said = hints.model_fields_set
    dangers = {name: True for name in ("destructiveHint", "openWorldHint") if name in said and getattr(hints, name)}
    return ToolAnnotations(title=hints.title, **dangers)


@dataclass(frozen=True, kw_only=True)
class MCPToolDefinition(ToolDefinition[MCPToolAction, MCPToolObservation]):
    """A tool of an MCP server. What the server said of it is in `listed`."""

    server: str
    listed: ListedTool

    @classmethod
    def create(
        cls,
        server: str,
        listed: ListedTool,
        caller: Caller,
        *,
        name: str,
        aliases: tuple[str, ...] = (),
        owns_caller: bool = False,
        trusted: bool = False,
    ) -> list[MCPToolDefinition]:
        """The tool under the name that the model knows it by; trusted is as `ServerConfig.trusted`."""
        return [
            cls(
                name=name,
                description=listed.description,
                action_type=MCPToolAction,
                observation_type=MCPToolObservation,
                annotations=listed.annotations if trusted else believed(listed.annotations),
                executor=MCPToolExecutor(caller, server, listed.name, owns_caller=owns_caller),
                aliases=aliases,
                server=server,
                listed=listed,
            )
        ]

    @property
    def arguments_type(self) -> type[Action]:
        """Of the server's schema."""
        return self.listed.action_type

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> MCPToolAction:
        """The action for a model's arguments, checked against the server's schema.

        A `security_risk` that is not the server's own is checked and dropped.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or wrong.
        """
        if SECURITY_RISK not in self.listed.schema["properties"]:
            arguments, _ = take_security_risk(self.name, arguments)
        checked = parse_action(self.name, self.listed.action_type, arguments)
        return MCPToolAction(arguments=checked.to_arguments())

    def to_mcp_tool(self) -> dict[str, Any]:
        """The entry of an MCP `tools/list` answer."""
        tool = {"name": self.name, "description": self.description, "inputSchema": self.listed.schema}
        return {**tool, "annotations": self.listed.annotations.model_dump(exclude_none=True)}

    def _parameters(self) -> dict[str, Any]:
        return self.listed.schema if self.is_read_only else with_security_risk(self.listed.schema)
