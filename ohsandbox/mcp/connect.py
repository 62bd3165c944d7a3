"""From a server's configuration to the transport that reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.mcp.process import Command
from ohsandbox.mcp.remote import remote_transport
from ohsandbox.mcp.transport import SandboxTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastmcp.client.transports import ClientTransport

    from ohsandbox.mcp.config import ServerConfig
    from ohsandbox.runtime.base import Runtime


def transport_for(server: ServerConfig, *, sandbox: Runtime | None, host: Callable[[], Runtime]) -> ClientTransport:
    """The transport; nothing is started."""
    if server.command is None:
        return remote_transport(server)
    place = host() if server.runs_in == "host" or sandbox is None else sandbox
    return SandboxTransport(place, Command([server.command, *server.args], server.env, server.cwd, server.user))
