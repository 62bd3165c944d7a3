"""What can go wrong with an MCP server.

ToolError
└── MCPError                    told to the model; the loop goes on
    ├── MCPConnectionError      the server could not be started or reached
    ├── MCPServerGoneError      it ended, or was switched off
    ├── MCPTimeoutError         (TimeoutError) no answer in time
    ├── MCPProtocolError        its answer is not a valid MCP message
    ├── MCPRefusedError         it answered with a JSON-RPC error; `code` is the protocol's
    └── MCPToolWithheldError    the tool has changed since it was first seen, or is no longer offered
UsageError
└── MCPConfigError              the configuration is wrong; names the server and the key
"""

from __future__ import annotations

from ohsandbox.errors import ToolError, UsageError


class MCPError(ToolError):
    """Something is wrong with one MCP server; everything else goes on."""


class MCPConnectionError(MCPError):
    """The server could not be started or reached."""


class MCPServerGoneError(MCPError):
    """The server ended while it was needed, or was switched off after too many ends."""


class MCPTimeoutError(MCPError, TimeoutError):
    """The server did not answer in time."""


class MCPProtocolError(MCPError):
    """The server sent something that is not an MCP message, or not a valid answer."""


class MCPRefusedError(MCPError):
    """The server answered a request with an error."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class MCPToolWithheldError(MCPError):
    """The tool is not what was approved; it is not called."""


class MCPConfigError(UsageError):
    """The configuration of MCP servers is wrong."""
