"""The tools of a sandbox in a form for other agents: name, description, JSON schema, and an awaitable call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import ohsandbox.tools  # noqa: F401 - registers the built-in tools
from ohsandbox.content import ImageContent, TextContent
from ohsandbox.state import ConversationState
from ohsandbox.tool import Tool, resolve_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime import Runtime

TOOLS = ("execute_bash", "file_read", "file_write", "file_editor", "glob", "grep")
"""The tools that a coding agent needs; `ohsandbox tools` lists all tools."""


class SandboxTool(NamedTuple):
    """One tool, bound to a sandbox."""

    runtime: Runtime
    name: str
    description: str
    schema: dict[str, Any]
    """The JSON schema of its arguments."""
    is_read_only: bool

    async def call(self, arguments: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return what the model is shown: masked text, and images as `data:` URLs. A model's error gives such a text.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        contents = (await self.runtime.aexecute_tool(self.name, arguments)).to_llm_content
        text = "\n".join(one.text for one in contents if isinstance(one, TextContent))
        images = [url for one in contents if isinstance(one, ImageContent) for url in one.image_urls]
        return self.runtime.secrets.masker.mask_cut(text), images


def sandbox_tools(runtime: Runtime, names: Sequence[str] = TOOLS) -> list[SandboxTool]:
    """Return the tools with these names.

    Raises:
        UsageError: a name is not a tool's, or the tool needs more than a runtime.
    """
    state = ConversationState(conversation_id="", runtime=runtime)
    found = [tool for name in names for tool in resolve_tool(Tool(name=name), state)]
    return [
        SandboxTool(runtime, tool.name, tool.description, tool.to_mcp_tool()["inputSchema"], tool.is_read_only)
        for tool in found
    ]
