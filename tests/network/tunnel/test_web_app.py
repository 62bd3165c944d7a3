"""A web application that runs in a sandbox without a network, seen from this machine."""

from __future__ import annotations

import queue
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ohsandbox import DockerRuntime
from ohsandbox.network.audit import read_decisions
from tests.cli.viewer.chromium import PROGRAM, Chromium
from tests.lacking import lacking
from tests.runtime.engines import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.network.tunnel.ports import Forward

pytestmark = pytest.mark.docker
APP = Path(__file__).with_name("web_app.py")
PORT = 3000


@pytest.fixture(scope="module")
def sandbox() -> Iterator[DockerRuntime]:
    with DockerRuntime(IMAGE, network="none") as runtime:
        runtime.write_bytes("/tmp/app.py", APP.read_bytes())
        runtime.execute(f"python3 /tmp/app.py 127.0.0.1 {PORT} > /tmp/log 2>&1 &", timeout_s=60)
        runtime.execute("until grep -q ready /tmp/log; do sleep 0.1; done", timeout_s=60)
        yield runtime


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    if PROGRAM is None:
        lacking("no chromium on this machine: apt-get install chromium")
    with Chromium(tmp_path / "profile") as started:
        yield started


@pytest.fixture
def forward(sandbox: DockerRuntime) -> Iterator[Forward]:
    with sandbox.forward(PORT) as opened:
        yield opened


def test_a_browser_sees_its_page_with_websocket_and_events(forward: Forward, browser: Chromium, tmp_path: Path) -> None:
    browser.open(f"{forward.url}/", width=900, height=500)
    browser.wait_for("document.getElementById('ws').textContent === 'echoed 70000'")
    browser.wait_for("document.getElementById('sse').textContent === 'event 3'")
    assert browser.evaluate("document.title") == "shop"
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5000


def test_a_hundred_connections_are_open_at_once(forward: Forward) -> None:
    sockets = [socket.create_connection(("127.0.0.1", forward.port)) for _ in range(100)]
    for one in sockets:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    for one in sockets:
        with one, one.makefile("rb") as answer:
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_large_answers_arrive_whole_side_by_side(forward: Forward) -> None:
    def size(_: int) -> int:
        with urllib.request.urlopen(f"{forward.url}/big") as answer:
            return len(answer.read())

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(size, range(4))] == [32 << 20] * 4


def test_only_this_machine_reaches_it(forward: Forward) -> None:
    others = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in others - {"127.0.0.1"}:
        with pytest.raises(OSError, match=r"refused|unreachable"):
            socket.create_connection((address, forward.port), timeout=5).close()


def test_connections_through_ports_are_recorded(sandbox: DockerRuntime) -> None:
    told: queue.SimpleQueue[NetworkDecision] = queue.SimpleQueue()
    sandbox.execute(f"python3 /tmp/app.py 127.0.0.1 {PORT + 1} > /tmp/log2 2>&1 &", timeout_s=60)
    sandbox.execute("until grep -q ready /tmp/log2; do sleep 0.1; done", timeout_s=60)
    remove = sandbox.on_network_decision(told.put)
    with sandbox.forward(PORT + 1) as forward, urllib.request.urlopen(forward.url) as answer:
        size = len(answer.read())
    while (one := told.get(timeout=60)).port != PORT + 1:
        pass  # of a test before
    remove()
    assert (one.protocol, one.host, one.allowed) == ("forward", "127.0.0.1", True)
    (stored,) = [each for each in read_decisions(sandbox.name) if each.port == PORT + 1]
    assert stored.number == one.number
    (kept,) = [each for each in sandbox.network_decisions() if each.port == PORT + 1]
    assert kept.sent_bytes >= size
    assert kept.received_bytes > 0
