"""`MCPClient`: FastMCP's client with a bridge for synchronous callers, timeouts, limits and our error classes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastmcp import Client
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import MCPError as SdkError
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolResult,
    Implementation,
    ServerNotification,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from ohsandbox.errors import OhsandboxError
from ohsandbox.mcp.config import Timeouts
from ohsandbox.mcp.content import visible_line
from ohsandbox.mcp.errors import (
    MCPConnectionError,
    MCPError,
    MCPProtocolError,
    MCPRefusedError,
    MCPServerGoneError,
    MCPTimeoutError,
)
from ohsandbox.mcp.loop import LOOP, detach
from ohsandbox.mcp.process import SandboxTransport
from ohsandbox.mcp.streams import GuardedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fastmcp.client.logging import LogMessage
    from fastmcp.client.progress import ProgressHandler

T = TypeVar("T")

_MAX_SAID_CHARS = 2000
"""Maximum length of a server's own error message."""

INITIALIZE = "initialize"

MAX_START_S = 900.0
"""Time limit for a server that keeps printing and does not answer: enough to download a browser on a slow line."""

_MARGIN_S = 10.0
"""A synchronous caller waits this much longer than the protocol's timeout, which also cancels the request."""

CLOSE_S = 8.0
"""Time limit for closing: two seconds of grace, the kill and a check for survivors, times three for a busy machine."""

for _name in ("mcp", "client"):  # the second is the SDK's session; otherwise `lastResort` prints invalid output
    logging.getLogger(_name).addHandler(logging.NullHandler())


_CLOSED_WORDS = frozenset({"Connection closed", "SSE stream ended without a response"})
"""Messages of the SDK's errors for a connection that has ended."""


class MCPClient(Client[ClientTransport]):
    """A client of one server. Supports `async with`, and `with` for synchronous code.

    All work runs on the background loop of the process; the synchronous methods are thread-safe.
    """

    def __init__(
        self,
        transport: Any,
        *,
        server: str = "mcp",
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - an immutable tuple
        on_tools_changed: Callable[[], None] | None = None,
        on_log: Callable[[str], None] | None = None,
        on_words: Callable[[str], None] | None = None,
    ) -> None:
        """Create the client; this starts nothing.

        Args:
            transport: a FastMCP transport, or anything that FastMCP converts to one.
            server: the name for messages.
            timeouts: for the protocol's phases.
            on_tools_changed: called on the loop when the server sends `tools/list_changed`.
            on_log: called on the loop with each log line of the server, without control characters.
            on_words: called on the loop with each line that a stdio server prints while it starts.
        """
        self.server = server
        self.timeouts = timeouts
        self._on_tools_changed = on_tools_changed
        self._on_log = on_log
        self._on_words = on_words
        super().__init__(
            transport,
            name=server,
            mode="legacy",  # initialize: every server supports it and sends list_changed unasked
            init_timeout=0,
            auto_initialize=False,
            log_handler=self._on_log_message,
            message_handler=self._on_notification,
            client_info=Implementation(name="ohsandbox", version=version("ohsandbox")),
        )
        self._transport_options = TransportOptions(session_class=GuardedSession)
        self._disconnect_timeout = CLOSE_S
        self.tools: tuple[Tool, ...] = ()
        """The tools of the server's last list."""
        self._pid = os.getpid()

    # --- for synchronous callers --------------------------------------------------------------

    def call_async_from_sync(
        self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout: float | None = None
    ) -> T:
        """Run `fn(*args)` on the background loop and return its result; Ctrl-C cancels it there.

        Raises:
            MCPTimeoutError: `fn` did not finish within timeout seconds.
            MCPServerGoneError: this process is a forked child; the parent owns the connection.
        """
        if os.getpid() != self._pid:
            raise MCPServerGoneError(f"MCP server {self.server!r} belongs to the parent process. Start one here.")
        try:
            return LOOP.call(fn, *args, timeout_s=timeout)
        except MCPError:
            raise
        except TimeoutError:
            raise self._late("answer", timeout or 0) from None

    def connect(self) -> Self:
        """Start or reach the server, initialize, and list its tools.

        Raises:
            MCPConnectionError, MCPServerGoneError, MCPTimeoutError, MCPProtocolError, MCPRefusedError: see `errors`.
            SandboxUnavailable: the sandbox is gone.
        """
        seconds = max(MAX_START_S, self.timeouts.initialize_s) + self.timeouts.list_s + _MARGIN_S
        return self.call_async_from_sync(self.__aenter__, timeout=seconds)

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.sync_close()

    def sync_close(self) -> None:
        """Close the connection, and end the server and its children if it runs in the sandbox; idempotent."""
        if os.getpid() == self._pid:
            LOOP.call(self.force_close, timeout_s=2 * CLOSE_S + _MARGIN_S)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    # --- on the loop --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, initialize, and list the tools, if the server has any.

        Raises:
            MCPError, SandboxUnavailable: as for `connect`.
        """
        await self.open()
        try:
            await self.fetch_tools()
        except BaseException as error:
            if not isinstance(error, MCPRefusedError) or error.code != METHOD_NOT_FOUND:
                await asyncio.shield(detach(self.force_close()))
                raise
        return self

    async def open(self) -> None:
        """Connect and initialize.

        Raises:
            MCPError, SandboxUnavailable: as for `connect`.
        """
        try:
            await self._open()
        except Exception as error:
            explained = await self._explained(error, doing=INITIALIZE, seconds=self.timeouts.initialize_s)
            await self.force_close()
            raise explained from error
        except BaseException:
            await asyncio.shield(detach(self.force_close()))
            raise

    async def _open(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self.timeouts.initialize_s
        at_most = loop.time() + max(MAX_START_S, seconds)
        async with asyncio.timeout(seconds) as limit:

            def on_line(words: str) -> None:
                if not limit.expired():
                    limit.reschedule(min(loop.time() + seconds, at_most))
                if self._on_words is not None:
                    self._on_words(words)

            transport = self.transport if isinstance(self.transport, SandboxTransport) else None
            if transport is not None:
                transport.on_words = on_line
            try:
                await super().__aenter__()  # type: ignore[no-untyped-call]
                await self._await_with_session_monitoring(self._negotiate(0))
            except SdkError as error:
                if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                    raise
                self.mode = "auto"  # a server of the protocol version without `initialize` (2026-07-28)
                await self._await_with_session_monitoring(self._negotiate(0))
            finally:
                if transport is not None and transport.process is not None:
                    transport.process.on_words = None

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended or is not open."""
        if isinstance(self.transport, SandboxTransport):
            return self.transport.process is None or self.transport.process.is_over
        return not self.is_connected()

    async def how_it_ended(self) -> str:
        """Return how the connection ended, in one or more sentences."""
        ended = await self.transport.exit_description() if isinstance(self.transport, SandboxTransport) else None
        return f"MCP server {self.server!r} ended while nothing was asked of it. {ended or ''}".rstrip()

    async def force_close(self) -> None:
        """Close the connection even if other callers still use it; ignore connection errors."""
        with contextlib.suppress(Exception):
            await self.close()  # type: ignore[no-untyped-call]

    async def fetch_tools(self) -> tuple[Tool, ...]:
        """Fetch all pages of `tools/list`.

        Raises:
            MCPError, SandboxUnavailable: as for `connect`.
        """
        seconds = self.timeouts.list_s
        try:
            async with asyncio.timeout(seconds):
                self.tools = await self._await_with_session_monitoring(self._guarded.list_all_tools())
        except Exception as error:
            raise await self._explained(error, doing="list its tools", seconds=seconds) from error
        return self.tools

    @property
    def unfit(self) -> dict[str, str]:
        """Tools of the last list that `tools` omits, with the reason: invalid, or over the limit."""
        return dict(self._guarded.unfit)

    @property
    def _guarded(self) -> GuardedSession:
        assert isinstance(self.session, GuardedSession)  # noqa: S101 - set in __init__
        return self.session

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float | None = None,
        on_progress: ProgressHandler | None = None,
    ) -> CallToolResult:
        """Call a tool; a result with `is_error` is not an exception. On timeout the server gets a cancellation.

        Raises:
            MCPError, SandboxUnavailable: as for `connect`.
        """
        seconds = timeout_s or self.timeouts.call_s
        try:
            calling = self.session.call_tool(tool, arguments, seconds, on_progress)
            if isinstance(self.transport, SandboxTransport):  # when it ends, so does every call: no task watches it
                with self.transport.checked():
                    return await calling
            return await self._await_with_session_monitoring(calling)
        except Exception as error:
            raise await self._explained(error, doing=f"answer the call of {tool!r}", seconds=seconds) from error

    # --- notifications from the server ----------------------------------------------------------

    async def _on_notification(self, message: ServerNotification | Exception) -> None:
        if isinstance(message, ToolListChangedNotification) and self._on_tools_changed is not None:
            self._on_tools_changed()

    async def _on_log_message(self, message: LogMessage) -> None:
        if self._on_log is not None:
            message_text = f"{message.level}: {message.data}"[
                : 2 * _MAX_SAID_CHARS
            ]  # cleaning 16 MB takes half a second
            self._on_log(visible_line(message_text, limit_chars=_MAX_SAID_CHARS))

    # --- errors -----------------------------------------------------------------------------------

    def _late(self, doing: str, seconds: float) -> MCPTimeoutError:
        if doing == INITIALIZE:
            problem = (
                f"printed nothing for {seconds:g} s and did not answer. If it downloads first, set its `timeout` "
                "(seconds) higher."
            )
        else:
            problem = f"did not {doing} within {seconds:g} s. Try something smaller, or have its `timeout` raised."
        return MCPTimeoutError(f"MCP server {self.server!r} {problem}")

    async def _explained(self, error: Exception, *, doing: str, seconds: float) -> OhsandboxError:
        """Return the error of our classes that corresponds to an error."""
        cause = _cause(error)
        if isinstance(cause, MCPConnectionError):
            return MCPConnectionError(f"MCP server {self.server!r} did not start. {cause}")
        if isinstance(cause, OhsandboxError):
            return cause
        if isinstance(cause, TimeoutError) or (isinstance(cause, SdkError) and cause.code == REQUEST_TIMEOUT):
            return self._late(doing, seconds)
        ended = await self.transport.exit_description() if isinstance(self.transport, SandboxTransport) else None
        if ended is not None:
            when = "while it started" if doing == INITIALIZE else f"before it could {doing}"
            return MCPServerGoneError(f"MCP server {self.server!r} ended {when}. {ended}")
        return self._from_protocol(cause, f"MCP server {self.server!r} did not {doing}")

    def _from_protocol(self, cause: BaseException, fact: str) -> OhsandboxError:
        message = visible_line(str(cause) or type(cause).__name__, limit_chars=_MAX_SAID_CHARS)
        if isinstance(cause, ValidationError):
            fault = cause.errors(include_url=False, include_input=False)[0]
            location = ".".join(str(part) for part in fault["loc"])
            return MCPProtocolError(f"{fact} in the protocol's form: {location}: {fault['msg']}.")
        if not isinstance(cause, SdkError):
            return MCPConnectionError(f"{fact}: {message}.")
        if cause.code == CONNECTION_CLOSED and str(cause) in _CLOSED_WORDS:
            trouble = visible_line(getattr(self.transport, "trouble", ""), limit_chars=_MAX_SAID_CHARS)
            return MCPServerGoneError(f"{fact}: {(trouble or 'The connection was closed').rstrip('.')}.")
        if cause.code == PARSE_ERROR:
            return MCPProtocolError(f"{fact} in the protocol's form: {message}.")
        return MCPRefusedError(f"{fact}: {message} (code {cause.code}).", code=cause.code)


def _cause(error: BaseException) -> BaseException:
    """Return the original error inside of FastMCP's and anyio's wrappers."""
    seen_ids: set[int] = set()
    while id(error) not in seen_ids:
        seen_ids.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, RuntimeError) and error.__cause__ is not None:
            error = error.__cause__
    return error
