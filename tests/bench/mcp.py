"""An MCP server in the sandbox, over our transport and over FastMCP's own with `docker exec -i`, in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from ohsandbox.mcp import Command, MCPClient, MCPConfig, MCPServers, SandboxTransport
from tests.bench.rows import Row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ohsandbox.runtime import Runtime

SERVER = Path(__file__).parents[1] / "mcp" / "server.py"
ROUNDS, CALLS = 8, 100


def mcp_rows(runtime: Runtime) -> list[Row]:
    """No-op calls, servers made ready, and four slow servers; runtime is a DockerRuntime on an image with Python."""
    runtime.write_bytes("/tmp/odd.py", SERVER.read_bytes())
    return [*_round_trips(runtime), _ready(runtime), _four_slow(runtime)]


def _ours(runtime: Runtime) -> MCPClient:
    return MCPClient(SandboxTransport(runtime, Command(["python3", "-S", "/tmp/odd.py"])))


def _theirs(runtime: Runtime) -> Client[Any]:
    argv = ["exec", "-i", runtime.id, "python3", "-S", "/tmp/odd.py"]
    return Client(StdioTransport("docker", argv, keep_alive=False))


def _round_trips(runtime: Runtime) -> list[Row]:
    ours, theirs, bridged = asyncio.run(_interleaved(runtime))
    ratio = ours / theirs
    return [
        Row("MCP no-op call / `docker exec -i`", _ms(ours), _ms(theirs), f"{ratio:.2f}x", "<= 1.3x", ratio <= 1.3),
        Row("  the same, as an agent's tool", _ms(bridged), _ms(theirs), f"{bridged / theirs:.2f}x", "", None),
    ]


async def _interleaved(runtime: Runtime) -> tuple[float, float, float]:
    """Medians of a call over our transport, over theirs, and through the whole stack of a tool."""
    ours: list[float] = []
    theirs: list[float] = []
    bridged: list[float] = []
    config = MCPConfig.parse({"mcpServers": {"odd": {"command": "python3", "args": ["-S", "/tmp/odd.py"]}}})
    with MCPServers(config, runtime) as servers:
        tool = next(tool for tool in servers.tools() if tool.name == "nothing")
        client = _ours(runtime)
        async with client, _theirs(runtime) as other:
            await client.initialize()
            for _ in range(ROUNDS):
                ours += await _timed(lambda: client.call("nothing", {}))
                theirs += await _timed(lambda: other.call_tool_mcp("nothing", {}))
                bridged += await asyncio.to_thread(_timed_tool, tool)
    return statistics.median(ours), statistics.median(theirs), statistics.median(bridged)


async def _timed(call: Callable[[], Awaitable[Any]]) -> list[float]:
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return times


def _timed_tool(tool: Any) -> list[float]:
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        tool(tool.action_from_arguments({}))
        times.append(time.perf_counter() - began)
    return times


def _ready(runtime: Runtime) -> Row:
    """Started, initialized, listed; ended outside the clock."""
    ours: list[float] = []
    theirs: list[float] = []

    async def one_of_theirs() -> None:
        began = time.perf_counter()
        async with _theirs(runtime) as client:
            await client.list_tools()
            theirs.append(time.perf_counter() - began)

    def one_of_ours() -> None:
        began = time.perf_counter()
        with _ours(runtime) as client:
            client.call_async_from_sync(client.fetch_tools)
            ours.append(time.perf_counter() - began)

    for _ in range(12):
        one_of_ours()
        asyncio.run(one_of_theirs())
    mine, other = statistics.median(ours), statistics.median(theirs)
    return Row("MCP server ready", _ms(mine), _ms(other), f"{mine / other:.2f}x", "<= 1.1x", mine / other <= 1.1)


def _four_slow(runtime: Runtime) -> Row:
    """Four servers of which each takes a second to answer."""

    def start(count: int) -> float:
        entry = {"command": "python3", "args": ["-S", "/tmp/odd.py", "slow"]}
        config = MCPConfig.parse({"mcpServers": {f"s{number}": entry for number in range(count)}})
        began = time.perf_counter()
        with MCPServers(config, runtime) as servers:
            servers.wait()
            return time.perf_counter() - began

    one, four = start(1), start(4)
    return Row("four slow MCP servers / one", _ms(four), _ms(one), f"{four / one:.2f}x", "<= 1.3x", four / one <= 1.3)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
