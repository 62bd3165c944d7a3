"""The tools of a sandbox for agents of pydantic-ai: `Agent(model, toolsets=[OhsandboxToolset(runtime)])`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_ai import BinaryContent, FunctionToolset, Tool

from ohsandbox.integrations.sandbox_tools import TOOLS, SandboxTool, sandbox_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.runtime import Runtime


class OhsandboxToolset(FunctionToolset[Any]):
    """Tools for shell, files and search of a started runtime, which the caller has to close.

    Calls that only read run concurrently; all others run alone. Cancelling a run ends the call in the sandbox. A
    sandbox that is gone raises `SandboxUnavailable` out of the run.
    """

    def __init__(self, runtime: Runtime, tools: Sequence[str] = TOOLS, *, id: str | None = None) -> None:  # noqa: A002 - the host's name
        """Create the toolset with the named tools.

        Args:
            runtime: the started runtime.
            tools: names as `ohsandbox tools` lists them.
            id: the toolset's id, which durable execution needs.

        Raises:
            UsageError: a name is not a tool's, or the tool needs more than a runtime.
        """
        super().__init__([_tool(one) for one in sandbox_tools(runtime, tools)], id=id)


def _tool(tool: SandboxTool) -> Tool[Any]:
    function = partial(_call, tool)
    return Tool.from_schema(
        function, tool.name, tool.description, tool.schema, takes_ctx=False, sequential=not tool.is_read_only
    )


async def _call(tool: SandboxTool, **arguments: Any) -> str | list[str | BinaryContent]:
    text, images = await tool.call(arguments)
    return [text, *(BinaryContent.from_data_uri(url) for url in images)] if images else text
