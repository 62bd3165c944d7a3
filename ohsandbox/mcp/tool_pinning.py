"""What tools looked like when they were first seen: a tool that changes later is not the one that was trusted."""

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
"""Tools of one server, over time; eight times as many as it may offer at once."""


class ChangedTool(NamedTuple):
    """A tool that is not what it was, until a person approves it."""

    server: str
    """As in the configuration."""
    tool: str
    description: str
    """What the server says of it now, cleaned."""
    before: str = ""
    """Its definition when it was trusted; empty where an older version pinned it. Not cleaned."""
    now: str = ""
    """Its definition now, as `before`."""


class Pins:
    """Fingerprints by server and tool; with a path they are kept in that JSON file on the host, for all processes.

    A server is meant by its name and what is started for it: another command under the same name is another server.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        """Read the file, where it is there.

        Raises:
            MCPConfigError: the file is damaged; which tools were trusted is then a person's to say.
        """
        self._path = None if path is None else Path(path)
        self._guard = threading.Lock()
        self._pins: dict[str, dict[str, dict[str, Any]]] = {}
        self.reload()

    def reload(self) -> None:
        """Take in what other processes wrote meanwhile.

        Raises:
            MCPConfigError: the file is damaged.
        """
        if self._path is not None:
            with self._guard:
                self._pins = _read(self._path)

    def get(self, server: str, tool: str) -> str | None:
        """The fingerprint, or None where the tool was never seen."""
        with self._guard:
            found: str | None = self._pins.get(server, {}).get(tool, {}).get("trusted")
            return found

    def update(
        self, server: str, fingerprints: dict[str, str], *, definitions: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Pin tools of a server, and keep that, with their definitions for a later comparison.

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
        """Remember what a pinned tool has become, so that a person can look at it and approve it.

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
        """Whether more tools of it can be pinned: one that lists others every second would fill the disk."""
        with self._guard:
            return len(self._pins.get(server, {})) < MAX_PINNED

    def changed(self) -> list[ChangedTool]:
        """The tools that wait for a person."""
        with self._guard:
            return [
                _changed(_name(server), tool, known)
                for server, tools in self._pins.items()
                for tool, known in tools.items()
                if "now" in known
            ]

    def approve(self, name: str, tool: str, *, shown: ChangedTool | None = None) -> ChangedTool:
        """Trust a tool as it is now; conversations at work take it at their next step.

        Args:
            name: the server's, as in the configuration.
            tool: the server's own name for it.
            shown: what a person was shown of it.

        Raises:
            UsageError: no such tool waits for a person, or it is not what was shown any more.
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
        """The pins as they are now, to be changed; kept at the end."""
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
    """The name in the configuration of what `MCPServers` pins by."""
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
