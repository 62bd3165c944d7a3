"""An MCP server for the sandbox's tools: one sandbox per session, over stdio or HTTP."""

from ohsandbox.mcp_server.server import make_server
from ohsandbox.mcp_server.session import SandboxFactory, SandboxSession

__all__ = ["SandboxFactory", "SandboxSession", "make_server"]
