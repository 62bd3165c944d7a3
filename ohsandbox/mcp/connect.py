"""From a server's configuration to the transport that reaches it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ohsandbox.mcp.process import Command
from ohsandbox.mcp.remote import remote_transport
from ohsandbox.mcp.transport import SandboxTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastmcp.client.transports import ClientTransport

    from ohsandbox.mcp.config import ServerConfig
    from ohsandbox.runtime.base import Runtime


TELLS_PROGRESS = {"npx": {"npm_config_loglevel": "http"}}
"""What makes a program that installs servers say what it does: away from a terminal npm downloads without a word."""


def transport_for(server: ServerConfig, *, sandbox: Runtime | None, host: Callable[[], Runtime]) -> ClientTransport:
    """The transport; nothing is started."""
    if server.command is None:
        return remote_transport(server, sandbox if server.runs_in == "sandbox" else None)
    place = host() if server.runs_in == "host" or sandbox is None else sandbox
    env = {**TELLS_PROGRESS.get(PurePosixPath(server.command).name, {}), **server.env}
    return SandboxTransport(place, Command([server.command, *server.args], env, server.cwd, server.user))
