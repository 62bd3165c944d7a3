"""Errors of MCP servers.

ToolError
└── MCPError                    told to the model; the loop goes on
    ├── MCPConnectionError      the server could not be started or reached
    ├── MCPServerGoneError      it ended, or was disabled
    ├── MCPTimeoutError         (TimeoutError) no response in time
    ├── MCPProtocolError        its response is not a valid MCP message
    ├── MCPRefusedError         it returned a JSON-RPC error; `code` is the error's code
    └── MCPToolWithheldError    the tool has changed since it was first seen, or is no longer offered
UsageError
└── MCPConfigError              the configuration is wrong; names the server and the key
"""

from __future__ import annotations

from ohsandbox.errors import ToolError, UsageError


class MCPError(ToolError):
    """One MCP server failed; everything else continues."""


class MCPConnectionError(MCPError):
    """The server could not be started or reached."""


class MCPServerGoneError(MCPError):
    """The server ended while it was needed, or was disabled after it ended too often."""


class MCPTimeoutError(MCPError, TimeoutError):
    """The server did not respond in time."""


class MCPProtocolError(MCPError):
    """The server sent an invalid MCP message or an invalid response."""


class MCPRefusedError(MCPError):
    """The server returned an error for a request."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class MCPToolWithheldError(MCPError):
    """The tool differs from the approved one; it is not called."""


class MCPConfigError(UsageError):
    """The configuration of MCP servers is invalid."""
