"""The transport of a stdio server in a sandbox, and the choice of transport for a server's configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from fastmcp.client.transports import ClientTransport
from mcp import ClientSession
from mcp_types import METHOD_NOT_FOUND, ErrorData, Tool
from pydantic import ValidationError

from ohsandbox.mcp.loop import detach
from ohsandbox.mcp.process import Command, ServerProcess
from ohsandbox.mcp.remote import remote_transport
from ohsandbox.mcp.text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fastmcp.client.transports.base import SessionKwargs, TransportOptions
    from mcp.client.session import ClientRequestContext
    from mcp_types import CallToolResult, InputRequest, InputResponse
    from typing_extensions import Unpack

    from ohsandbox.mcp.config import ServerConfig
    from ohsandbox.runtime.base import Runtime


LOOK_EVERY_S = 2.0
"""Most calls end before the first check, which asks the engine and takes a millisecond."""


MAX_LISTED = 1024
"""Limit of tools read per server, so that `include` can choose among them; 128 are offered."""

MAX_LISTED_CHARS = 4_000_000
"""Limit of all of them together, as JSON."""

FURTHER = "(further tools)"
"""The key for further tools in `GuardedSession.unfit`."""


class GuardedSession(ClientSession):
    """The SDK's session for an untrusted server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unfit: dict[str, str] = {}
        """Invalid tools of the last `tools/list` pages, with the reason; they are left out."""
        self._listed = self._listed_chars = 0
        self._send_raw = self._dispatcher.send_raw_request
        self._dispatcher.send_raw_request = self._send_leniently  # type: ignore[method-assign] # sees raw responses

    def begin_list(self) -> None:
        """Start a new list: the next page of `tools/list` is the first one."""
        self.unfit = {}
        self._listed = self._listed_chars = 0

    @property
    def is_full(self) -> bool:
        """Whether the server has listed more than we read."""
        return FURTHER in self.unfit

    async def _send_leniently(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Drop malformed tools one by one: the SDK validates the list as a whole and would reject all."""
        raw = await self._send_raw(method, *args, **kwargs)
        if method == "tools/list" and isinstance(raw.get("tools"), list):
            raw["tools"] = [tool for tool in raw["tools"] if self._has_room(tool) and self._is_fit(tool)]
        return raw

    def _has_room(self, tool: Any) -> bool:
        if self.is_full:
            return False
        self._listed += 1
        self._listed_chars += len(json.dumps(tool))
        if self._listed <= MAX_LISTED and self._listed_chars <= MAX_LISTED_CHARS:
            return True
        self.unfit[FURTHER] = f"{MAX_LISTED} tools of a server are looked at, {MAX_LISTED_CHARS} characters of them"
        return False

    def _is_fit(self, tool: Any) -> bool:
        try:
            Tool.model_validate(tool, by_name=False)
            if tool["inputSchema"].get("type") != "object":
                raise ValueError("its `inputSchema` is not of type object")  # noqa: TRY301 - reported like the others
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        except ValueError as error:
            why = str(error)
        else:
            return True
        name = tool.get("name") if isinstance(tool, dict) else None
        self.unfit[one_line(str(name or "(no name)"), limit_chars=100)] = f"it is in no valid form: {why}"
        return False

    async def dispatch_input_request(
        self,
        ctx: ClientRequestContext,  # noqa: ARG002 - the SDK's signature
        request: InputRequest,
    ) -> InputResponse | ErrorData:
        """Sampling, elicitation and roots are not offered: a server can neither spend tokens nor ask the user."""
        return ErrorData(code=METHOD_NOT_FOUND, message=f"{request.method} is not offered by this client")

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        """Do nothing: validation would run the server's own schema, with its patterns and references, on the host."""


class SandboxTransport(ClientTransport):
    """Starts a stdio server over `Runtime.channel`: no engine client, full duplex, one limited line per message."""

    def __init__(self, runtime: Runtime, command: Command) -> None:
        self._runtime = runtime
        self._command = command
        self.process: ServerProcess | None = None
        """The server of the last connection."""
        self.on_words: Callable[[str], None] | None = None
        """Called on the loop with the next server's start-up output, until this is None."""

    def __repr__(self) -> str:
        return f"<SandboxTransport({self._command.argv[0]!r})>"

    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        """Start the server and yield a session that is not initialised; ends the server afterwards.

        Raises:
            MCPConnectionError: it cannot be started.
            SandboxUnavailable: the sandbox cannot serve.
        """
        session_class = transport_options.session_class if transport_options else GuardedSession
        self.process = process = await _unless_cancelled(self._runtime, self._command)
        try:
            process.on_words = self._hear
            process.watch()
            async with session_class(process.inbox, process.outbox, **session_kwargs) as session:
                yield session
        finally:
            await asyncio.shield(detach(process.aclose()))

    @contextlib.contextmanager
    def looked_after(self) -> Iterator[None]:
        """During a request, check now and then that the server runs.

        A child of a dead server may hold its streams open.
        """
        process, loop = self.process, asyncio.get_running_loop()
        if process is None:
            yield
            return

        timers: list[asyncio.TimerHandle] = []

        def look() -> None:
            detach(process.notice_exit())
            timers[:] = [loop.call_later(LOOK_EVERY_S, look)]

        timers.append(loop.call_later(LOOK_EVERY_S, look))
        try:
            yield
        finally:
            timers[0].cancel()

    def _hear(self, words: str) -> None:
        if self.on_words is not None:
            self.on_words(words)

    async def epitaph(self) -> str | None:
        """How the server ended, with its last output; None while it runs."""
        process = self.process
        if process is None or not process.is_over:
            return None
        if process.fault is None:
            await asyncio.get_running_loop().run_in_executor(None, process.learn_exit_code)
        return process.epitaph()


async def _unless_cancelled(runtime: Runtime, command: Command) -> ServerProcess:
    """Start the process; on cancellation, end it as soon as it has started."""
    loop = asyncio.get_running_loop()
    starting = loop.run_in_executor(None, ServerProcess, runtime, command)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        detach(_end_late(starting))
        raise


async def _end_late(starting: asyncio.Future[ServerProcess]) -> None:
    process = await starting
    process.watch()
    await process.aclose()


TELLS_PROGRESS = {"npx": {"npm_config_loglevel": "http"}}
"""Environment that makes an installer report progress: without a terminal npm downloads silently."""


def transport_for(server: ServerConfig, *, sandbox: Runtime | None, host: Callable[[], Runtime]) -> ClientTransport:
    """Create the transport; this starts nothing."""
    if server.command is None:
        return remote_transport(server, sandbox if server.runs_in == "sandbox" else None)
    place = host() if server.runs_in == "host" or sandbox is None else sandbox
    env = {**TELLS_PROGRESS.get(PurePosixPath(server.command).name, {}), **server.env}
    return SandboxTransport(place, Command([server.command, *server.args], env, server.cwd, server.user))
