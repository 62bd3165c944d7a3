"""Selects the tools to offer from a server's list: usable ones, unchanged since they were first seen."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from ohsandbox.mcp.errors import MCPToolWithheldError
from ohsandbox.mcp.text import masked, one_line
from ohsandbox.mcp.tool_listing import (
    MAX_SERVER_CHARS,
    MAX_TOOLS,
    ListedTool,
    UnusableToolError,
    listed_tool,
)
from ohsandbox.mcp.tool_pinning import MAX_PINNED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcp_types import Tool

    from ohsandbox.mcp.config import Resolved
    from ohsandbox.mcp.tool_pinning import Pins

MAX_ANNOUNCED = 10
"""Refused tools that are reported one by one; each is a line for the user and in the log."""


class ToolFilter:
    """The tools of one server, sorted: offered, withheld until a person approves them, refused."""

    def __init__(self, server: str, resolved: Resolved, pins: Pins, tell: Callable[[str, str], None]) -> None:
        """Create it empty. `tell(kind, message)` is called for each tool that is withheld or refused."""
        self._server, self._config, self._mask = server, resolved.config, resolved.masked
        self._secrets = resolved.secrets
        self._pins, self._tell = pins, tell
        self._pinned_as = f"{server}@{resolved.config.identity}"
        self.tools: dict[str, ListedTool] = {}
        """By the server's names; includes withheld tools."""
        self._withheld: dict[str, ListedTool] = {}
        self.refused: dict[str, str] = {}
        """Name and reason."""

    def take(self, listed: Iterable[Tool], unfit: Mapping[str, str]) -> None:
        """Sort a new list; tools seen for the first time are pinned.

        Raises:
            MCPConfigError: the pins cannot be read or written.
        """
        offered: dict[str, ListedTool] = {}
        withheld: dict[str, ListedTool] = {}
        refused = dict(unfit)
        length = 0
        for tool in map(self._without_secrets, listed):
            if not self._config.offers(tool.name):
                continue
            try:
                made = self._made(tool, offered, length)
            except UnusableToolError as error:
                refused[one_line(tool.name, limit_chars=100)] = str(error)
                continue
            length += made.length
            if self._pins.get(self._pinned_as, tool.name) not in (None, made.fingerprint):
                withheld[tool.name] = made
            offered[tool.name] = self.tools.get(tool.name, made) if tool.name in withheld else made
        self._pin(offered, withheld)
        self._announce(withheld, refused)
        self.tools, self._withheld, self.refused = offered, withheld, refused

    def _made(self, tool: Tool, before: Mapping[str, ListedTool], length: int) -> ListedTool:
        """Make the tool, if it can be offered after the ones before it, whose total length is given."""
        if len(before) >= MAX_TOOLS:
            raise UnusableToolError(f"more than {MAX_TOOLS} tools")
        if tool.name in before:
            raise UnusableToolError("listed twice")
        made = listed_tool(self._server, tool)
        if length + made.length > MAX_SERVER_CHARS:
            raise UnusableToolError(f"the tools of its server take more than {MAX_SERVER_CHARS} characters together")
        if self._pins.get(self._pinned_as, tool.name) is None and not self._pins.has_room(self._pinned_as):
            raise UnusableToolError(f"its server has listed {MAX_PINNED} others before")
        return made

    def _without_secrets(self, tool: Tool) -> Tool:
        """Mask secrets: a description may contain the server's connection string with its password."""
        said = tool.model_dump_json(by_alias=True, exclude_unset=True) if self._secrets else ""
        if not said or self._mask(said) == said:
            return tool
        return type(tool).model_validate(masked(json.loads(said), self._mask))

    def _pin(self, offered: Mapping[str, ListedTool], withheld: Mapping[str, ListedTool]) -> None:
        for name, tool in withheld.items():
            self._pins.note_change(
                self._pinned_as,
                name,
                fingerprint=tool.fingerprint,
                description=tool.description,
                definition=tool.definition,
            )
        fresh = {name: tool for name, tool in offered.items() if name not in withheld}
        self._pins.update(
            self._pinned_as,
            {name: tool.fingerprint for name, tool in fresh.items()},
            definitions={name: tool.definition for name, tool in fresh.items()},
        )

    def _announce(self, withheld: Mapping[str, ListedTool], refused: Mapping[str, str]) -> None:
        for tool in withheld.keys() - self._withheld.keys():
            self._tell("withheld", f"tool {tool!r} has changed since it was first seen and is not called. "
                       f"{how_to_approve(self._server, tool)}")  # fmt: skip
        fresh = [tool for tool in refused if tool not in self.refused]
        for tool in fresh[:MAX_ANNOUNCED]:
            self._tell("refused", f"tool {tool!r} is not offered: {refused[tool]}")
        if (more := len(fresh) - MAX_ANNOUNCED) > 0:
            self._tell("refused", f"{more} more tools are not offered")

    def now(self) -> list[ListedTool]:
        """The tools that may be called now, in the server's order."""
        self._look_for_approvals()
        return [tool for name, tool in self.tools.items() if name not in self._withheld]

    @property
    def withheld(self) -> dict[str, str]:
        """Tools that changed since they were first seen, and how to approve them."""
        return {tool: how_to_approve(self._server, tool) for tool in self._withheld}

    def check(self, tool: str) -> None:
        """Check that the tool may be called.

        Raises:
            MCPToolWithheldError: it has changed, or is no longer offered.
        """
        self._look_for_approvals()
        if tool in self._withheld:
            raise MCPToolWithheldError(
                f"Tool {tool!r} of MCP server {self._server!r} has changed its description or arguments since it was "
                f"first seen, so it is not called. {how_to_approve(self._server, tool)} Do without it."
            )
        if tool not in self.tools:
            raise MCPToolWithheldError(f"MCP server {self._server!r} no longer offers a tool {tool!r}. Do without it.")

    def _look_for_approvals(self) -> None:
        """Release withheld tools that the user has approved since, also in another process."""
        if not self._withheld:
            return
        self._pins.reload()
        for tool, now in list(self._withheld.items()):
            if self._pins.get(self._pinned_as, tool) == now.fingerprint:
                self.tools[tool] = self._withheld.pop(tool)

    def approve(self, tool: str) -> bool:
        """Trust a withheld tool's current definition; False if no such tool is withheld.

        Raises:
            MCPConfigError: the pins cannot be read or written.
        """
        changed = self._withheld.get(tool)
        if changed is None:
            return False
        self._pins.update(self._pinned_as, {tool: changed.fingerprint}, definitions={tool: changed.definition})
        self._withheld.pop(tool, None)
        self.tools[tool] = changed
        return True


def how_to_approve(server: str, tool: str) -> str:
    """A sentence with the command; the tool's name is quoted for the shell because users paste it."""
    end_of_options = "-- " if tool.startswith("-") else ""
    return f"The user can approve it: `ohsandbox mcp approve {server} {end_of_options}{shlex.quote(tool)}`."
