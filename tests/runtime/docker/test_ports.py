"""Ports of a container, over the engine's exec streams."""

from __future__ import annotations

import http.server
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

from ohsandbox.runtime.docker.container_config import CONNECTOR_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ohsandbox.runtime.docker.runtime import DockerRuntime

SERVER = """
cd /tmp && echo inside >page && python3 -m http.server 8000 >/dev/null 2>&1 &
until (: </dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.02; done
"""


@pytest.fixture
def host_service() -> Iterator[int]:
    """A web server of this machine's loopback address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from the host")

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.docker
def test_a_server_in_a_sandbox_without_a_network_is_seen_here(sandbox: Callable[..., DockerRuntime]) -> None:
    runtime = sandbox()
    runtime.execute(SERVER)
    with runtime.forward(8000) as forward, urllib.request.urlopen(f"{forward.url}/page") as page:
        assert page.read() == b"inside\n"
    assert runtime.run(["ls", "-A", CONNECTOR_DIR]).stdout == b"connector\n"


@pytest.mark.docker
@pytest.mark.parametrize("image", ["debian", "nonroot", "hostile"])
def test_one_named_service_of_the_host_is_reached_from_inside(
    sandbox: Callable[..., DockerRuntime], host_service: int, image: str
) -> None:
    runtime = sandbox(f"ohsandbox-base:{image}")
    runtime.expose_host(host_service)
    get = f"exec 3<>/dev/tcp/127.0.0.1/{host_service}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    assert runtime.run(["bash", "-c", get]).stdout.endswith(b"from the host")
