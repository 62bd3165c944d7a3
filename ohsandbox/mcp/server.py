"""One server through its life: started, listed, called, restarted, switched off."""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import OhsandboxError, SandboxUnavailable
from ohsandbox.mcp.errors import MCPConnectionError, MCPServerGoneError, MCPToolWithheldError
from ohsandbox.mcp.listed import MAX_TOOLS, ListedTool, UnusableToolError, fingerprint_of, listed_tool
from ohsandbox.mcp.loop import detach
from ohsandbox.mcp.observation import MCPToolObservation, observe
from ohsandbox.mcp.pins import MAX_PINNED
from ohsandbox.mcp.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mcp_types import Tool

    from ohsandbox.mcp.client import MCPClient
    from ohsandbox.mcp.config import Resolved
    from ohsandbox.mcp.pins import Pins

MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0
"""Restarts further back are forgiven: an agent that kills everything once an hour keeps its servers."""

BACK_OFF_S = (0.0, 1.0, 5.0)
"""Before each restart; the first is usually no fault of the server's."""


class ServerState(StrEnum):
    """Where a server is in its life."""

    WAITING = "not started"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    """It is started again when a tool of it is called."""
    FAILED = "failed"
    """It never came up."""
    OFF = "switched off"
    DISABLED = "disabled"
    CLOSED = "closed"


class ServerStatus(NamedTuple):
    """A server for a person's eyes."""

    name: str
    state: ServerState
    reason: str
    """Why it is not ready; empty where it is."""
    where: str
    """`sandbox` or `host`."""
    tools: tuple[str, ...]
    """By the server's names."""
    withheld: dict[str, str]
    """Tools that changed since they were first seen, and how to approve them."""
    refused: dict[str, str]
    """Tools that cannot be offered, and why."""
    restarts: int


class MCPEvent(NamedTuple):
    """Something that a person should see."""

    server: str
    kind: str
    """ready, failed, ended, restarted, off, tools_changed, withheld, refused, log, progress or status."""
    message: str


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
    ) -> None:
        """Prepare. `connect(on_tools_changed=..., on_log=...)` makes a client that is not open yet."""
        self.name = name
        self.config = resolved.config
        self._resolved = resolved
        self._connect = connect
        self._pins = pins
        self._pinned_as = f"{name}@{resolved.config.identity}"
        self._said_at = 0.0
        self._on_event = on_event
        self._client: MCPClient | None = None
        self._turn = asyncio.Lock()
        self._restarts: list[float] = []
        self._relisting: set[asyncio.Task[None]] = set()
        self.state = ServerState.DISABLED if self.config.disabled else ServerState.WAITING
        self.reason = "It is disabled in the configuration." if self.config.disabled else ""
        self.tools: dict[str, ListedTool] = {}
        self._withheld: dict[str, ListedTool] = {}
        self._refused: dict[str, str] = {}

    def status(self) -> ServerStatus:
        """The server now."""
        return ServerStatus(
            self.name, self.state, self.reason, self.config.runs_in, tuple(self.tools),
            {tool: _how_to_approve(self.name, tool) for tool in self._withheld}, dict(self._refused),
            len(self._restarts),
        )  # fmt: skip

    # --- start and end ------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring it up and list its tools; a failure is kept as state and reason, not raised."""
        async with self._turn:
            if self.state is not ServerState.WAITING:
                return
            try:
                await self._bring_up()
            except Exception as error:  # noqa: BLE001 - whatever one server does, the others go on
                known = isinstance(error, OhsandboxError)
                why = str(error) if known else f"MCP server {self.name!r}: {type(error).__name__}: {error}"
                self._set(ServerState.FAILED, self._resolved.masked(why))
                self._tell("failed", why)
                return
            names = ", ".join(tool.name for tool in self.offered())
            self._tell("ready", f"{len(self.offered())} tools: {one_line(names, limit_chars=1000)}")

    async def _bring_up(self) -> None:
        self._set(ServerState.STARTING, "It is starting.")
        client = self._connect(on_tools_changed=self._relist_soon, on_log=self._take_log, on_words=self._take_words)
        try:
            await client.open()
            self._take_tools(await client.fetch_tools(), client.unfit)
        except BaseException as error:  # noqa: BLE001 - raised again below, also when it is a cancellation
            self._set(ServerState.ENDED, "It was stopped while it started.")
            await asyncio.shield(detach(client.shut()))
            raise self._masked(error) from None
        self._client = client
        self._set(ServerState.READY, "")

    async def close(self) -> None:
        """End it; calls in flight fail. Twice is fine."""
        client, self._client = self._client, None
        self._set(ServerState.CLOSED, "It was closed.")
        if client is not None:
            await asyncio.shield(detach(client.shut()))

    def _set(self, state: ServerState, reason: str) -> None:
        if self.state is not ServerState.CLOSED:
            self.state, self.reason = state, reason

    # --- calls ------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Any = None) -> MCPToolObservation:
        """Call a tool, bringing the server up again where it ended.

        Raises:
            MCPError: see `ohsandbox.mcp.errors`.
            SandboxUnavailable: the sandbox is gone.
        """
        client = await self._ready()
        self._check_offered(tool)
        try:
            result = await client.call(tool, arguments, on_progress=on_progress)
        except (MCPServerGoneError, MCPConnectionError) as error:
            raise type(error)(f"{self._masked(error)} {self._note_end(client, error)}") from None
        except OhsandboxError as error:
            raise self._masked(error) from None
        return observe(self.name, tool, result, mask=self._resolved.masked)

    def offered(self) -> list[ListedTool]:
        """The tools that may be called now, in the server's order."""
        if self.state is ServerState.OFF:
            return []
        self._look_for_approvals()
        return [tool for name, tool in self.tools.items() if name not in self._withheld]

    def _look_for_approvals(self) -> None:
        """What a person approved meanwhile, maybe in another process, is withheld no longer."""
        if not self._withheld:
            return
        self._pins.reload()
        for tool, now in list(self._withheld.items()):
            if self._pins.get(self._pinned_as, tool) == now.fingerprint:
                self.tools[tool] = self._withheld.pop(tool)

    def _check_offered(self, tool: str) -> None:
        self._look_for_approvals()
        if tool in self._withheld:
            raise MCPToolWithheldError(
                f"Tool {tool!r} of MCP server {self.name!r} has changed its description or arguments since it was "
                f"first seen, so it is not called. {_how_to_approve(self.name, tool)} Do without it."
            )
        if tool not in self.tools:
            raise MCPToolWithheldError(f"MCP server {self.name!r} no longer offers a tool {tool!r}. Do without it.")

    def _note_end(self, client: MCPClient, error: OhsandboxError) -> str:
        """Remember that the server ended; what follows, in a sentence."""
        if self._client is client:
            self._client = None
            self._set(ServerState.ENDED, str(error))
            self._tell("ended", str(error))
            detach(client.shut())
        if self.state is ServerState.CLOSED:
            return "It was closed."
        return self._what_follows()

    async def _ready(self) -> MCPClient:
        """The open client; brings the server up again.

        Raises:
            MCPServerGoneError: it cannot be brought up, or is switched off.
        """
        if self.state is ServerState.WAITING:
            await self.start()
        async with self._turn:
            if self._client is not None and not self._client.is_over:
                return self._client
            if self._client is not None:
                self._note_end(self._client, MCPServerGoneError(await self._client.how_it_ended()))
            if self.state is not ServerState.ENDED:
                raise MCPServerGoneError(f"MCP server {self.name!r} is {self.state.value}. {self.reason}")
            await self._restart()
            assert self._client is not None  # noqa: S101 - set by _bring_up
            return self._client

    async def _restart(self) -> None:
        number = self._spent()
        if number >= MAX_RESTARTS:
            self._switch_off()
            raise MCPServerGoneError(f"MCP server {self.name!r} is {self.state.value}. {self.reason}")
        self._restarts.append(time.monotonic())
        await asyncio.sleep(BACK_OFF_S[number])
        try:
            await self._bring_up()
        except SandboxUnavailable:
            raise
        except OhsandboxError as error:
            self._set(ServerState.ENDED, str(error))
            follows = self._what_follows()
            raise MCPServerGoneError(
                f"MCP server {self.name!r} had ended and its restart failed: {error} {follows}"
            ) from None
        self._tell("restarted", f"restart {number + 1} of {MAX_RESTARTS}")

    def _what_follows(self) -> str:
        if self._spent() >= MAX_RESTARTS:
            self._switch_off()
            return f"It was restarted {MAX_RESTARTS} times already, so it is switched off. Do without it."
        return f"It is started again at the next call (restart {self._spent() + 1} of {MAX_RESTARTS})."

    def _spent(self) -> int:
        now = time.monotonic()
        self._restarts = [at for at in self._restarts if now - at < RESTART_WINDOW_S]
        return len(self._restarts)

    def _switch_off(self) -> None:
        self._set(ServerState.OFF, f"It ended after {MAX_RESTARTS} restarts. The last time: {self.reason}")
        self._tell("off", self.reason)

    # --- tools ------------------------------------------------------------------------------------

    def _relist_soon(self) -> None:
        """The server says that its tools changed. Many such notices are one list."""
        if self._client is not None and not self._relisting:
            task = asyncio.get_running_loop().create_task(self._relist(self._client))
            self._relisting.add(task)
            task.add_done_callback(self._relisting.discard)

    async def _relist(self, client: MCPClient) -> None:
        await asyncio.sleep(RELIST_PAUSE_S)
        self._relisting.clear()  # a notice from here on is about a later list
        before = set(self.tools)
        try:
            self._take_tools(await client.fetch_tools(), client.unfit)
        except OhsandboxError as error:
            self._tell("tools_changed", f"its new list of tools could not be had: {self._masked(error)}")
            return
        added, gone = sorted(set(self.tools) - before), sorted(before - set(self.tools))
        if added or gone:
            self._tell("tools_changed", f"new: {', '.join(added) or 'none'}; gone: {', '.join(gone) or 'none'}")

    def _take_tools(self, listed: Iterable[Tool], unfit: Mapping[str, str]) -> None:
        """Sort what the server lists into offered, withheld and refused; what is seen for the first time is pinned."""
        offered: dict[str, ListedTool] = {}
        withheld: dict[str, ListedTool] = {}
        refused = dict(unfit)
        for tool in listed:
            if not self.config.offers(tool.name):
                continue
            shown = one_line(tool.name, limit_chars=100)
            if tool.name in offered or len(offered) >= MAX_TOOLS:
                refused[shown] = f"more than {MAX_TOOLS} tools" if len(offered) >= MAX_TOOLS else "listed twice"
                continue
            try:
                made = listed_tool(self.name, tool)
            except UnusableToolError as error:
                refused[shown] = str(error)
                continue
            pinned = self._pins.get(self._pinned_as, tool.name)
            if pinned is None and not self._pins.has_room(self._pinned_as):
                refused[shown] = f"its server has listed {MAX_PINNED} others before"
                continue
            if pinned not in (None, fingerprint_of(tool)):
                withheld[tool.name] = made
                self._pins.note_change(
                    self._pinned_as, tool.name, fingerprint=made.fingerprint, description=made.description
                )
            offered[tool.name] = self.tools.get(tool.name, made) if tool.name in withheld else made
        self._announce(withheld, refused)
        self.tools, self._withheld, self._refused = offered, withheld, refused
        fresh = {name: tool.fingerprint for name, tool in offered.items() if name not in withheld}
        self._pins.update(self._pinned_as, fresh)

    def _announce(self, withheld: dict[str, ListedTool], refused: dict[str, str]) -> None:
        for tool in withheld.keys() - self._withheld.keys():
            self._tell("withheld", f"tool {tool!r} has changed since it was first seen and is not called. "
                       f"{_how_to_approve(self.name, tool)}")  # fmt: skip
        for tool, why in refused.items():
            if tool not in self._refused:
                self._tell("refused", f"tool {tool!r} is not offered: {why}")

    def approve(self, tool: str) -> bool:
        """Trust a withheld tool as it is now; False where none of that name is withheld."""
        changed = self._withheld.pop(tool, None)
        if changed is None:
            return False
        self.tools[tool] = changed
        self._pins.update(self._pinned_as, {tool: changed.fingerprint})
        return True

    # --- words --------------------------------------------------------------------------------------

    def _tell(self, kind: str, message: str) -> None:
        self._on_event(MCPEvent(self.name, kind, self._resolved.masked(message)))

    def _take_log(self, line: str) -> None:
        self._tell("log", line)

    def _take_words(self, line: str) -> None:
        """What it prints while it starts: the progress of a download, mostly."""
        now = time.monotonic()
        if now - self._said_at >= STATUS_PAUSE_S:
            self._said_at = now
            self._tell("status", line)

    def _masked(self, error: Any) -> Any:
        """The same error without the values of variables in its message."""
        if isinstance(error, OhsandboxError):
            error.args = (self._resolved.masked(str(error)),)
        return error


STATUS_PAUSE_S = 0.2
"""Faster than that nobody reads."""

RELIST_PAUSE_S = 0.05
"""A server that registers ten tools sends ten notices."""


def _how_to_approve(server: str, tool: str) -> str:
    return f"The user can approve it: `ohsandbox mcp approve {server} {tool}`."
