"""`ohsandbox mcp serve --http`: several sessions, each with a sandbox."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from tests.mcp_server.conftest import INITIALIZE, OverHTTP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mcp_server.conftest import Named

ACCEPT = {"accept": "application/json, text/event-stream"}


def client_of(served: OverHTTP) -> Client[Any]:
    return Client(StreamableHttpTransport(served.url, auth=served.token or None))


def initialize(served: OverHTTP, **headers: str) -> httpx.Response:
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
    return httpx.post(served.url, json=message, headers={**served.headers, **headers})


@pytest.mark.docker
def test_each_session_has_a_sandbox_which_ends_with_it(serve_http: Callable[..., OverHTTP], image: Named) -> None:
    served = serve_http("--image", image.name, "--max-sessions", "2")

    async def main() -> None:
        async with client_of(served) as first, client_of(served) as second:
            await first.call_tool("execute_bash", {"command": "touch mine"})
            seen = await second.call_tool("execute_bash", {"command": "ls | wc -l"})
            assert "0" in str(seen.content)
            assert len(image.containers()) == 2
            refused = initialize(served)
            assert (refused.status_code, "--max-sessions" in refused.text) == (503, True)
        async with client_of(served) as third:
            await third.call_tool("execute_bash", {"command": "true"})

    anyio.run(main)
    _wait_until(lambda: image.containers() == [])


@pytest.mark.slow
@pytest.mark.docker
def test_a_signal_ends_all_sessions(serve_http: Callable[..., OverHTTP], image: Named) -> None:
    served = serve_http("--image", image.name)
    session = initialize(served).headers["mcp-session-id"]
    call = {"name": "execute_bash", "arguments": {"command": "true"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answered = httpx.post(served.url, json=message, headers={**served.headers, "mcp-session-id": session})
    assert "Exit code 0" in answered.text
    assert len(image.containers()) == 1
    served.process.send_signal(signal.SIGTERM)
    _, err = served.process.communicate(timeout=60)
    assert (served.process.returncode, err.splitlines()) == (143, ["ohsandbox: Terminated."])
    assert image.containers() == []


@pytest.mark.slow
@pytest.mark.docker
def test_an_idle_session_ends(serve_http: Callable[..., OverHTTP], image: Named) -> None:
    served = serve_http("--image", image.name, "--idle-timeout", "1")
    session = initialize(served).headers["mcp-session-id"]
    _wait_until(
        lambda: httpx.delete(served.url, headers={**served.headers, "mcp-session-id": session}).status_code == 404
    )


def test_without_its_token_nobody_gets_in_on_loopback_either(serve_http: Callable[..., OverHTTP]) -> None:
    served = serve_http("--max-sessions", "1")
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
    for _ in range(3):  # another user of this machine, who so takes no place either
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Bearer {served.token[:-1]}"}):
            answered = httpx.post(served.url, json=message, headers={**ACCEPT, **headers})
            assert (answered.status_code, "mcp-session-id" in answered.headers) == (401, False)
    assert initialize(served).status_code == 200


def test_the_printed_configuration_connects(serve_http: Callable[..., OverHTTP], tmp_path: Path) -> None:
    served = serve_http("--runtime", "cli", "--workspace", str(tmp_path))
    assert served.entry["url"] == served.url

    async def main() -> None:
        async with Client({"mcpServers": {"sandbox": served.entry}}) as client:
            seen = await client.call_tool("execute_bash", {"command": "pwd"})
            assert str(tmp_path) in str(seen.content)

    anyio.run(main)


@pytest.mark.slow
def test_a_token_of_ones_own_is_printed_nowhere(serve_http: Callable[..., OverHTTP], home: dict[str, str]) -> None:
    home["MY_TOKEN"] = "0123456789abcdefgh"
    served = serve_http("--token", "env:MY_TOKEN")
    assert served.token == ""
    assert initialize(served, authorization="Bearer 0123456789abcdefg").status_code == 401
    assert initialize(served, authorization="Bearer 0123456789abcdefgh").status_code == 200


@pytest.mark.slow
def test_requests_that_belong_to_no_session(serve_http: Callable[..., OverHTTP]) -> None:
    served = serve_http("--max-sessions", "1")
    assert initialize(served, origin="http://evil.example").status_code == 403
    assert httpx.get(served.url.replace("/mcp", "/other"), headers=served.headers).status_code == 404
    assert initialize(served, **{"mcp-session-id": "none"}).status_code == 404
    newer = initialize(served, **{"mcp-protocol-version": "2026-07-28"})
    assert (newer.status_code, "2025-06-18" in newer.json()["error"]["data"]["supported"]) == (400, True)
    for _ in range(3):  # none of these opens the one session that is allowed
        listed = httpx.post(
            served.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=served.headers
        )
        assert listed.status_code == 400
    assert initialize(served).status_code == 200


@pytest.mark.slow
def test_a_port_that_is_taken_is_told(serve_http: Callable[..., OverHTTP], serve: Callable[..., Any]) -> None:
    port = re.findall(r":(\d+)/", serve_http().url)[0]
    process = serve("--http", port).process
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"Nothing can listen" in err) == (2, True)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
