"""Size limits of a tool's result: one policy for our tools, for MCP servers, and for our own server."""

from __future__ import annotations

MAX_CHARS = 30_000
"""Limit of the text from one of our tools or an MCP server: about 8,000 tokens, enough for a long test report, but not
for a log file. Longer text is cut, and states how much is left out."""
MAX_RESULT_CHARS = 100_000
"""The final limit of any result: a plug-in's tool need not cut by itself."""
MAX_IMAGES = 8
"""Limit per result; each costs a model some 1,500 tokens."""
MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Limit of one image as a data URL: the limit of Anthropic's API (docs, "Vision", 2025)."""
