"""The tools of a sandbox for agents of the OpenAI Agents SDK: `Agent(name="coder", tools=ohsandbox_tools(runtime))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText

from ohsandbox.integrations.sandbox_tools import TOOLS, SandboxTool, sandbox_tools
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.tool_context import ToolContext

    from ohsandbox.runtime import Runtime


def ohsandbox_tools(runtime: Runtime, tools: Sequence[str] = TOOLS) -> list[FunctionTool]:
    """Return tools for shell, files and search of a started runtime, which the caller has to close.

    Calls of one turn run concurrently, except commands of one shell, which run one after another. Cancelling a run ends
    the call in the sandbox. A sandbox that is gone raises `SandboxUnavailable` out of the run.

    Args:
        runtime: the started runtime.
        tools: names as `ohsandbox tools` lists them.

    Raises:
        UsageError: a name is not a tool's, or the tool needs more than a runtime.
    """
    return [_tool(one) for one in sandbox_tools(runtime, tools)]


def _tool(tool: SandboxTool) -> FunctionTool:
    async def invoke(_: ToolContext[Any], text: str) -> str | list[ToolOutputText | ToolOutputImage]:
        try:
            arguments = load_json(text or "{}")
        except ValueError as error:
            return f"The arguments are not JSON: {error}. Send one object."
        if not isinstance(arguments, dict):
            return f"The arguments are a {type(arguments).__name__}. Send one object."
        shown, images = await tool.call(arguments)
        if not images:
            return shown
        return [ToolOutputText(text=shown), *(ToolOutputImage(image_url=url) for url in images)]

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.schema,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # the strict form makes every argument required
    )
