"""Node that reads no proxy variables by itself, led to the proxy by the file that is loaded into it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import ohsandbox.network.proxy
from ohsandbox.network.credentials.certificate_authority import CertificateAuthority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRELOAD = Path(ohsandbox.network.proxy.__file__).with_name("node_proxy.cjs")
NODE = shutil.which("node")
HOST, BLOCKED = "api.example.org", "blocked.example.org"
FETCH = """fetch(process.argv[1]).then(async (answer) => console.log(answer.status, await answer.text()))
  .catch((error) => console.log(error.cause ? error.cause.message : error.message));"""
HTTPS = """require("https").get(process.argv[1], (answer) => {
  answer.setEncoding("utf8"); answer.on("data", (text) => console.log(answer.statusCode, text));
}).on("error", (error) => console.log(error.message));"""


class World(NamedTuple):
    """A server and a proxy of this machine."""

    proxy: str
    authority: Path
    plain: str
    """A server that is asked without the proxy."""
    asked: list[str]
    """What the proxy was asked for."""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"hello {self.headers['Host']}".encode())

    def log_message(self, *_: object) -> None:
        pass


class TlsServer(ThreadingHTTPServer):
    """A client that refuses its certificate is no error."""

    def handle_error(self, *_: object) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A TLS server for any name, behind a proxy that knows one."""
    authority, asked = CertificateAuthority([HOST]), list[str]()
    (tmp_path / "ca.pem").write_bytes(authority.certificate)

    class Tunnels(Answers):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            if self.path != f"{HOST}:443":
                self.send_response(403, f"Blocked by the sandbox: {self.path}")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            far = socket.create_connection(("127.0.0.1", secure.server_port))
            back = threading.Thread(target=carry, args=(far, self.connection), daemon=True)
            back.start()
            carry(self.connection, far)
            back.join()
            far.close()
            self.close_connection = True

    def carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    with (
        TlsServer(("127.0.0.1", 0), Answers) as secure,
        ThreadingHTTPServer(("127.0.0.1", 0), Answers) as plain,
        ThreadingHTTPServer(("127.0.0.1", 0), Tunnels) as proxy,
    ):
        secure.socket = authority.server_context(HOST).wrap_socket(secure.socket, server_side=True)
        for server in (secure, plain, proxy):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        at = "http://127.0.0.1:{}".format
        yield World(at(proxy.server_port), tmp_path / "ca.pem", at(plain.server_port), asked)
        for server in (secure, plain, proxy):
            server.shutdown()


@pytest.fixture
def node(world: World) -> Callable[..., str]:
    """Run a script of Node with an address; what it prints."""
    if NODE is None:
        lacks = "no node on this machine: apt-get install nodejs"
        pytest.fail(lacks) if os.environ.get("CI") == "true" else pytest.skip(lacks)

    def run(script: str, address: str) -> str:
        env = {
            "PATH": os.environ["PATH"], "HTTPS_PROXY": world.proxy, "NO_PROXY": "localhost,127.0.0.1,::1",
            "NODE_USE_ENV_PROXY": "1", "NODE_EXTRA_CA_CERTS": str(world.authority),
            "NODE_OPTIONS": f"--require={PRELOAD}",
        }  # fmt: skip
        ran = subprocess.run(
            [str(NODE), "-e", script, address], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return ran.stdout.strip()

    return run


@pytest.mark.parametrize("script", [FETCH, HTTPS], ids=["fetch", "https"])
def test_https_goes_through_the_proxy_and_the_server_is_verified(
    node: Callable[..., str], world: World, script: str
) -> None:
    assert node(script, f"https://{HOST}/") == f"200 hello {HOST}"
    assert world.asked == [f"{HOST}:443"]
    world.authority.write_bytes(CertificateAuthority([HOST]).certificate)
    assert re.search("certificate|signature", node(script, f"https://{HOST}/"))


@pytest.mark.parametrize("script", [FETCH, HTTPS], ids=["fetch", "https"])
def test_a_refusal_is_told_with_its_reason(node: Callable[..., str], script: str) -> None:
    assert f"403 (Blocked by the sandbox: {BLOCKED}:443)" in node(script, f"https://{BLOCKED}/")


def test_servers_of_the_sandbox_itself_are_asked_directly(node: Callable[..., str], world: World) -> None:
    assert node(FETCH, world.plain).startswith("200 hello 127.0.0.1")
    assert world.asked == []


def test_node_without_a_proxy_is_as_it_was() -> None:
    if NODE is None:
        pytest.skip("no node on this machine: apt-get install nodejs")
    env = {"PATH": os.environ["PATH"], "NODE_OPTIONS": f"--require={PRELOAD}"}
    script = "console.log(fetch.name, require('https').Agent.prototype.createConnection.length)"
    ran = subprocess.run([NODE, "-e", script], env=env, capture_output=True, text=True, timeout=60, check=True)
    without = subprocess.run([NODE, "-e", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == without.stdout
