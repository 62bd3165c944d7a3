"""How a server is, and what it does, for a person's eyes."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ServerState(StrEnum):
    """Where a server is in its life."""

    WAITING = "not started"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    """It is started again when a tool of it is called."""
    FAILED = "failed"
    """It never came up."""
    OFF = "switched off"
    DISABLED = "disabled"
    CLOSED = "closed"


class ServerStatus(NamedTuple):
    """A server at one moment."""

    name: str
    state: ServerState
    reason: str
    """Why it is not ready; empty where it is."""
    where: str
    """`sandbox` or `host`."""
    tools: tuple[str, ...]
    """By the server's names."""
    withheld: dict[str, str]
    """Tools that changed since they were first seen, and how to approve them."""
    refused: dict[str, str]
    """Tools that cannot be offered, and why."""
    restarts: int


class MCPEvent(NamedTuple):
    """Something that a person should see."""

    server: str
    kind: str
    """ready, failed, ended, restarted, off, tools_changed, withheld, refused, log, progress or status."""
    message: str
