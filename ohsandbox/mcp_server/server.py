"""The MCP server: the tools that it lists, and the handling of a client's call."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, get_args

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ohsandbox import __version__
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.mcp_server.checkpoints import CheckpointTools
from ohsandbox.mcp_server.session import SandboxFactory, SandboxSession, tools_in
from ohsandbox.text import encodable_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp.server.context import ServerRequestContext

    from ohsandbox.schema import Observation
    from ohsandbox.tool import ToolDefinition


NAME = "ohsandbox"


def make_server(
    place: SandboxFactory, names: Sequence[str], *, instructions: str, limits: OutputLimits = DEFAULT_LIMITS
) -> Server[SandboxSession]:
    """Make a server that offers the named tools; each lifespan is a session with its own sandbox.

    Raises:
        UsageError: no tool has one of the names, or the sandbox's options contradict each other.
    """
    nowhere = place.make(lambda _: None)
    tools = tools_in(nowhere, names, CheckpointTools(nowhere), limits)
    offered = [listed(tool) for tool in tools.values()]

    @contextlib.asynccontextmanager
    async def session(_: Server[SandboxSession]) -> AsyncIterator[SandboxSession]:
        sandbox = SandboxSession(place, names, limits)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def list_tools(_: ServerRequestContext[SandboxSession], __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(
        context: ServerRequestContext[SandboxSession], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            message = f"Unknown tool: {params.name[:100]}. There are: {', '.join(tools)}."
            raise MCPError(code=types.INVALID_PARAMS, message=message)

        async def report(elapsed_s: float, message: str) -> None:
            await context.session.report_progress(round(elapsed_s, 1), None, message)

        wants_progress = "progress_token" in (context.meta or {})
        observation = await context.lifespan_context.call(
            tool, params.arguments or {}, report=report if wants_progress else None
        )
        return result_of(tool, observation)

    return Server(
        NAME, version=__version__, title="Sandbox", instructions=instructions, lifespan=session,
        on_list_tools=list_tools, on_call_tool=call_tool,
    )  # fmt: skip


IMAGES = "images"
"""The observation field for images: they are sent as image blocks, never as base64 in the structured content."""

_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,(.*)", re.DOTALL)


def listed(tool: ToolDefinition[Any, Any]) -> types.Tool:
    """The entry of `tools/list`: the tool's own schemas; the output schema omits images."""
    entry = tool.to_mcp_tool()
    if tool.observation_type is not None:
        entry["outputSchema"] = _output_schema(tool.observation_type)
    return types.Tool.model_validate(entry, by_name=False)


def result_of(tool: ToolDefinition[Any, Any], observation: Observation) -> types.CallToolResult:
    """The result of `tools/call`. An error has no structured content: it may not have the tool's type."""
    text, urls = tool.limits.fit(observation.to_llm_content)
    images = [found for url in urls if (found := _DATA_URL.fullmatch(url))]
    if len(images) < len(urls):
        text += f"\n[{len(urls) - len(images)} image(s) left out: not sent as data]"
    blocks: list[types.ContentBlock] = [
        types.TextContent(text=encodable_tree(text)),
        *(types.ImageContent(data=found[2], mime_type=found[1]) for found in images),
    ]
    structured = None
    if tool.observation_type is not None and isinstance(observation, tool.observation_type):
        structured = encodable_tree(observation.model_dump(by_alias=True, exclude={IMAGES}, exclude_none=True))
    structured = None if observation.is_error else structured
    return types.CallToolResult(content=blocks, structured_content=structured, is_error=observation.is_error)


def _output_schema(kind: type[Observation]) -> dict[str, Any]:
    """The schema of the output of `result_of`: without images, excluded fields and null, since None is omitted."""
    schema = kind.to_mcp_schema()
    unsent = {IMAGES, *(name for name, field in kind.model_fields.items() if field.exclude)}
    properties = {name: value for name, value in schema.get("properties", {}).items() if name not in unsent}
    may_be_none = {name for name, field in kind.model_fields.items() if type(None) in get_args(field.annotation)}
    always = [name for name in schema.get("required", []) if name in properties and name not in may_be_none]
    rest = {key: value for key, value in schema.items() if key not in {"properties", "required"}}
    return {**rest, "properties": properties, **({"required": always} if always else {})}
