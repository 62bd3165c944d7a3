"""How much of a tool's result a model is shown: one policy for our tools, for MCP servers, and for our own server."""

from __future__ import annotations

MAX_CHARS = 30_000
"""Of the text that one of our tools or an MCP server returns: about 8,000 tokens, room for a long test report and not
for a log file. What is longer is cut, and says how much is left out."""
MAX_RESULT_CHARS = 100_000
"""The last bound on any result: a tool of a plug-in need not cut by itself."""
MAX_IMAGES = 8
"""Of one result; a model pays some 1,500 tokens for each."""
MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Of one image as a data URL: what Anthropic's API takes (docs, "Vision", 2025)."""
