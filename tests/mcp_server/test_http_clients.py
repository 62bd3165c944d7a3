"""Clients over HTTP that stall, and clients that are gone."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from mcp.server.lowlevel import Server

from ohsandbox.mcp_server import http
from ohsandbox.mcp_server.http import HttpGuard, HttpSessions, ListenAddress, listening, serve_http
from tests.mcp_server.conftest import INITIALIZE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.mcp_server.conftest import OverHTTP

ACCEPT = {"accept": "application/json, text/event-stream"}
HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@asynccontextmanager
async def serving(sessions: HttpSessions | None = None) -> AsyncIterator[ListenAddress]:
    """A server; by default one that has no session to give."""
    nobody: Any = None
    sessions = sessions or HttpSessions(nobody, guard=HttpGuard(), max_sessions=1, idle_timeout_s=60)
    with listening(ListenAddress("127.0.0.1", 0)) as (listener, address):
        async with anyio.create_task_group() as group:
            ready = anyio.Event()

            async def serve() -> None:
                await serve_http(sessions, listener, ready=ready.set)

            group.start_soon(serve)
            await ready.wait()
            yield address
            group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (HEAD[:20], b""),
        (HEAD + b"Content-Length: 9\r\n\r\n", b"HTTP/1.1 408"),
        (HEAD + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"HTTP/1.1 408"),
    ],
)
def test_a_client_that_stalls_is_let_go(monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes) -> None:
    monkeypatch.setattr(http, "HEADERS_S", 0.05)
    monkeypatch.setattr(http, "BODY_S", 0.1)

    async def main() -> None:
        async with serving() as address, await anyio.connect_tcp(*address) as client:
            if sent:
                await client.send(sent)
            received = b""
            with anyio.fail_after(20):
                while not received.endswith(b"s.\n"):
                    try:
                        received += await client.receive()
                    except anyio.EndOfStream:
                        break
            assert received[:12] == answer

    anyio.run(main)


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes() -> None:
    async def main() -> None:
        async with serving() as address, await anyio.connect_tcp(*address) as client:
            await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % (http.MAX_BODY_BYTES + 1))
            with anyio.fail_after(http.BODY_S / 2):
                assert (await client.receive()).startswith(b"HTTP/1.1 413")

    anyio.run(main)


def test_a_client_that_leaves_in_mid_request_leaves_no_trace(
    serve_http: Callable[..., OverHTTP],
) -> None:
    served = serve_http("--max-sessions", "1")
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 0)) as client:
        client.sendall(HEAD + f"Authorization: Bearer {served.token}\r\n".encode())
        client.sendall(b'Content-Length: 99\r\n\r\n{"method": "initialize"')
    assert open_session(served).status_code == 200  # it took no place
    served.process.terminate()
    _, err = served.process.communicate(timeout=60)
    assert err.splitlines() == ["ohsandbox: Terminated."]


def open_session(served: OverHTTP) -> httpx.Response:
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
    return httpx.post(served.url, json=message, headers=served.headers, timeout=30)


@pytest.mark.slow
def test_the_place_of_a_client_that_is_gone_is_given_away_and_no_other(serve_http: Callable[..., OverHTTP]) -> None:
    served = serve_http("--max-sessions", "2")
    stays, goes = (open_session(served).headers["mcp-session-id"] for _ in range(2))
    assert open_session(served).status_code == 503  # both may be there: neither ever had a stream
    headers = {**served.headers, "accept": "text/event-stream", "mcp-session-id": goes}
    with httpx.stream("GET", served.url, headers=headers) as stream:
        assert stream.status_code == 200
        assert open_session(served).status_code == 503
    assert httpx.get(served.url, headers=served.headers).status_code == 400  # asks for no place, and costs nobody one
    assert open_session(served).status_code == 200
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for session, status in ((goes, 404), (stays, 200)):
        answer = httpx.post(served.url, json=ping, headers={**served.headers, "mcp-session-id": session})
        assert answer.status_code == status


def test_one_new_session_takes_one_place_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SPARED_S", 0.1)
    monkeypatch.setattr(http, "LOOK_S", 0.02)

    @asynccontextmanager
    async def slowly_removed(_: Any) -> AsyncIterator[None]:
        yield
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)

    async def main() -> None:
        sessions = HttpSessions(
            Server("s", lifespan=slowly_removed), guard=HttpGuard(), max_sessions=3, idle_timeout_s=60
        )
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}
        async with serving(sessions) as address, httpx.AsyncClient(base_url=address.url, timeout=30) as client:

            async def begin() -> str:
                began = await client.post("", json=message, headers=ACCEPT)
                session: str = began.headers["mcp-session-id"]
                async with client.stream("GET", "", headers={**ACCEPT, "mcp-session-id": session}):
                    return session

            old = [await begin() for _ in range(3)]
            await anyio.sleep(0.3)
            await begin()
            assert [one in sessions._sessions for one in old].count(True) == 2

    anyio.run(main)
