"""The sandbox's own tools for any MCP client: one sandbox a session, over stdio or HTTP."""

from ohsandbox.mcp_server.server import make_server
from ohsandbox.mcp_server.session import SandboxFactory, SandboxSession

__all__ = ["SandboxFactory", "SandboxSession", "make_server"]
