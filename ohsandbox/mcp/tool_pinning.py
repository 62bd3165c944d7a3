"""Tool pinning: fingerprints of tools at first sight, and the filter that withholds a tool that has changed since."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.mcp.content import masked_value, visible_line
from ohsandbox.mcp.definition import (
    MAX_SERVER_CHARS,
    MAX_TOOLS,
    ListedTool,
    UnusableToolError,
    listed_tool,
)
from ohsandbox.mcp.errors import MCPConfigError, MCPToolWithheldError
from ohsandbox.paths import make_private_dirs
from ohsandbox.private_files import locked, read_regular, write_atomically
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mcp_types import Tool

    from ohsandbox.mcp.config import Resolved

MAX_PINNED = 1024
"""Maximum number of pinned tools per server, over time; eight times as many as it may offer at once."""

MAX_ANNOUNCED = 10
"""Maximum number of refused tools that are reported one by one; each is a line for the user and in the log."""


class ChangedTool(NamedTuple):
    """A changed tool that waits for the user's approval."""

    server: str
    """The server's name in the configuration."""
    tool: str
    description: str
    """The tool's current description, cleaned."""
    before: str = ""
    """The definition that was trusted, not cleaned; "" if an older version pinned it."""
    now: str = ""
    """The current definition, in the form of `before`."""


class Pins:
    """Fingerprints by server and tool; with a path, they are stored in that JSON file for all processes.

    A server is identified by name and command: a different command with the same name is a different server.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        """Read the file if it exists.

        Raises:
            MCPConfigError: the file is damaged; the user must then decide which tools to trust.
        """
        self._path = None if path is None else Path(path)
        self._guard = threading.Lock()
        self._pins: dict[str, dict[str, dict[str, Any]]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the changes of other processes.

        Raises:
            MCPConfigError: the file is damaged.
        """
        if self._path is not None:
            with self._guard:
                self._pins = _read(self._path)

    def get(self, server: str, tool: str) -> str | None:
        """Return the fingerprint; None if the tool was never seen."""
        with self._guard:
            fingerprint: str | None = self._pins.get(server, {}).get(tool, {}).get("trusted")
            return fingerprint

    def has_room(self, server: str) -> bool:
        """Whether more of its tools can be pinned: a server that lists new ones all the time would fill the disk."""
        with self._guard:
            return len(self._pins.get(server, {})) < MAX_PINNED

    def update(
        self, server: str, fingerprints: dict[str, str], *, definitions: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Pin tools of a server and save them, with their definitions for a later comparison.

        Raises:
            MCPConfigError: the file is damaged, or cannot be written.
        """
        wanted_pins = {tool: _pin(trusted, definitions.get(tool, "")) for tool, trusted in fingerprints.items()}
        with self._guard:
            if wanted_pins.items() <= self._pins.get(server, {}).items():
                return
        with self._edited() as pins:
            pins.setdefault(server, {}).update(wanted_pins)

    def note_change(self, server: str, tool: str, *, fingerprint: str, description: str, definition: str = "") -> None:
        """Record the changed definition of a pinned tool, for the user to review and approve.

        Raises:
            MCPConfigError: the file is damaged, or cannot be written.
        """
        current = {"fingerprint": fingerprint, "description": description, "definition": definition}
        with self._guard:
            if self._pins.get(server, {}).get(tool, {}).get("now") == current:
                return
        with self._edited() as pins:
            pins.setdefault(server, {}).setdefault(tool, {})["now"] = current

    def changed(self) -> list[ChangedTool]:
        """Return the tools that wait for approval."""
        with self._guard:
            return [
                _changed(server, tool, pin)
                for server, tools in self._pins.items()
                for tool, pin in tools.items()
                if "now" in pin
            ]

    def approve(self, name: str, tool: str, *, shown: ChangedTool | None = None) -> ChangedTool:
        """Trust a tool's current definition; running conversations use it from their next step on.

        Args:
            name: the server's name in the configuration.
            tool: the tool's name at the server.
            shown: the definition that the user was shown.

        Raises:
            UsageError: no such tool waits for approval, or it has changed since it was shown.
            MCPConfigError: the file is damaged, or cannot be written.
        """
        with self._edited() as pins:
            for server, tools in pins.items():
                if (
                    "now" in tools.get(tool, {})
                    and (changed_tool := _changed(server, tool, tools[tool])).server == name
                ):
                    if shown is not None and shown != changed_tool:
                        raise UsageError(f"Tool {tool!r} of MCP server {name!r} has changed again. Look at it again.")
                    tools[tool] = _pin(tools[tool]["now"]["fingerprint"], changed_tool.now)
                    return changed_tool
        waiting = ", ".join(f"{changed_tool.server} {changed_tool.tool}" for changed_tool in self.changed()) or "none"
        raise UsageError(f"No tool {tool!r} of MCP server {name!r} waits to be approved. Waiting: {waiting}.")

    @contextlib.contextmanager
    def _edited(self) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
        """Yield the current pins for changes; save them at the end."""
        with self._guard:
            if self._path is None:
                yield self._pins
                return
            try:
                make_private_dirs(self._path.parent)
                with locked(self._path.with_suffix(".lock")):
                    pins = _read(self._path)
                    yield pins
                    data = json.dumps(pins, indent=1, sort_keys=True).encode()
                    write_atomically(self._path, data, durable=False)
                    self._pins = pins  # only now, because a pin that cannot be stored is not trusted
            except OSError as error:
                raise MCPConfigError(
                    f"The fingerprints of MCP tools cannot be kept in {str(self._path)!r}: {error.strerror}. "
                    "No tool is trusted without them. Make the directory writable."
                ) from None


def _pin(fingerprint: str, definition: str) -> dict[str, Any]:
    return {"trusted": fingerprint, **({"definition": definition} if definition else {})}


def _changed(server: str, tool: str, pin: dict[str, Any]) -> ChangedTool:
    """Return the changed tool of a pin; server is `SERVER@IDENTITY`, as `ToolFilter` writes it."""
    definition_before, current = pin.get("definition", ""), pin["now"]
    name = server.partition("@")[0]
    return ChangedTool(
        name, tool, str(current["description"]), str(definition_before), str(current.get("definition", ""))
    )


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    try:
        pins = load_json(read_regular(path))
        return {str(server): {str(tool): {**pin} for tool, pin in tools.items()} for server, tools in pins.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise MCPConfigError(
            f"The fingerprints of MCP tools in {str(path)!r} cannot be read: {error}. Delete the file to trust anew."
        ) from None


class ToolFilter:
    """The tools of one server: offered ones, those withheld until a person approves them, and refused ones."""

    def __init__(
        self,
        server: str,
        resolved: Resolved,
        pins: Pins,
        tell: Callable[[str, str], None],
    ) -> None:
        """Create a filter without tools. `tell(kind, message)` is called about withheld and refused tools."""
        self._server, self._resolved, self._pins, self._tell = server, resolved, pins, tell
        self._pinned_as = f"{server}@{resolved.config.identity}"
        self.tools: dict[str, ListedTool] = {}
        """All tools by name at the server, also withheld ones."""
        self.refused: dict[str, str] = {}
        """Reasons by name of the refused tools."""

    def update(self, listed: Iterable[Tool], unfit: Mapping[str, str]) -> None:
        """Sort a new list of tools; those seen for the first time are pinned.

        Raises:
            MCPConfigError: the pins cannot be read or written.
        """
        self._pins.reload()  # another process may have seen these tools first
        tools: dict[str, ListedTool] = {}
        refused = dict(unfit)
        length = 0
        for tool in map(self._without_secrets, listed):
            if self._resolved.config.offers(tool.name):
                try:
                    tools[tool.name] = self._made(tool, tools, length)
                    length += tools[tool.name].length
                except UnusableToolError as error:
                    refused[visible_line(tool.name, limit_chars=100)] = str(error)
        refused_before = {*self.refused, *self.withheld}
        changed = {tool.name: tool for tool in tools.values() if self._pins.get(self._pinned_as, tool.name) is not None
                   and self._differs(tool)}  # fmt: skip
        self._pin(tool for tool in tools.values() if tool.name not in changed)
        for name, tool_now in changed.items():
            self._pins.note_change(
                self._pinned_as, name, fingerprint=tool_now.fingerprint, description=tool_now.description,
                definition=tool_now.definition,
            )  # fmt: skip
        self.tools, self.refused = tools, refused  # not before they are pinned
        for name in changed:
            if name not in refused_before:
                self._tell("withheld", f"tool {name!r} has changed since it was first seen and is not called. "
                           f"{how_to_approve(self._server, name)}")  # fmt: skip
        fresh = [name for name in refused if name not in refused_before]
        for name in fresh[:MAX_ANNOUNCED]:
            self._tell("refused", f"tool {name!r} is not offered: {refused[name]}")
        if (more := len(fresh) - MAX_ANNOUNCED) > 0:
            self._tell("refused", f"{more} more tools are not offered")

    def _made(self, tool: Tool, accepted: Mapping[str, ListedTool], length: int) -> ListedTool:
        """Return the tool if it can be offered after the ones before it, whose total length is given."""
        if len(accepted) >= MAX_TOOLS:
            raise UnusableToolError(f"more than {MAX_TOOLS} tools")
        if tool.name in accepted:
            raise UnusableToolError("listed twice")
        listed = listed_tool(self._server, tool)
        if length + listed.length > MAX_SERVER_CHARS:
            raise UnusableToolError(f"the tools of its server take more than {MAX_SERVER_CHARS} characters together")
        if self._pins.get(self._pinned_as, tool.name) is None and not self._pins.has_room(self._pinned_as):
            raise UnusableToolError(f"its server has listed {MAX_PINNED} others before")
        return listed

    def _without_secrets(self, tool: Tool) -> Tool:
        """Return the tool with secrets masked: a description may have a connection string with a password."""
        mask = self._resolved.masked
        tool_json = tool.model_dump_json(by_alias=True, exclude_unset=True) if self._resolved.secrets else ""
        return (
            tool
            if mask(tool_json) == tool_json
            else type(tool).model_validate(masked_value(load_json(tool_json), mask))
        )

    def _pin(self, tools: Iterable[ListedTool]) -> None:
        pinned = {tool.name: tool for tool in tools}
        fingerprints = {name: tool.fingerprint for name, tool in pinned.items()}
        definitions = {name: tool.definition for name, tool in pinned.items()}
        self._pins.update(self._pinned_as, fingerprints, definitions=definitions)

    @property
    def withheld(self) -> dict[str, str]:
        """Tools that have changed since they were first seen, and how to approve them."""
        return {name: how_to_approve(self._server, name) for name, tool in self.tools.items() if self._differs(tool)}

    def _differs(self, tool: ListedTool) -> bool:
        return self._pins.get(self._pinned_as, tool.name) != tool.fingerprint

    def now(self) -> list[ListedTool]:
        """Return the tools that may be called now, in the server's order."""
        if self.withheld:
            self._pins.reload()  # the user may have approved one, in another process
        return [tool for tool in self.tools.values() if not self._differs(tool)]

    def check(self, tool: str) -> None:
        """Check that the tool may be called.

        Raises:
            MCPToolWithheldError: it has changed, or is no longer offered.
        """
        listed = self.tools.get(tool)
        if listed is None:
            raise MCPToolWithheldError(f"MCP server {self._server!r} no longer offers a tool {tool!r}. Do without it.")
        if self._differs(listed):
            self._pins.reload()
        if self._differs(listed):
            raise MCPToolWithheldError(
                f"Tool {tool!r} of MCP server {self._server!r} has changed its description or arguments since it was "
                f"first seen, so it is not called. {how_to_approve(self._server, tool)} Do without it."
            )

    def approve(self, tool: str) -> bool:
        """Trust the current definition of a withheld tool; return False if no such tool is withheld.

        Raises:
            MCPConfigError: the pins cannot be read or written.
        """
        if tool not in self.withheld:
            return False
        self._pin([self.tools[tool]])
        return True


def how_to_approve(server: str, tool: str) -> str:
    """Return a sentence with the command; the tool's name is quoted for the shell, since users paste it."""
    end_of_options = "-- " if tool.startswith("-") else ""
    return f"The user can approve it: `ohsandbox mcp approve {server} {end_of_options}{shlex.quote(tool)}`."
