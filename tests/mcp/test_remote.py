"""Servers reached from inside the sandbox's network, by each program that can connect."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ohsandbox import DockerRuntime
from ohsandbox.mcp import MCPClient, MCPConfig, MCPError, MCPServers, relay
from ohsandbox.mcp.config import ServerConfig
from ohsandbox.mcp.relay import ConnectionRelay
from ohsandbox.mcp.remote import remote_transport
from tests.mcp.conftest import call
from tests.network.credentials.played_host import played_host
from tests.network.credentials.tls_host import HOST, Seen, whole
from tests.runtime.engines import IMAGE

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]  # the image is built once, in a minute

ECHO = {
    "debian": """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            if data == b"bye":
                return
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 100
Server(("127.0.0.1", 7001), Echo).serve_forever()
""",
    "busybox": "nc -ll -p 7001 -e cat",
}
HTTPS = """
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print("POST", self.path, self.headers["X-Key"], flush=True)
        self.send_error(404)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tmp/tls.pem")
server = http.server.HTTPServer(("127.0.0.1", 7002), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
_KILL_CONNECTORS = (
    "for f in $(grep -ls socket.[c]reate_connection /proc/[0-9]*/cmdline); do kill -9 $(echo $f | cut -d/ -f3); done"
)
"""As an agent's `kill -9 -1` would."""
CONNECTORS = [
    pytest.param("debian", "python3", id="python"),
    pytest.param("debian", "bash", id="bash"),
    pytest.param("busybox", "nc", id="nc"),
]


@pytest.fixture(scope="module")
def echoing() -> Iterator[dict[str, Runtime]]:
    """Sandboxes without a network, each with an echo server on its own loopback."""
    with DockerRuntime("ohsandbox-base:debian") as debian, DockerRuntime("ohsandbox-base:busybox") as busybox:
        debian.write_bytes("/tmp/echo.py", ECHO["debian"].encode())
        _sh(debian, "setsid python3 /tmp/echo.py >/dev/null 2>&1 </dev/null &")
        _sh(busybox, f"setsid {ECHO['busybox']} >/dev/null 2>&1 </dev/null &")
        for runtime in (debian, busybox):
            _sh(runtime, "until cat /proc/net/tcp* | grep -q ':1B59 .* 0A '; do sleep 0.05; done")
        yield {"debian": debian, "busybox": busybox}


def _sh(runtime: Runtime, script: str) -> str:
    done = runtime.run(["sh", "-c", script], timeout_s=60)
    assert done.exit_code == 0, done
    return done.stdout.decode()


@contextmanager
def _relayed(runtime: Runtime) -> Iterator[ConnectionRelay]:
    with closing(ConnectionRelay(runtime)) as made:
        yield made


def _connected(by: ConnectionRelay, port: int = 7001) -> socket.socket:
    near = by.connect("127.0.0.1", port)
    near.settimeout(30)
    return near


def _only(program: str, patch: pytest.MonkeyPatch) -> None:
    for other in {"python3", "bash", "nc"} - {program}:
        patch.setattr(relay, "_CONNECTOR", relay._CONNECTOR.replace(f"command -v {other}", "false"))


_CONNECTORS = (
    "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'create_[c]onnection\\|dev/[t]cp\\|nc [1]27'; :"
)


def _connectors_in(runtime: Runtime) -> int:
    return int(_sh(runtime, _CONNECTORS))


def _until_no_connector(runtime: Runtime) -> None:
    for _ in range(100):
        if _connectors_in(runtime) == 0:
            return
        time.sleep(0.05)
    pytest.fail("a connector is left in the sandbox")


@pytest.mark.parametrize(("image", "program"), CONNECTORS)
def test_bytes_go_both_ways_and_nothing_is_left(
    echoing: dict[str, Runtime], image: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only(program, monkeypatch)
    runtime = echoing[image]
    sent = os.urandom(3_000_000)
    with _relayed(runtime) as way:
        with _connected(way) as near, _connected(way) as idle:
            writing = threading.Thread(target=near.sendall, args=(sent,))
            writing.start()
            got = b""
            while len(got) < len(sent) and (data := near.recv(65536)):
                got += data
            writing.join()
            assert got == sent
            idle.sendall(b"still here")
            assert idle.recv(100) == b"still here"
        near = _connected(way)
    with near:
        assert near.recv(1) == b""  # closed with the relay
    _until_no_connector(runtime)


@pytest.mark.parametrize("program", ["python3", "bash"])
def test_the_far_end_hangs_up(echoing: dict[str, Runtime], program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _only(program, monkeypatch)
    with _relayed(echoing["debian"]) as way, _connected(way) as near:
        near.sendall(b"bye")
        assert near.recv(1) == b""
    _until_no_connector(echoing["debian"])


@pytest.mark.parametrize(("image", "program"), CONNECTORS)
def test_nobody_listens_there(
    echoing: dict[str, Runtime], image: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only(program, monkeypatch)
    told = ""
    with _relayed(echoing[image]) as way:
        try:
            with _connected(way, port=7999) as near:
                assert near.recv(1) == b""
        except ConnectionError as error:
            told = str(error)
    assert "From inside the sandbox, 127.0.0.1:7999 cannot be reached: " in way.trouble
    assert "refused" in way.trouble.lower()
    assert "Start the server there, or remove" in way.trouble
    assert told == ("" if program == "nc" else way.trouble)


def test_an_image_that_has_nothing_to_connect_with(
    echoing: dict[str, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    _only("no such program", monkeypatch)
    with _relayed(echoing["busybox"]) as way, pytest.raises(ConnectionError, match="none of python3, bash and nc"):
        _connected(way)


def test_closing_ends_a_connection_whose_far_end_does_not_read(
    echoing: dict[str, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "GRACE_S", 0.2)
    runtime = echoing["debian"]
    deaf = "import socket,time; s=socket.create_server(('127.0.0.1',7003)); c=s.accept(); time.sleep(600)"
    _sh(runtime, f'setsid python3 -c "{deaf}" >/dev/null 2>&1 </dev/null &')
    _sh(runtime, "until cat /proc/net/tcp* | grep -q ':1B5B .* 0A '; do sleep 0.05; done")
    with _relayed(runtime) as way:
        near = _connected(way, port=7003)
        near.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                near.send(b"x" * 65536)
                time.sleep(0.001)
    near.close()
    _until_no_connector(runtime)


def test_a_spare_that_was_killed_is_replaced(echoing: dict[str, Runtime]) -> None:
    runtime = echoing["debian"]
    with _relayed(runtime) as way:
        _connected(way).close()
        for _ in range(200):
            if way._spare is not None:
                break
            time.sleep(0.05)
        _sh(runtime, _KILL_CONNECTORS)
        with _connected(way) as near:
            near.sendall(b"x")
            assert near.recv(1) == b"x"


@pytest.fixture(scope="module")
def inside(real_image: str) -> Iterator[DockerRuntime]:
    """A sandbox without a network, with a third party's server on its own loopback, over both protocols."""
    with DockerRuntime(real_image) as runtime:
        for kind, port in (("streamableHttp", 3001), ("sse", 3002)):
            _sh(runtime, f"PORT={port} setsid mcp-server-everything {kind} >/dev/null 2>&1 </dev/null &")
        for listening in ("0BB9", "0BBA"):
            _sh(runtime, f"until cat /proc/net/tcp* | grep -q ':{listening} .* 0A '; do sleep 0.1; done")
        yield runtime


@pytest.mark.parametrize("url", ["http://127.0.0.1:3001/mcp", "http://localhost:3002/sse"])
def test_a_server_inside_a_sandbox_without_network(inside: DockerRuntime, url: str) -> None:
    config = MCPConfig.parse({"mcpServers": {"within": {"url": url, "where": "sandbox", "timeout": 20}}})
    with MCPServers(config, inside) as servers:
        assert "Echo: hi" in call(servers, "echo", message="hi"), servers.missing()
        assert "5" in call(servers, "get-sum", a=2, b=3)
        _sh(inside, _KILL_CONNECTORS)
        with closing(servers):
            again = _eventually(servers)
        assert "Echo: again" in again


def _eventually(servers: MCPServers) -> str:
    """SSE ends with its connection and is started again; the call that finds out fails."""
    try:
        return call(servers, "echo", message="again")
    except MCPError:
        return call(servers, "echo", message="again")


def test_tls_is_spoken_here(echoing: dict[str, Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = _certificate("localhost")
    (tmp_path / "ca.pem").write_bytes(certificate)
    runtime = echoing["debian"]
    runtime.write_bytes("/tmp/tls.py", HTTPS.encode())
    runtime.write_bytes("/tmp/tls.pem", certificate + key)
    _sh(runtime, "setsid python3 /tmp/tls.py >/tmp/tls.log 2>&1 </dev/null &")
    _sh(runtime, "until cat /proc/net/tcp* | grep -q ':1B5A .* 0A '; do sleep 0.05; done")
    entry = {"url": "https://localhost:7002/mcp", "where": "sandbox", "headers": {"X-Key": "k"}}
    config = MCPConfig.parse({"mcpServers": {"safe": entry}})
    with MCPServers(config, runtime) as servers:
        servers.wait()
        assert "certificate verify failed" in servers.missing()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with MCPServers(config, runtime) as servers:
        servers.wait()
    assert "POST /mcp k" in _sh(runtime, "cat /tmp/tls.log")


def _certificate(name: str) -> tuple[bytes, bytes]:
    """A self-signed one and its key, PEM."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(issuer, issuer, key.public_key(), 1, now, now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return made.public_bytes(pem), key.private_bytes(pem, form, plain)


def test_a_client_is_opened_again(inside: DockerRuntime) -> None:
    server = ServerConfig(url="http://127.0.0.1:3001/mcp", where="sandbox")
    client = MCPClient(remote_transport(server, inside))
    for _ in range(2):
        with client as opened:
            assert opened.call_async_from_sync(opened.fetch_tools)


def test_no_network_is_said_with_the_remedy(inside: DockerRuntime) -> None:
    config = MCPConfig.parse({"mcpServers": {"far": {"url": "http://far.invalid/mcp", "where": "sandbox"}}})
    with MCPServers(config, inside) as servers:
        servers.wait()
        told = servers.missing()
    assert "From inside the sandbox, far.invalid:80 cannot be reached: " in str(told)
    assert "--allow far.invalid" in str(told)


def _serve_mcp(seen: Seen) -> bytes:
    """A server with one tool, over TLS."""
    if seen.method != "POST":
        return whole(b"", "405 Method Not Allowed")
    asked = json.loads(seen.body)
    if "id" not in asked:
        return whole(b"", "202 Accepted")
    server = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    }
    answers = {
        "initialize": server,
        "tools/list": {"tools": [{"name": "where", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "through the list"}]},
    }
    told = {"jsonrpc": "2.0", "id": asked["id"], "result": answers.get(asked["method"], {})}
    return whole(json.dumps(told).encode(), headers="content-type: application/json\r\n")


def test_a_sandbox_with_a_list_reaches_what_is_on_it_and_names_the_rule_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {"listed": HOST, "other": "other.example.org", "odd": "odd.example.org:8443"}
    entries = {name: {"url": f"https://{host}/mcp", "where": "sandbox", "timeout": 20} for name, host in hosts.items()}
    with played_host(monkeypatch, tmp_path, answer=_serve_mcp) as (there, bundle):
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        with DockerRuntime(IMAGE, allow=[HOST]) as runtime:
            with MCPServers(MCPConfig.parse({"mcpServers": entries}), runtime) as servers:
                assert call(servers, "where") == "through the list", servers.missing()
                servers.wait()
                missing = str(servers.missing())
            allowed = {one.host for one in runtime.network_decisions() if one.allowed}
            connectors = _connectors_in(runtime)
    assert there.seen
    assert allowed == {HOST}
    assert "other.example.org:443 cannot be reached: " in missing
    assert "not on the list" in missing
    assert "(`--allow other.example.org`)" in missing
    assert "(`--allow odd.example.org:8443`)" in missing
    assert connectors == 0
