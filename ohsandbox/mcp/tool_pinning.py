"""Fingerprints of tools at first sight: a tool that changes later is no longer trusted."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.mcp.errors import MCPConfigError
from ohsandbox.paths import make_private_dirs
from ohsandbox.private_files import locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_PINNED = 1024
"""Limit of pinned tools per server, over time; eight times the number that it may offer at once."""


class ChangedTool(NamedTuple):
    """A changed tool that waits for the user's approval."""

    server: str
    """Its name in the configuration."""
    tool: str
    description: str
    """Its current description, cleaned."""
    before: str = ""
    """Its definition when it was trusted; empty if an older version pinned it. Not cleaned."""
    now: str = ""
    """Its current definition, in the form of `before`."""


class Pins:
    """Fingerprints by server and tool; with a path, stored in that JSON file on the host for all processes.

    Name and command identify a server: a different command under the same name is a different server.
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
        """The fingerprint, or None if the tool was never seen."""
        with self._guard:
            found: str | None = self._pins.get(server, {}).get(tool, {}).get("trusted")
            return found

    def update(
        self, server: str, fingerprints: dict[str, str], *, definitions: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Pin tools of a server and save them, with their definitions for a later comparison.

        Raises:
            MCPConfigError: the file is damaged, or cannot be written.
        """
        wanted = {tool: _pin(trusted, definitions.get(tool, "")) for tool, trusted in fingerprints.items()}
        with self._guard:
            if wanted.items() <= self._pins.get(server, {}).items():
                return
        with self._edited() as pins:
            pins.setdefault(server, {}).update(wanted)

    def note_change(self, server: str, tool: str, *, fingerprint: str, description: str, definition: str = "") -> None:
        """Record the changed definition of a pinned tool, for the user to review and approve.

        Raises:
            MCPConfigError: the file is damaged, or cannot be written.
        """
        now = {"fingerprint": fingerprint, "description": description, "definition": definition}
        with self._guard:
            if self._pins.get(server, {}).get(tool, {}).get("now") == now:
                return
        with self._edited() as pins:
            pins.setdefault(server, {}).setdefault(tool, {})["now"] = now

    def has_room(self, server: str) -> bool:
        """Whether more of its tools can be pinned: a server that lists new ones every second would fill the disk."""
        with self._guard:
            return len(self._pins.get(server, {})) < MAX_PINNED

    def changed(self) -> list[ChangedTool]:
        """The tools that wait for approval."""
        with self._guard:
            return [
                _changed(_name(server), tool, known)
                for server, tools in self._pins.items()
                for tool, known in tools.items()
                if "now" in known
            ]

    def approve(self, name: str, tool: str, *, shown: ChangedTool | None = None) -> ChangedTool:
        """Trust a tool's current definition; running conversations use it at their next step.

        Args:
            name: the server's name in the configuration.
            tool: the server's own name for it.
            shown: the definition that the user was shown.

        Raises:
            UsageError: no such tool waits for approval, or it changed after it was shown.
        """
        with self._edited() as pins:
            for server, tools in pins.items():
                if _name(server) == name and "now" in tools.get(tool, {}):
                    now, found = tools[tool]["now"], _changed(name, tool, tools[tool])
                    if shown is not None and shown != found:
                        raise UsageError(f"Tool {tool!r} of MCP server {name!r} has changed again. Look at it again.")
                    tools[tool] = _pin(now["fingerprint"], found.now)
                    return found
        waiting = ", ".join(f"{one.server} {one.tool}" for one in self.changed()) or "none"
        raise UsageError(f"No tool {tool!r} of MCP server {name!r} waits to be approved. Waiting: {waiting}.")

    @contextlib.contextmanager
    def _edited(self) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
        """Yield the current pins for modification; saves them at the end."""
        with self._guard:
            if self._path is None:
                yield self._pins
                return
            try:
                make_private_dirs(self._path.parent)
                with locked(self._path.with_suffix(".lock")):
                    self._pins = _read(self._path)
                    yield self._pins
                    _write(self._path, self._pins)
            except OSError as error:
                raise MCPConfigError(
                    f"The fingerprints of MCP tools cannot be kept in {str(self._path)!r}: {error.strerror}. "
                    "No tool is trusted without. Make the directory writable."
                ) from None


def _pin(fingerprint: str, definition: str) -> dict[str, Any]:
    return {"trusted": fingerprint, **({"definition": definition} if definition else {})}


def _changed(server: str, tool: str, known: dict[str, Any]) -> ChangedTool:
    now = known["now"]
    before, after = known.get("definition", ""), now.get("definition", "")
    return ChangedTool(server, tool, str(now["description"]), str(before), str(after))


def _name(server: str) -> str:
    """The configuration's name of a server in the pins that `MCPServers` writes."""
    return server.partition("@")[0]


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    try:
        pins = json.loads(path.read_text(encoding="utf-8"))
        return {str(server): {str(tool): {**known} for tool, known in tools.items()} for server, tools in pins.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise MCPConfigError(
            f"The fingerprints of MCP tools in {str(path)!r} cannot be read: {error}. Delete the file to trust anew."
        ) from None


def _write(path: Path, pins: dict[str, dict[str, dict[str, Any]]]) -> None:
    write_atomically(path, json.dumps(pins, indent=1, sort_keys=True).encode(), durable=False)
