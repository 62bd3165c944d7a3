"""The MCP server: the tools that it lists, and the handling of a client's call."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, get_args

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ohsandbox import __version__
from ohsandbox.errors import UnknownToolError
from ohsandbox.mcp_server.checkpoints import CheckpointTools
from ohsandbox.mcp_server.session import SandboxFactory, SandboxSession, find, tools_in
from ohsandbox.schema import ImageContent, text_of
from ohsandbox.text import encodable_tree
from ohsandbox.tool import cut_middle
from ohsandbox.tool.output import MAX_IMAGE_CHARS, MAX_IMAGES, MAX_RESULT_CHARS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp.server.context import ServerRequestContext

    from ohsandbox.schema import Observation
    from ohsandbox.tool import ToolDefinition


NAME = "ohsandbox"


def make_server(place: SandboxFactory, names: Sequence[str], *, instructions: str) -> Server[SandboxSession]:
    """Make a server that offers the named tools; each lifespan is a session with its own sandbox.

    Raises:
        UsageError: no tool has one of the names, or the sandbox's options contradict each other.
    """
    nowhere = place.make(lambda _: None)
    tools = tools_in(nowhere, names, CheckpointTools(nowhere))
    offered = [listed(tool) for tool in tools.values()]

    @contextlib.asynccontextmanager
    async def session(_: Server[SandboxSession]) -> AsyncIterator[SandboxSession]:
        hands = SandboxSession(place, names)
        try:
            yield hands
        finally:
            await hands.close()

    async def list_tools(_: ServerRequestContext[SandboxSession], __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(
        context: ServerRequestContext[SandboxSession], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            tool = find(tools, params.name)
        except UnknownToolError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None

        async def report(elapsed_s: float, message: str) -> None:
            await context.session.report_progress(round(elapsed_s, 1), None, message)

        wants_progress = "progress_token" in (context.meta or {})
        observation = await context.lifespan_context.call(
            tool, params.arguments or {}, report=report if wants_progress else None
        )
        return result_of(tool, observation)

    return Server(
        NAME,
        version=__version__,
        title="Sandbox",
        instructions=instructions,
        lifespan=session,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


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
    images, left_out = _images(observation)
    text = encodable_tree(cut_middle("\n".join([text_of(observation), *left_out]), limit_chars=MAX_RESULT_CHARS))
    blocks: list[types.ContentBlock] = [types.TextContent(text=text), *images]
    structured = None
    if tool.observation_type is not None and isinstance(observation, tool.observation_type):
        structured = encodable_tree(observation.model_dump(by_alias=True, exclude={IMAGES}, exclude_none=True))
    return types.CallToolResult(
        content=blocks,
        structured_content=None if observation.is_error else structured,
        is_error=observation.is_error,
    )


def _output_schema(kind: type[Observation]) -> dict[str, Any]:
    """The schema of the output of `result_of`: without images and without null, since None fields are omitted."""
    schema = kind.to_mcp_schema()
    properties = {name: value for name, value in schema.get("properties", {}).items() if name != IMAGES}
    always = [name for name in schema.get("required", []) if name in properties and not _may_be_none(kind, name)]
    rest = {key: value for key, value in schema.items() if key not in {"properties", "required"}}
    return {**rest, "properties": properties, **({"required": always} if always else {})}


def _may_be_none(kind: type[Observation], name: str) -> bool:
    return type(None) in get_args(kind.model_fields[name].annotation)


def _images(observation: Observation) -> tuple[list[types.ContentBlock], list[str]]:
    """The images for the client, and a line for each omitted one."""
    contents = [part for part in observation.to_llm_content if isinstance(part, ImageContent)]
    urls = [url for part in contents for url in part.image_urls]
    found = [_DATA_URL.fullmatch(url) for url in urls if len(url) <= MAX_IMAGE_CHARS]
    fitting: list[types.ContentBlock] = [
        types.ImageContent(data=match[2], mime_type=match[1]) for match in found[:MAX_IMAGES] if match
    ]
    missing = len(urls) - len(fitting)
    line = f"[{missing} image(s) left out: at most {MAX_IMAGES}, each of at most {MAX_IMAGE_CHARS // 1024 // 1024} MiB]"
    return fitting, [line] if missing else []
