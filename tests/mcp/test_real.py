"""Servers that nobody here wrote, with every tool they offer called; and servers behind a URL."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.mcp import MCPConfig, MCPServers, ServerState
from tests.mcp.conftest import CACHE, call, observe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime
    from tests.mcp.conftest import Servers

pytestmark = pytest.mark.timeout(300)
PAGE = "<html><body><h1>Hello</h1><p>The quick brown fox.</p></body></html>"


@pytest.fixture
def python(request: pytest.FixtureRequest, sandbox: Runtime) -> dict[str, Any]:
    """How `python -m mcp_server_...` is started in the sandbox."""
    if not sandbox.private_processes:
        return {"command": request.getfixturevalue("real_python")}
    site: Path = request.getfixturevalue("real_servers")
    if sandbox.run(["test", "-d", "/tmp/site/mcp_server_fetch"]).exit_code:
        sandbox.run(["mkdir", "-p", "/tmp/site"])
        sandbox.upload(site, "/tmp/site")
    return {"command": "python3", "env": {"PYTHONPATH": "/tmp/site"}}


def module(python: dict[str, Any], name: str, *args: str, **more: Any) -> dict[str, Any]:
    return {**python, "args": ["-m", name, *args], "timeout": 60, **more}


def test_time(servers: Servers, python: dict[str, Any]) -> None:
    started = servers({"time": module(python, "mcp_server_time", "--local-timezone=UTC")})
    assert "UTC" in call(started, "get_current_time", timezone="UTC")
    converted = call(started, "convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    assert "21:00" in converted
    wrong = observe(started, "get_current_time", timezone="Nowhere/Else")
    assert wrong.is_error


def test_fetch_reads_a_page_inside_the_sandbox(servers: Servers, python: dict[str, Any], sandbox: Runtime) -> None:
    sandbox.write_bytes("www/index.html", PAGE.encode())
    port = "18923"
    web = sandbox.channel(["python3", "-u", "-m", "http.server", port, "--directory", f"{sandbox.workdir}/www"])
    try:
        web.read(5)
        started = servers({"fetch": module(python, "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips")})
        assert "quick brown fox" in call(started, "fetch", url=f"http://127.0.0.1:{port}/", raw=True)
    finally:
        web.kill()
        web.close()


def test_git(servers: Servers, python: dict[str, Any], sandbox: Runtime) -> None:
    if sandbox.run(["git", "--version"]).exit_code:
        pytest.skip("the image has no git")
    repo = f"{sandbox.workdir}/repo"
    sandbox.run(["git", "init", "-q", "-b", "main", repo])
    for key, value in (("user.name", "T"), ("user.email", "t@x.test")):
        sandbox.run(["git", "-C", repo, "config", key, value])
    sandbox.write_bytes(f"{repo}/a.txt", b"one\n")
    started = servers({"git": module(python, "mcp_server_git", "--repository", repo)})
    offered = {tool.name for tool in started.tools()}
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("git_status", {}, "a.txt"),
        ("git_add", {"files": ["a.txt"]}, "staged"),
        ("git_diff_staged", {}, "+one"),
        ("git_commit", {"message": "first"}, "committed"),
        ("git_log", {"max_count": 1}, "first"),
        ("git_show", {"revision": "HEAD"}, "+one"),
        ("git_create_branch", {"branch_name": "b"}, "b"),
        ("git_branch", {"branch_type": "local"}, "main"),
        ("git_checkout", {"branch_name": "b"}, "b"),
        ("git_diff", {"target": "main"}, "main"),
        ("git_diff_unstaged", {}, "changes"),
        ("git_reset", {}, "reset"),
    ]
    called = set()
    for tool, arguments, expected in steps:
        assert expected in call(started, tool, repo_path=repo, **arguments).lower(), tool
        called.add(tool)
    assert offered - called == set()


# --- Node, on this machine ----------------------------------------------------------------------

NODE_PACKAGES = ("server-filesystem", "server-everything", "server-memory")


@pytest.fixture(scope="module")
def node_modules() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    target = CACHE / "node"
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "node_modules" / "@modelcontextprotocol" / "server-memory").exists():
        packages = [f"@modelcontextprotocol/{name}" for name in NODE_PACKAGES]
        argv = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(target), *packages]
        if (done := subprocess.run(argv, check=False, capture_output=True, text=True)).returncode:
            pytest.skip(f"npm cannot install: {done.stderr[-300:]}")
    return target / "node_modules" / ".bin"


@pytest.mark.parametrize("sandbox", ["cli"], indirect=True)
def test_three_node_servers_at_once(servers: Servers, node_modules: Path, sandbox: Runtime) -> None:
    sandbox.write_bytes("files/a.txt", b"alpha\nbeta\n")
    folder = f"{sandbox.workdir}/files"
    started = servers(
        {
            "files": {"command": str(node_modules / "mcp-server-filesystem"), "args": [folder]},
            "everything": {"command": str(node_modules / "mcp-server-everything")},
            "memory": {
                "command": str(node_modules / "mcp-server-memory"),
                "env": {"MEMORY_FILE_PATH": f"{sandbox.workdir}/memory.json"},
            },
        }
    )
    assert "beta" in call(started, "read_text_file", path=f"{folder}/a.txt")
    assert observe(started, "read_text_file", path="/etc/passwd").is_error
    assert "Echo: hi" in call(started, "echo", message="hi")
    assert [one.state for one in started.status()] == [ServerState.READY] * 3
    entity = {"name": "e", "entityType": "t", "observations": ["o"]}
    assert "e" in call(started, "create_entities", entities=[entity])
    assert "o" in call(started, "read_graph")


# --- behind a URL -------------------------------------------------------------------------------

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


class _Evil(http.server.BaseHTTPRequestHandler):
    """`/redirect` sends elsewhere; `/huge` never ends."""

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
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
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
    [("/redirect", "another host, 'localhost'"), ("/huge", "16000000 bytes"), ("/empty", "Invalid JSON")],
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
