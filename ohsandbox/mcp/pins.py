"""What tools looked like when they were first seen: a tool that changes later is not the one that was trusted."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from pathlib import Path

from ohsandbox.mcp.errors import MCPConfigError


class Pins:
    """Fingerprints by server and tool; with a path they are kept in that JSON file on the host."""

    def __init__(self, path: Path | str | None = None) -> None:
        """Read the file, where it is there.

        Raises:
            MCPConfigError: the file is damaged; which tools were trusted is then a person's to say.
        """
        self._path = None if path is None else Path(path)
        self._guard = threading.Lock()
        self._pins: dict[str, dict[str, str]] = {}
        if self._path is not None and self._path.exists():
            self._pins = _read(self._path)

    def get(self, server: str, tool: str) -> str | None:
        """The fingerprint, or None where the tool was never seen."""
        with self._guard:
            return self._pins.get(server, {}).get(tool)

    def update(self, server: str, fingerprints: dict[str, str]) -> None:
        """Pin tools of a server, and keep that."""
        if not fingerprints:
            return
        with self._guard:
            self._pins.setdefault(server, {}).update(fingerprints)
            if self._path is not None:
                _write(self._path, self._pins)


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        pins = json.loads(path.read_text(encoding="utf-8"))
        return {str(server): {str(tool): str(pin) for tool, pin in tools.items()} for server, tools in pins.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise MCPConfigError(
            f"The fingerprints of MCP tools in {str(path)!r} cannot be read: {error}. Delete the file to trust anew."
        ) from None


def _write(path: Path, pins: dict[str, dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".pins-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(pins, file, indent=1, sort_keys=True)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
