"""The MCP servers of one agent: they are started together; their tools are collected, called and closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from ohsandbox import host_programs
from ohsandbox.arguments import expect_path
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import UsageError
from ohsandbox.mcp.config import MCPConfig, Resolved, ServerConfig, check_server_names, resolve_variables
from ohsandbox.mcp.definition import MCPToolDefinition, ServerTool, names_for_model, prefixed
from ohsandbox.mcp.errors import MCPConfigError, MCPError, MCPServerGoneError
from ohsandbox.mcp.loop import LOOP, await_detached
from ohsandbox.mcp.server import MCPEvent, MCPServer, ServerState, ServerStatus
from ohsandbox.mcp.tool_pinning import Pins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastmcp.client.transports import ClientTransport

    from ohsandbox.mcp.client import MCPClient
    from ohsandbox.mcp.content import MCPToolObservation
    from ohsandbox.mcp.definition import MCPAction
    from ohsandbox.runtime.base import Runtime


CLOSE_S = 15.0
"""Time limit in seconds for all servers together; each has two to exit by itself."""

PASSING = frozenset({"log", "progress", "status"})
"""Kinds of events that only inform a user who watches."""

_INSTALLERS = frozenset({"bash", "bunx", "deno", "npm", "npx", "pip", "pipx", "pnpm", "sh", "uv", "uvx", "yarn"})
"""Programs that usually download a server and start it."""


_TELLS_PROGRESS = {"npx": {"npm_config_loglevel": "http"}}
"""Variables that make an installer report its progress: without a terminal npm downloads silently."""


class MCPServers:
    """The servers of a configuration. Thread-safe."""

    def __init__(
        self,
        config: MCPConfig,
        runtime: Runtime | None,
        *,
        variables: Mapping[str, str] | None = None,
        reserved: Collection[str] = (),
        pins: Pins | None = None,
        on_event: Callable[[MCPEvent], None] | None = None,
        limits: OutputLimits = DEFAULT_LIMITS,
        foreign: Collection[str] = (),
    ) -> None:
        """Resolve the configuration, without starting anything.

        Args:
            config: the servers.
            runtime: runs the commands; None if no server needs a sandbox.
            variables: values for `${VAR}`, usually os.environ; a server gets only the values that it names.
            reserved: names of native tools, which servers' tools do not get.
            pins: fingerprints of tools seen earlier; None trusts each tool at first sight.
            on_event: called in another thread with each event for the user; must not block.
            limits: limits of a result for the model.
            foreign: names of servers that a repository defines: their variables are not resolved, and their tools are
                always named `server__tool`.

        Raises:
            MCPConfigError: a server's name is refused, a variable is not set, a server needs a sandbox and there is
                none, or there are servers and the library fastmcp is not installed.
        """
        require_library(config)
        check_server_names(config.servers)
        self.config, self._limits = config, limits
        self._runtime = runtime
        self._reserved, self._foreign = tuple(reserved), frozenset(foreign)
        self._on_event = on_event
        self._guard = threading.Lock()
        self._host: Runtime | None = None
        self._started: concurrent.futures.Future[None] | None = None
        self._starting: asyncio.Task[Any] | None = None
        self._closed = False
        self._stopped: set[str] = set()
        self._pid = os.getpid()
        self._names: dict[str, ServerTool] = {}
        self._given: dict[ServerTool, str] = {}
        self._in_flight: dict[ServerTool, set[concurrent.futures.Future[MCPToolObservation]]] = {}
        self.version = 0
        """Increases whenever the tools may have changed."""
        pins = pins or Pins()
        all_resolved = self._resolve(variables or {})
        secrets = {name: value for resolved in all_resolved.values() for name, value in resolved.secrets.items()}
        # of all servers: one can read another's environment if both run as the same user
        self._servers = {
            name: MCPServer(
                name, Resolved(resolved.config, secrets), connect=partial(self._client, name, resolved.config),
                pins=pins, on_event=self._on_server_event, advise=partial(self._likely_cause, resolved.config),
                limits=limits,
            )
            for name, resolved in all_resolved.items()
        }  # fmt: skip

    def _resolve(self, variables: Mapping[str, str]) -> dict[str, Resolved]:
        """Return each server with its variables resolved, by name."""
        resolved_by_name: dict[str, Resolved] = {}
        for name, entry in self.config.servers.items():
            if entry.runs_in == "sandbox" and self._runtime is None and not entry.disabled:
                raise MCPConfigError(
                    f"MCP server {name!r} runs in the sandbox, and no sandbox was given. "
                    'Use a runtime, or write `"where": "host"` to run or reach it from this machine.'
                )
            is_literal = entry.disabled or name in self._foreign
            resolved_by_name[name] = Resolved(entry, {}) if is_literal else resolve_variables(name, entry, variables)
        return resolved_by_name

    def _likely_cause(self, server: ServerConfig) -> str:
        """Return the likely cause of a failed start; "" if unknown."""
        program = PurePosixPath(server.command or "").name
        if program not in _INSTALLERS or server.runs_in == "host" or self._runtime is None:
            return ""
        has_none = self._runtime.describe().get("network", "").startswith("none")
        return "The sandbox has no network: what is downloaded first needs `--allow packages`." if has_none else ""

    def _client(self, name: str, server: ServerConfig, **hooks: Any) -> MCPClient:
        from ohsandbox.mcp.client import MCPClient  # noqa: PLC0415 - fastmcp: one second, only with a server
        from ohsandbox.mcp.process import Command, SandboxTransport  # noqa: PLC0415 - fastmcp: one second, only with a server
        from ohsandbox.mcp.remote import remote_transport  # noqa: PLC0415 - fastmcp: one second, only with a server

        transport: ClientTransport
        if server.command is None:
            transport = remote_transport(server, self._runtime if server.runs_in == "sandbox" else None)
        else:
            runtime = (
                self._runtime if server.runs_in == "sandbox" and self._runtime is not None else self._host_runtime()
            )
            env = {**_TELLS_PROGRESS.get(PurePosixPath(server.command).name, {}), **server.env}
            transport = SandboxTransport(runtime, Command([server.command, *server.args], env, server.cwd, server.user))
        return MCPClient(transport, server=name, timeouts=server.timeouts, **hooks)

    def _host_runtime(self) -> Runtime:
        """Return the runtime for servers on the host, with a reduced environment and without confinement."""
        from ohsandbox.runtime.local import CLIRuntime  # noqa: PLC0415 - few servers run on the host

        with self._guard:
            if self._host is None:
                path = {"PATH": host_programs.trusted_path()}  # a name in the settings is no file of a clone
                self._host = CLIRuntime(Path.cwd(), env=path, bubblewrap=False, quiet=True).start()
            return self._host

    # --- life cycle ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start all servers in the background; the sandbox must be running. Idempotent."""
        with self._guard:
            if self._started is None and not self._closed:
                self._started = LOOP.submit(self._start_all)
        return self

    async def _start_all(self) -> None:
        self._starting = asyncio.current_task()
        # slow, so it runs in a thread that nobody waits for
        await asyncio.get_running_loop().run_in_executor(None, import_module, "ohsandbox.mcp.client")
        await asyncio.gather(*(server.start() for server in self._servers.values()))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all servers are ready or have failed; return False if some still start after timeout_s seconds.

        None: only the servers' own timeouts limit the wait.
        """
        self.start()
        if self._started is None or self._is_inherited:
            return True
        try:
            self._started.exception(timeout_s)
        except (TimeoutError, concurrent.futures.CancelledError):
            return self._closed
        return True

    def close(self) -> None:
        """End all servers and their children concurrently; pending calls fail. Idempotent.

        In a forked child it does nothing: the servers are the parent's.
        """
        if self._is_inherited:
            return
        with self._guard:
            started, self._started, closed, self._closed = self._started, None, self._closed, True
        if closed or started is None:
            return
        with contextlib.suppress(TimeoutError):
            LOOP.call(self._close_all, timeout_s=2 * CLOSE_S)
        if self._host is not None:
            self._host.close()

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a forked child; the threads that serve the connections run in the parent."""
        return os.getpid() != self._pid

    async def _close_all(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting}, timeout=CLOSE_S / 2)
        await asyncio.gather(*(server.close() for server in self._servers.values()), return_exceptions=True)
        await await_detached(CLOSE_S / 2)

    # --- tools --------------------------------------------------------------------------------

    def tools(
        self, timeout_s: float | None = None, *, reserved: Collection[str] = (), owned: bool = False
    ) -> list[MCPToolDefinition]:
        """Return the tools of the ready servers, in the order of the configuration; wait as `wait` does.

        Each has its own name, or `server__tool` if that is reserved (by this call or the constructor), not unique, or
        not made of letters, digits, `-`, `.` and single `_`.
        With owned, closing any of them closes all servers.
        """
        self.wait(timeout_s)
        running = [server for name, server in self._servers.items() if name not in self._stopped]
        offered = [(ServerTool(server.name, tool.name), tool) for server in running for tool in server.offered()]
        names = self._named([key for key, _ in offered], {*self._reserved, *reserved})
        definitions: list[MCPToolDefinition] = []
        by_name: dict[str, ServerTool] = {}
        for key, tool in offered:
            alias = prefixed(key)
            aliases = () if names[key] == alias or alias in names.values() else (alias,)
            trusted = self._servers[key.server].config.trusted
            definitions += MCPToolDefinition.create(
                key.server,
                tool,
                self,
                name=names[key],
                aliases=aliases,
                owns_caller=owned,
                trusted=trusted,
                limits=self._limits,
            )
            by_name |= dict.fromkeys((names[key], *aliases), key)
        self._names = by_name
        return definitions

    def _named(self, tools: list[ServerTool], reserved: Collection[str]) -> dict[ServerTool, str]:
        """Return names for the tools. A tool keeps its name: no other tool gets it, even if servers come and go."""
        taken_names = {name.lower() for name in reserved}
        kept_names = {
            tool: self._given[tool] for tool in tools if self._given.get(tool, "").lower() not in {"", *taken_names}
        }
        fresh = [tool for tool in tools if tool not in kept_names]
        self._given.update(names_for_model(fresh, {*reserved, *self._given.values()}, foreign=self._foreign))
        return {tool: self._given[tool] for tool in tools}

    def call(self, server: str, tool: str, arguments: dict[str, Any]) -> MCPToolObservation:
        """Call a tool by its name at the server.

        Raises:
            MCPError: the call had no result; the message says why.
            SandboxUnavailable: the sandbox is gone.
        """
        entry = self._servers.get(server)
        if entry is None or self._closed or server in self._stopped:
            reason = "was closed" if entry else "is not configured"
            raise MCPServerGoneError(f"MCP server {server!r} {reason}.")
        if self._is_inherited:
            raise MCPServerGoneError(f"MCP server {server!r} belongs to the parent process. Start one here.")
        self.start()
        waiting = LOOP.submit(entry.call, tool, arguments)
        calls = self._in_flight.setdefault(ServerTool(server, tool), set())
        calls.add(waiting)
        try:
            return waiting.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            if self._closed:
                raise MCPServerGoneError(f"MCP server {server!r} was closed during the call.") from None
            raise MCPError(
                f"The call of {tool!r} of MCP server {server!r} was interrupted. Its outcome is unknown."
            ) from None
        finally:
            waiting.cancel()  # after Ctrl-C this cancels the call at the server, too
            calls.discard(waiting)

    def interrupt(self, server: str, tool: str) -> None:
        """Cancel the pending calls of a tool; the server gets a cancellation. Thread-safe."""
        for waiting in list(self._in_flight.get(ServerTool(server, tool), ())):
            waiting.cancel()

    def last_progress(self, server: str, tool: str) -> str:
        """Return the newest progress reports of a tool's pending calls, a line each. Thread-safe."""
        entry = self._servers.get(server)
        return "\n".join(entry.progress.get(tool, ()) if entry is not None else ())

    def call_tool_mcp(self, action: MCPAction) -> MCPToolObservation:
        """Call a tool by its name for the model, or by `server__tool`.

        Raises:
            MCPError: the tool does not exist, or the call had no result.
        """
        if not self._names:
            self.tools()
        address = self._names.get(action.name)
        if address is None:
            raise MCPError(f"Unknown tool: {action.name[:100]}. MCP tools are: {', '.join(self._names) or 'none'}.")
        return self.call(address.server, address.tool, action.arguments)

    def stop(self, names: Collection[str]) -> None:
        """End some of the servers for good: their tools are no longer listed or called. Thread-safe."""
        stopping = {*names} & {*self._servers} - self._stopped
        self._stopped |= stopping
        self.version += bool(stopping)
        for name in stopping if not (self._closed or self._is_inherited) else ():
            LOOP.submit(self._servers[name].close)

    @property
    def has_withheld(self) -> bool:
        """Whether a tool waits for the user's approval."""
        return any(server.status().withheld for server in self._servers.values())

    def approve(self, server: str, tool: str) -> None:
        """Trust the current definition of a withheld tool; `tools` offers it again.

        Raises:
            UsageError: no such tool is withheld.
        """
        if server not in self._servers or not self._servers[server].filter.approve(tool):
            raise UsageError(
                f"No tool {tool!r} of MCP server {server!r} is withheld. "
                "Approve only tools that `ohsandbox mcp list` shows as withheld."
            )

    # --- messages --------------------------------------------------------------------------------

    def status(self) -> list[ServerStatus]:
        """Return the status of all servers, in the order of the configuration."""
        return [server.status() for server in self._servers.values()]

    def missing(self) -> str:
        """Return a text about the unavailable servers, with reasons; "" if all are available."""
        absent = [status for status in self.status() if status.state not in (ServerState.READY, ServerState.DISABLED)]
        return "\n".join(f"MCP server {status.name!r} is {status.state.value}: {status.reason}" for status in absent)

    def _on_server_event(self, event: MCPEvent) -> None:
        if event.kind not in PASSING:
            self.version += 1
        if self._on_event is not None:
            with contextlib.suppress(Exception):  # a listener's error does not end the server
                self._on_event(event)


def require_library(config: MCPConfig) -> None:
    """Check that fastmcp is installed, if a server needs it.

    Raises:
        MCPConfigError: it is not installed; the message names a server.
    """
    enabled = [name for name, server in config.servers.items() if not server.disabled]
    if enabled and find_spec("fastmcp") is None:
        fact = f"MCP server {enabled[0]!r} is configured, and the library fastmcp is not installed"
        raise MCPConfigError(f"{fact}. Run `pip install fastmcp`, or leave the MCP servers out.")


def read_mcp_config(config: MCPConfig | Mapping[str, Any] | str | os.PathLike[str]) -> MCPConfig:
    """Read a configuration from an `MCPConfig`, a dict or a JSON file's path.

    Raises:
        MCPConfigError: the configuration is invalid; the message names the server and the key.
    """
    if isinstance(config, MCPConfig):
        return config
    if isinstance(config, Mapping):
        return MCPConfig.parse(config)
    expect_path("mcp_config", config)
    return MCPConfig.load(Path(config))


def create_mcp_tools(
    config: MCPConfig | Mapping[str, Any] | str | os.PathLike[str],
    runtime: Runtime | None = None,
    *,
    timeout_s: float | None = None,
    **options: Any,
) -> list[MCPToolDefinition]:
    """Start the servers and return the tools of those ready within timeout_s seconds (None: their own limits).

    Closing one of these tools ends all servers. To see their states, or to list their tools again, use
    `MCPServers`, which takes the same options.

    Raises:
        MCPConfigError: the configuration is invalid.
    """
    servers = MCPServers(read_mcp_config(config), runtime, **options).start()
    try:
        tools = servers.tools(timeout_s, owned=True)
    except BaseException:
        servers.close()
        raise
    if not tools:
        servers.close()
    return tools
