"""The life cycle of one server: start, list, call, restart, disable; and its status."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.mcp.content import MCPToolObservation, observe, visible_line
from ohsandbox.mcp.errors import MCPConnectionError, MCPServerGoneError, MCPTimeoutError
from ohsandbox.mcp.loop import detach
from ohsandbox.mcp.tool_pinning import ToolFilter
from ohsandbox.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.mcp.client import MCPClient
    from ohsandbox.mcp.config import Resolved
    from ohsandbox.mcp.definition import ListedTool
    from ohsandbox.mcp.tool_pinning import Pins


class ServerState(StrEnum):
    """The state of a server."""

    WAITING = "not started"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    """The next call of one of its tools starts it again."""
    FAILED = "failed"
    """The server never became ready."""
    OFF = "switched off"
    DISABLED = "disabled"
    CLOSED = "closed"


class ServerStatus(NamedTuple):
    """The status of a server at one time."""

    name: str
    state: ServerState
    reason: str
    """Why the server is not ready; "" if it is."""
    where: str
    """`sandbox` or `host`."""
    tools: tuple[str, ...]
    """Names of the tools at the server."""
    withheld: dict[str, str]
    """Tools that have changed since they were first seen, and how to approve them."""
    refused: dict[str, str]
    """Tools that cannot be offered, and why."""
    restarts: int


class MCPEvent(NamedTuple):
    """An event to show to the user."""

    server: str
    kind: str
    """ready, late, failed, ended, restarted, off, tools_changed, withheld, refused, warning, log, progress or
    status."""
    message: str


_CANCEL_S = 2.0
"""Seconds for calls to handle their cancellation, which is usually immediate."""

MAX_RESTARTS = 3
_RESTART_WINDOW_S = 600.0
"""Earlier restarts do not count: an agent that kills all processes once an hour keeps its servers."""

BACK_OFF_S = (0.0, 1.0, 5.0)
"""Seconds before each restart; the first end is usually not the server's fault."""

_RELIST_PAUSE_S = 0.05
"""Seconds before the tools are listed again: a server that registers ten tools sends ten notifications."""

MAX_RELISTS = 20
_RELIST_WINDOW_S = 600.0
"""Further changes of tools in this time are ignored: the model is told each one, which costs its prompt cache."""

_STATUS_PAUSE_S = 0.2
"""Seconds between status updates for the user."""


MAX_PROGRESS = 50
"""Maximum number of progress reports that are kept for a tool's newest call, for a user who watches."""


class MCPServer:
    """One server. All coroutines run on the background loop."""

    def __init__(
        self,
        name: str,
        resolved: Resolved,
        *,
        connect: Callable[..., MCPClient],
        pins: Pins,
        on_event: Callable[[MCPEvent], None],
        advise: Callable[[], str] = str,
        limits: OutputLimits = DEFAULT_LIMITS,
    ) -> None:
        """Create it without starting anything. `connect(on_tools_changed=..., on_log=...)` returns a client, not open.

        advise: returns the likely cause of a failed start.
        """
        self.name, self.config, self._resolved = name, resolved.config, resolved
        self._connect, self._advise, self._on_event = connect, advise, on_event
        self._limits = limits
        self.filter = ToolFilter(name, resolved, pins, self._emit)
        self.progress: dict[str, tuple[str, ...]] = {}
        """Progress reports of the newest call of each tool, oldest first."""
        self._said_at = 0.0
        self._client: MCPClient | None = None
        self._turn = asyncio.Lock()
        self._restarts: list[float] = []
        self._relists: list[float] = []
        self._relist_is_due = False
        self._at_work: set[asyncio.Task[Any]] = set()
        self.state = ServerState.DISABLED if self.config.disabled else ServerState.WAITING
        self.reason = "It is disabled in the configuration." if self.config.disabled else ""

    def status(self) -> ServerStatus:
        """Return the present status."""
        state, reason, client = self.state, self.reason, self._client
        if state is ServerState.READY and client is not None and client.is_over:
            state, reason = ServerState.ENDED, "It ended while nothing was asked of it."
        return ServerStatus(
            self.name, state, reason, self.config.runs_in, tuple(self.filter.tools), self.filter.withheld,
            dict(self.filter.refused), len(self._restarts),
        )  # fmt: skip

    # --- start and end ------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the server and list its tools; a failure is not raised, but sets state and reason."""
        async with self._turn:
            if self.state is not ServerState.WAITING:
                return
            try:
                await self._start_client()
            except Exception as error:  # noqa: BLE001 - one server's failure does not affect the others
                is_known = isinstance(error, OhsandboxError)
                reason = str(error) if is_known else f"MCP server {self.name!r}: {type(error).__name__}: {error}"
                if isinstance(error, MCPTimeoutError | MCPServerGoneError):
                    reason = f"{reason} {self._advise()}".rstrip()
                self._enter(ServerState.FAILED, self._resolved.masked(reason), kind="failed")
                return
            names = ", ".join(tool.name for tool in self.offered())
            self._emit("ready", f"{counted(len(self.offered()), 'tool')}: {visible_line(names, limit_chars=1000)}")

    async def _start_client(self) -> None:
        self._enter(ServerState.STARTING, "It is starting.")
        client = self._connect(
            on_tools_changed=self._relist_soon, on_log=partial(self._emit, "log"), on_words=self._on_output
        )
        try:
            await client.open()
            self.filter.update(await client.fetch_tools(), client.unfit)
            self._require_open()
        except BaseException as error:  # noqa: BLE001 - re-raised below, also a cancellation
            self._enter(ServerState.ENDED, "It was stopped while it started.")
            await asyncio.shield(detach(client.force_close()))
            raise self._masked(error) from None
        self._client = client
        self._enter(ServerState.READY)

    def _require_open(self) -> None:
        if self.state is ServerState.CLOSED:
            raise MCPServerGoneError(f"MCP server {self.name!r} was closed while it started.")

    async def close(self) -> None:
        """End the server; cancel pending calls, which may be restarting it; idempotent."""
        client, self._client = self._client, None
        self._enter(ServerState.CLOSED, "It was closed.")
        for task in self._at_work:
            task.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=_CANCEL_S)
        if client is not None:
            await asyncio.shield(detach(client.force_close()))

    def _enter(self, state: ServerState, reason: str = "", *, kind: str = "") -> None:
        """Change the state, unless the server is closed; with kind, report the reason as an event."""
        if self.state is not ServerState.CLOSED:
            self.state, self.reason = state, reason
        if kind:
            self._emit(kind, reason)

    # --- calls ------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any]) -> MCPToolObservation:
        """Call a tool; if the server has ended, restart it first.

        Raises:
            MCPError: see `ohsandbox.mcp.errors`.
            SandboxUnavailable: the sandbox is gone.
        """
        self.progress.pop(tool, None)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        self._work(task)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            words = visible_line((message or "")[:1000], limit_chars=200)
            line = self._resolved.masked(f"{share} {words}".rstrip())
            self.progress[tool] = (*self.progress.get(tool, ())[1 - MAX_PROGRESS :], line)
            self._emit("progress", f"{tool}: {line}")

        client = await self._ready()
        self.filter.check(tool)
        try:
            result = await client.call(tool, arguments, on_progress=report)
        except (MCPServerGoneError, MCPConnectionError) as error:
            raise type(error)(f"{self._masked(error)} {self._note_end(client, error)}") from None
        except OhsandboxError as error:
            raise self._masked(error) from None
        return observe(self.name, tool, result, mask=self._resolved.masked, limits=self._limits)

    def offered(self) -> list[ListedTool]:
        """Return the tools that may be called now, in the server's order."""
        return [] if self.state is ServerState.OFF else self.filter.now()

    def _work(self, task: asyncio.Task[Any]) -> None:
        """Register a task that `close` cancels."""
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    def _note_end(self, client: MCPClient, error: OhsandboxError) -> str:
        """Record that the server has ended; return what follows from it, as a sentence."""
        if self._client is client:
            self._client = None
            self._enter(ServerState.ENDED, str(error), kind="ended")
            detach(client.force_close())
        return "It was closed." if self.state is ServerState.CLOSED else self._restart_or_give_up()

    async def _ready(self) -> MCPClient:
        """Return an open client; restart the server if necessary.

        Raises:
            MCPServerGoneError: it cannot be restarted, is switched off, or is closed.
            SandboxUnavailable: the sandbox is gone.
        """
        if self.state is ServerState.WAITING:
            await self.start()
        async with self._turn:
            if self._client is not None and not self._client.is_over:
                return self._client
            if self._client is not None:
                self._note_end(self._client, MCPServerGoneError(await self._client.how_it_ended()))
            if self.state is ServerState.ENDED:
                self._restart_or_give_up()  # this may disable the server
            if self.state is not ServerState.ENDED:
                raise MCPServerGoneError(f"MCP server {self.name!r} is {self.state.value}. {self.reason}")
            await self._restart()
            assert self._client is not None  # noqa: S101 - set by _start_client
            return self._client

    async def _restart(self) -> None:
        number = len(self._restarts)
        self._restarts.append(time.monotonic())
        await asyncio.sleep(BACK_OFF_S[number])
        try:
            await self._start_client()
        except SandboxUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - any error here is the server's
            self._enter(ServerState.ENDED, str(error))
            fact = f"MCP server {self.name!r} had ended and its restart failed: {error}"
            raise MCPServerGoneError(f"{fact} {self._restart_or_give_up()}") from None
        self._emit("restarted", f"restart {number + 1} of {MAX_RESTARTS}")

    def _restart_or_give_up(self) -> str:
        """Return what follows from the server's end, as a sentence; switch it off after too many restarts."""
        now = time.monotonic()
        self._restarts = [time_s for time_s in self._restarts if now - time_s < _RESTART_WINDOW_S]
        if len(self._restarts) < MAX_RESTARTS:
            return f"It is started again at the next call (restart {len(self._restarts) + 1} of {MAX_RESTARTS})."
        last = f"It ended after {MAX_RESTARTS} restarts. The last time: {self.reason}"
        self._enter(ServerState.OFF, last, kind="off")
        return f"It was restarted {MAX_RESTARTS} times already, so it is switched off. Do without it."

    # --- tools ------------------------------------------------------------------------------------

    def _relist_soon(self) -> None:
        """Handle `tools/list_changed`; many notifications cause one `tools/list`."""
        if self._client is None or self._relist_is_due:
            return
        now = time.monotonic()
        self._relists = [time_s for time_s in self._relists if now - time_s < _RELIST_WINDOW_S]
        if len(self._relists) < MAX_RELISTS:
            self._relists.append(now)
            self._relist_is_due = True
            self._work(asyncio.get_running_loop().create_task(self._relist(self._client)))

    async def _relist(self, client: MCPClient) -> None:
        await asyncio.sleep(_RELIST_PAUSE_S)
        self._relist_is_due = False  # a notification from here on needs another list
        tools_before = set(self.filter.tools)
        try:
            self.filter.update(await client.fetch_tools(), client.unfit)
        except OhsandboxError as error:
            self._emit("tools_changed", f"its new list of tools could not be fetched: {self._masked(error)}")
            return
        tools_now = set(self.filter.tools)
        if tools_now != tools_before:
            added, removed = sorted(tools_now - tools_before), sorted(tools_before - tools_now)
            news = f"new: {', '.join(added) or 'none'}; gone: {', '.join(removed) or 'none'}"
            self._emit("tools_changed", visible_line(news, limit_chars=1000))
        if len(self._relists) == MAX_RELISTS and not self._relist_is_due:
            self._emit("tools_changed", f"they changed {MAX_RELISTS} times in {_RELIST_WINDOW_S / 60:g} minutes; "
                       "further changes are not looked at for as long")  # fmt: skip

    # --- messages --------------------------------------------------------------------------------------

    def _emit(self, kind: str, message: str) -> None:
        self._on_event(MCPEvent(self.name, kind, self._resolved.masked(message)))

    def _on_output(self, line: str) -> None:
        """Report start-up output, usually the progress of a download."""
        now = time.monotonic()
        if now - self._said_at >= _STATUS_PAUSE_S:
            self._said_at = now
            self._emit("status", line)

    def _masked(self, error: Any) -> Any:
        """Return the same error without the values of variables in its message."""
        if isinstance(error, OhsandboxError):
            error.args, error.remedy = (self._resolved.masked(str(error)),), ""
        return error
