"""Other ways to servers than `MCPServers` in a sandbox."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.mcp import MCPServerGoneError, ServerState, create_mcp_tools
from ohsandbox.mcp.relay import ConnectionRelay
from tests.mcp.conftest import Servers, call, odd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.mcp import MCPServers
    from ohsandbox.runtime.base import Runtime


def test_tools_in_one_call(sandbox: Runtime) -> None:
    tools = create_mcp_tools({"mcpServers": {"odd": odd(include=["echo"])}}, sandbox)
    try:
        assert [tool.name for tool in tools] == ["echo"]
        assert tools[0](tools[0].action_from_arguments({"text": "z"})).content[0].text == "z"  # type: ignore[union-attr]
    finally:
        tools[0].close()
    with pytest.raises(MCPServerGoneError):
        tools[0](tools[0].action_from_arguments({}))


def test_a_client_by_itself(sandbox: Runtime) -> None:
    from ohsandbox.mcp import Command, MCPClient, SandboxTransport  # noqa: PLC0415 - loads fastmcp

    transport = SandboxTransport(sandbox, Command(["python3", "odd.py"]))
    with MCPClient(transport, server="odd") as client:
        assert "echo" in [tool.name for tool in client]
        assert len(client) == len(client.call_async_from_sync(client.fetch_tools))
        result = client.call_async_from_sync(client.call, "echo", {"text": "hi"}, timeout=60)
        assert result.content[0].text == "hi"  # type: ignore[union-attr]
    client.sync_close()
    assert client.is_over


@pytest.mark.parametrize(("mode", "names"), [("brief", ["echo", "env", "nothing", "pid", "where"]), ("toolless", [])])
def test_an_open_client_gives_its_tools(sandbox: Runtime, mode: str, names: list[str]) -> None:
    from ohsandbox.mcp import Command, MCPClient, SandboxTransport  # noqa: PLC0415 - loads fastmcp

    def client() -> MCPClient:
        return MCPClient(SandboxTransport(sandbox, Command(["python3", "odd.py", mode])), server="odd")

    async def listed() -> list[str]:
        async with client() as opened:
            return [tool.name for tool in opened]

    with client() as opened:
        assert [tool.name for tool in opened] == names
    assert asyncio.run(listed()) == names


def test_fastmcps_own_client_has_the_limits_too(sandbox: Runtime) -> None:
    from fastmcp import Client  # noqa: PLC0415 - slow to import

    from ohsandbox.mcp import Command, SandboxTransport  # noqa: PLC0415 - loads fastmcp
    from ohsandbox.mcp.streams import GuardedSession  # noqa: PLC0415 - as above

    async def names() -> list[str]:
        transport = SandboxTransport(sandbox, Command(["python3", "odd.py", "malformed"]))
        async with Client(transport) as client:
            assert isinstance(client.session, GuardedSession)
            return [tool.name for tool in await client.list_tools()]

    assert {"echo", "nothing"} <= {*asyncio.run(names())}  # the SDK's own session refuses the whole list


def test_a_message_that_comes_after_a_server_is_given_up_is_dropped(started: Callable[[str], Runtime]) -> None:
    from ohsandbox.mcp.process import Command, ServerProcess  # noqa: PLC0415 - loads fastmcp

    late = """(sleep 0.5; echo '{"jsonrpc":"2.0","method":"notifications/message","params":{}}') & exit 0"""

    async def outlive(runtime: Runtime) -> None:
        process = ServerProcess(runtime, Command(["sh", "-c", late]))
        process.watch()
        while not process.is_over:
            await process.notice_exit()
            await asyncio.sleep(0.01)
        [reader] = [thread for thread in threading.enumerate() if thread.name == "ohsandbox-mcp-read"]
        await asyncio.to_thread(reader.join, 5)
        await process.aclose()

    faults: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", faults.append)
        asyncio.run(outlive(started("descriptorless")))
    assert faults == []


def test_a_connection_that_failed_is_killed_once(
    started: Callable[[str], Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = ConnectionRelay(started("cli"))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionError):
        relay.connect("127.0.0.1", port)
    killed: list[object] = []
    monkeypatch.setattr("ohsandbox.mcp.relay._Connector.kill", killed.append)
    relay.close()
    assert killed == []  # its process id may be another's by now


def started_of(servers: MCPServers) -> list[str]:
    return [one.name for one in servers.status() if one.state is ServerState.READY]


def test_a_server_on_this_machine_is_asked_for_and_warned_of(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_bytes(servers.runtime.read_bytes("odd.py"))
    started = servers({"here": {"command": "python3", "args": [str(tmp_path / "odd.py")], "where": "host"}})
    started.wait()
    assert started_of(started) == ["here"]
    assert "outside the sandbox" in started.config.warnings[0]
    assert int(call(started, "pid")) > 0


def test_a_forked_child_leaves_the_servers_to_its_parent(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    started = servers.odd()
    started.wait()
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: 1)
        with pytest.raises(MCPServerGoneError, match="parent process"):
            started.call("odd", "pid", {})
        started.close()
    assert call(started, "echo", text="still") == "still"
