"""The MCP server: what it lists, and how a call of a client becomes one of a tool."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from ohsandbox import __version__
from ohsandbox.errors import UnknownToolError
from ohsandbox.serving.hands import Hands, Place, find, tools_in
from ohsandbox.serving.keeping import Keeper
from ohsandbox.serving.results import listed, result_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from mcp.server.context import ServerRequestContext

NAME = "ohsandbox"


def make_server(place: Place, names: Sequence[str], *, instructions: str) -> Server[Hands]:
    """A server that offers the named tools; each lifespan of it is a session, with a sandbox of its own.

    Raises:
        UsageError: one of names is no tool's, or the place's options cannot be.
    """
    nowhere = place.make(lambda _: None)
    tools = tools_in(nowhere, names, Keeper(nowhere))
    offered = [listed(tool) for tool in tools.values()]

    @contextlib.asynccontextmanager
    async def session(_: Server[Hands]) -> AsyncIterator[Hands]:
        hands = Hands(place, names)
        try:
            yield hands
        finally:
            await hands.close()

    async def list_tools(_: ServerRequestContext[Hands], __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(
        context: ServerRequestContext[Hands], params: types.CallToolRequestParams
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
