"""Servers behind a URL: on this machine, in a container of their own, and evil ones."""

from __future__ import annotations

import functools
import http.client
import http.server
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp import MCPConfig, MCPError, MCPServers, ServerState
from tests.mcp.conftest import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)  # the image is built once, in a minute

HTTP_SERVER = """
import sys
from fastmcp import Context, FastMCP
app = FastMCP("far")
@app.tool
def add(a: int, b: int) -> int:
    return a + b
@app.tool
async def key(ctx: Context) -> str:
    from fastmcp.server.dependencies import get_http_headers
    return str(get_http_headers(include_all=True).get("x-key"))
app.run(transport=sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
"""


@pytest.fixture(params=["http", "sse"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "far.py").write_text(HTTP_SERVER)
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, str(tmp_path / "far.py"), request.param, str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _until_listening(port)
    yield f"http://127.0.0.1:{port}/{'sse' if request.param == 'sse' else 'mcp'}"
    server.kill()
    server.wait()


def _free_port() -> int:
    import socket  # noqa: PLC0415 - only here

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _until_listening(port: int) -> None:
    import socket  # noqa: PLC0415 - only here
    import time  # noqa: PLC0415 - only here

    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the server does not listen")


def test_a_server_behind_a_url(far: str) -> None:
    entry = {"url": far, "headers": {"X-Key": "${KEY}"}}
    config = MCPConfig.parse({"mcpServers": {"far": entry}})
    with MCPServers(config, None, variables={"KEY": "top-secret-key"}) as started:
        assert call(started, "add", a="2", b=3) == "5"
        assert call(started, "key") == "[value of KEY]"


@pytest.mark.docker
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # testcontainers keeps a session
@pytest.mark.parametrize(("kind", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
def test_a_server_in_a_container_of_its_own(
    real_image: str, monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415 - slow to import
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - as above

    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)  # `with` removes it; the reaper is one more image
    container = DockerContainer(real_image).with_exposed_ports(3001).with_command(f"mcp-server-everything {kind}")
    with container as started:
        port = int(started.get_exposed_port(3001))
        _until_answering(port)
        entry = {"url": f"http://{started.get_container_host_ip()}:{port}{path}", "timeout": 20}
        with MCPServers(MCPConfig.parse({"mcpServers": {"far": entry}}), None) as servers:
            assert "Echo: hi" in call(servers, "echo", message="hi"), servers.missing()
            assert "5" in call(servers, "get-sum", a=2, b=3)
            started.get_wrapped_container().kill()
            began = time.monotonic()
            with pytest.raises(MCPError):
                servers.call("far", "echo", {"message": "gone"})
            assert time.monotonic() - began < 15


def _until_answering(port: int) -> None:
    """The engine's proxy takes connections before the server in the container does."""
    for _ in range(200):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/")
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
        else:
            return
        finally:
            connection.close()
    pytest.fail("the server does not answer")


class _Evil(http.server.BaseHTTPRequestHandler):
    """Sends elsewhere, never ends, or is more than it seems."""

    seen: list[str]

    def do_POST(self) -> None:
        self.seen.append(f"{self.path} {self.headers.get('X-Key')}")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/redirect":
            self.send_response(307)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if self.path == "/event" else "application/json")
        if self.path == "/packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            if self.path == "/parts":
                self.wfile.write(b'{"jsonrpc": "2.0", "id": 1, "result": [' + b"{}," * 300_000 + b"{}]}")
            if self.path == "/blank":
                self.wfile.write(
                    b'{"jsonrpc": "2.0", "id": 1, "result": [' + (b"{}," * 10_000 + b"\n\n") * 40 + b"{}]}"
                )
            if self.path == "/event":
                self.wfile.write(b'data: {"jsonrpc": "2.0", "id": 1, "result": [' + b"{}," * 400_000 + b"{}]}\n\n")
            while self.path == "/huge":
                self.wfile.write(b"x" * 65536)
        except OSError:
            return

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def evil() -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = type("Evil", (_Evil,), {"seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, 0.05), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/redirect", "another host, 'localhost'"),
        ("/huge", "16000000 bytes"),
        ("/parts", "250000 JSON values"),
        ("/blank", "250000 JSON values"),
        ("/event", "250000 JSON values"),
        ("/packed", "compresses its answers ('gzip')"),
        ("/empty", "Invalid JSON"),
    ],
)
def test_an_evil_url_fails_by_itself_and_no_key_follows_it(evil: tuple[str, list[str]], path: str, told: str) -> None:
    url, seen = evil
    config = MCPConfig.parse({"mcpServers": {"evil": {"url": url + path, "headers": {"X-Key": "k"}}}})
    with MCPServers(config, None) as started:
        assert started.tools() == []
        assert started.status()[0].state is ServerState.FAILED
        assert told in started.missing()
    assert {line.split()[0] for line in seen} == {path}


def test_nobody_listens_there() -> None:
    config = MCPConfig.parse({"mcpServers": {"gone": {"url": f"http://127.0.0.1:{_free_port()}/mcp"}}})
    with MCPServers(config, None) as started:
        assert started.tools() == []
        assert "'gone' did not initialize: All connection attempts failed" in started.missing()


def test_a_proxy_of_the_environment_is_used(evil: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, seen = evil
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "near.invalid")
    entries = {name: {"url": f"http://{name}.invalid/mcp"} for name in ("far", "near")}
    with MCPServers(MCPConfig.parse({"mcpServers": entries}), None) as started:
        started.wait()
    assert {line.split()[0] for line in seen} == {"http://far.invalid/mcp"}


def test_a_proxy_may_be_written_without_a_scheme_and_its_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"me:s3cret-word@127.0.0.1:{_free_port()}")
    with MCPServers(MCPConfig.parse({"mcpServers": {"far": {"url": "http://far.invalid/mcp"}}}), None) as started:
        started.wait()
        assert "All connection attempts failed" in started.missing()
        assert "s3cret" not in started.missing()
