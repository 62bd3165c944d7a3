"""Ports of a container, over the engine's exec streams."""

from __future__ import annotations

import base64
import hashlib
import http.client
import http.server
import multiprocessing
import os
import re
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.errors import SandboxUnavailable, UsageError
from ohsandbox.runtime.docker.config.container_config import CONNECTOR_DIR, CONNECTOR_UID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.network.tunnel.ports import PortConnection

SERVER = """
cd /tmp && echo inside >page && python3 -m http.server 8000 >/dev/null 2>&1 &
until (: </dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.02; done
"""
FIND_CONNECTOR = "grep -lsa '^/[^ ]*/connector' /proc/[0-9]*/cmdline || :"
IMAGES = ("debian", "busybox", "nonroot", "hostile")


@pytest.fixture
def host_service() -> Iterator[int]:
    """A web server of this machine's loopback address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from the host")

        def log_message(self, *_: object) -> None: ...

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def get(port: int, path: str = "/page") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
        return bytes(page.read())


def until_it_answers(port: int) -> bytes:
    """What it says once a connector runs again; the test's own time limit ends a wait that is too long."""
    while True:
        try:
            return get(port)
        except (OSError, http.client.HTTPException):
            continue


@pytest.mark.docker
def test_a_server_in_a_sandbox_without_a_network_is_seen_here(sandbox: Callable[..., DockerRuntime]) -> None:
    runtime = sandbox()
    runtime.execute(SERVER)
    with runtime.forward(8000) as forward:
        assert get(forward.port) == b"inside\n"
        assert forward.url == f"http://127.0.0.1:{forward.port}"
    assert runtime.run(["ls", "-A", CONNECTOR_DIR]).stdout == b"connector\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forward.port))


@pytest.mark.docker
@pytest.mark.parametrize("image", IMAGES)
def test_one_named_service_of_the_host_is_reached_from_each_image(
    sandbox: Callable[..., DockerRuntime], host_service: int, image: str
) -> None:
    runtime = sandbox(f"ohsandbox-base:{image}")
    here = runtime.forward(host_service)  # to the port inside at which the connector listens: any image can do that
    with pytest.raises((OSError, http.client.HTTPException)):
        get(here.port)
    with runtime.expose_host(host_service):
        assert get(here.port) == b"from the host"
    with pytest.raises((OSError, http.client.HTTPException)):
        get(here.port)


@pytest.mark.docker
@pytest.mark.parametrize(("image", "user"), [("debian", "root"), ("debian", "1000"), ("nonroot", None)])
def test_the_connector_has_no_right_and_only_root_can_end_it(
    sandbox: Callable[..., DockerRuntime], host_service: int, image: str, user: str | None
) -> None:
    runtime = sandbox(f"ohsandbox-base:{image}")
    here = runtime.forward(host_service)
    runtime.expose_host(host_service)
    pid = runtime.run(["sh", "-c", FIND_CONNECTOR], user="root").stdout.decode().split("/")[2]
    status = runtime.run(["cat", f"/proc/{pid}/status"], user="root").stdout.decode()
    assert re.search(rf"^Uid:(\t{CONNECTOR_UID}){{4}}$", status, re.MULTILINE)
    assert re.findall(r"^Cap(?:Eff|Prm|Inh|Amb):\t(\w+)", status, re.MULTILINE) == ["0" * 16] * 4
    killed = runtime.run(["sh", "-c", f"kill -KILL {pid}"], user=user).exit_code == 0
    assert killed == (user == "root")
    assert until_it_answers(here.port) == b"from the host"


@pytest.mark.slow
@pytest.mark.docker
def test_ports_outlast_a_restart_a_restore_and_the_death_of_everything_inside(
    sandbox: Callable[..., DockerRuntime], host_service: int
) -> None:
    runtime = sandbox(expose_host=[host_service])
    here = runtime.forward(host_service)
    checkpoint = runtime.checkpoint()
    runtime.end_processes()
    assert until_it_answers(here.port) == b"from the host"
    runtime._require_sandbox().container.kill()
    runtime.run(["true"])  # finds it dead, and starts it again
    assert until_it_answers(here.port) == b"from the host"
    runtime.restore(checkpoint)
    assert until_it_answers(here.port) == b"from the host"


@pytest.mark.docker
def test_a_sandbox_that_was_stopped_is_not_started_for_a_port(
    sandbox: Callable[..., DockerRuntime], host_service: int
) -> None:
    runtime = sandbox()
    runtime.expose_host(host_service)
    runtime._require_sandbox().container.kill()
    with pytest.raises((OSError, http.client.HTTPException)):
        get(runtime.forward(host_service).port)
    assert not runtime.is_alive()


@pytest.mark.docker
def test_a_hundred_requests_at_once_are_answered(sandbox: Callable[..., DockerRuntime], host_service: int) -> None:
    runtime = sandbox()
    here = runtime.forward(host_service)
    runtime.expose_host(host_service)
    with ThreadPoolExecutor(100) as pool:
        assert [*pool.map(get, [here.port] * 100)] == [b"from the host"] * 100


WEBSOCKET = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8000))
peer, _ = server.accept()
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += peer.recv(4096)
key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\\r\\n")[0]
said = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
             b"Sec-WebSocket-Accept: " + said + b"\\r\\n\\r\\n")
while frame := peer.recv(4096):
    mask, text = frame[2:6], frame[6:]
    peer.sendall(bytes([0x81, len(text)]) + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
"""


@pytest.mark.docker
def test_a_websocket_stays_open_both_ways(sandbox: Callable[..., DockerRuntime]) -> None:
    runtime = sandbox()
    runtime.write_bytes("/tmp/server.py", WEBSOCKET.encode())
    runtime.execute("python3 /tmp/server.py & until grep -q :1F40 /proc/net/tcp; do sleep 0.02; done")
    with socket.create_connection(("127.0.0.1", runtime.forward(8000).port)) as peer:
        key = base64.b64encode(os.urandom(16))
        peer.sendall(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
        said = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        assert said in peer.recv(4096)
        for text in (b"one", b"two"):
            peer.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
            assert peer.recv(4096) == bytes([0x81, len(text)]) + text


@pytest.mark.docker
def test_each_connection_is_told_with_its_bytes(sandbox: Callable[..., DockerRuntime]) -> None:
    runtime = sandbox()
    told: list[PortConnection] = []
    both = threading.Semaphore(0)

    def hear(one: PortConnection) -> None:
        told.append(one)
        both.release()

    runtime._on_connection = hear
    forward = runtime.forward(8000)
    with pytest.raises((OSError, http.client.HTTPException)):
        get(forward.port)
    runtime.execute(SERVER)
    get(forward.port)
    for _ in range(2):
        both.acquire()
    assert [(one.protocol, one.port) for one in told] == [("forward", 8000)] * 2
    assert "Nothing answers at port 8000" in told[0].error
    assert not told[1].error
    assert told[1].sent_bytes > len("inside\n") < told[1].received_bytes


@pytest.mark.docker
def test_the_end_of_the_runtime_ends_ports_and_the_connector(
    sandbox: Callable[..., DockerRuntime], host_service: int
) -> None:
    runtime = sandbox()
    with DockerRuntime(attach=runtime.name) as joined:
        joined.expose_host(host_service)
        here = joined.forward(host_service)
        assert get(here.port) == b"from the host"
        assert runtime.run(["sh", "-c", FIND_CONNECTOR]).stdout
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", here.port))
    while runtime.run(["sh", "-c", FIND_CONNECTOR]).stdout:
        pass  # it ends at the end of its input


@pytest.mark.docker
@pytest.mark.parametrize("image", ["debian", "busybox"])
def test_a_container_of_somebody_else_is_reached_too_and_nothing_stays_in_it(
    foreign: Callable[..., str], host_service: int, image: str
) -> None:
    with DockerRuntime(attach=foreign(f"ohsandbox-base:{image}")) as runtime:
        runtime.expose_host(host_service)
        assert get(runtime.forward(host_service).port) == b"from the host"
        made = str(runtime.connector_made)
        assert runtime.run(["ls", made]).stdout == b"connector\n"
    with DockerRuntime(attach=runtime.name) as again:
        assert again.run(["ls", made]).exit_code


@pytest.mark.docker
def test_a_container_that_can_run_no_program_of_ours_says_so(foreign: Callable[..., str]) -> None:
    tmpfs = {"/tmp": "noexec", "/dev/shm": "noexec", "/var/tmp": "noexec"}
    name = foreign(HostConfig={"NetworkMode": "none", "Tmpfs": tmpfs, "ReadonlyRootfs": True})
    with DockerRuntime(attach=name) as runtime, pytest.raises(SandboxUnavailable, match="cannot be started"):
        runtime.expose_host(8000)


def _forward_in_child(runtime: DockerRuntime, port: int) -> None:
    os._exit(get(runtime.forward(port).port) != b"from the host")


@pytest.mark.docker
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_ports_of_its_own(sandbox: Callable[..., DockerRuntime], host_service: int) -> None:
    runtime = sandbox()
    here = runtime.forward(host_service)
    runtime.expose_host(host_service)
    assert get(here.port) == b"from the host"
    child = multiprocessing.get_context("fork").Process(target=_forward_in_child, args=(runtime, host_service))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert get(here.port) == b"from the host"


@pytest.mark.docker
def test_wrong_ports_are_one_line(sandbox: Callable[..., DockerRuntime], host_service: int) -> None:
    runtime = sandbox()
    for wrong in (0, 65536, -1, True, "8000", None):
        with pytest.raises(UsageError, match=r"^Invalid port .*\. Give a number from 1 to 65535\.$"):
            runtime.forward(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^Port \d+ of this machine is taken\. Choose another host_port"):
        runtime.forward(8000, host_service)
    runtime.expose_host(host_service)
    with pytest.raises(UsageError, match=r"^Port \d+ of the sandbox is taken\. End the server"):
        runtime.expose_host(host_service)
