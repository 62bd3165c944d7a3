"""`--forward`, `--expose-host` and `/forward`, and what is told of servers that begin to listen."""

from __future__ import annotations

import io
import queue
import socket
import threading
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.options.shared import SandboxOptions
from ohsandbox.cli.sandbox import sandbox_ports
from ohsandbox.cli.sandbox.sandbox_ports import PortWatch, SandboxPorts, listening_line, open_ports
from ohsandbox.errors import UsageError
from ohsandbox.runtime import Runtime
from ohsandbox.runtime.port_numbers import PortPair, parse_port_pair
from ohsandbox.settings import Settings
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Invoke, WriteScript


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """A server's port, of this machine, which is the sandbox of these tests as well."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hello) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        yield http.server_port
        http.shutdown()


class Sandbox(FakeRuntime):
    """Without a container, and still with ports that are carried: a local one's are those of this machine."""

    isolated = True
    forward = Runtime.forward


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as runtime:
        yield runtime


@pytest.mark.parametrize(
    ("text", "pair"), [("3000", (3000, 3000)), ("8000:3000", (8000, 3000)), ("0:3000", (0, 3000)), ("80", (80, 80))]
)
def test_a_port_is_named_with_or_without_that_of_this_machine(text: str, pair: tuple[int, int]) -> None:
    assert parse_port_pair(text) == pair
    assert parse_port_pair(str(PortPair(*pair))) == pair


@pytest.mark.parametrize(
    "text", ["", "0", "x", "3000:", ":3000", "1:2:3", "65536", "8000:0", "-1", "\uff13000", "1" * 9]
)
def test_what_is_no_port_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"Invalid port .*Give PORT, or HOST_PORT:PORT") as refused:
        parse_port_pair(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("flag", [("--forward", "x"), ("--forward", "1:0"), ("--expose-host", "0")])
@pytest.mark.parametrize("words", [("exec", "--", "true"), ("run", "--model", "scripted:demo", "x")], ids=" ".join)
def test_a_wrong_port_is_one_line_before_anything_starts(
    invoke: Invoke, words: tuple[str, ...], flag: tuple[str, str]
) -> None:
    ended = invoke(words[0], *flag, *words[1:])
    assert (ended.code, ended.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("flag", "ports"), [("--forward", ["8000:80", "8000:81"]), ("--expose-host", ["5432", "5432"])]
)
def test_one_port_for_two_is_told_before_a_sandbox_is_made(invoke: Invoke, flag: str, ports: list[str]) -> None:
    ended = invoke("exec", flag, ports[0], flag, ports[1], "--", "true")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert f"{flag} names port {ports[0].partition(':')[0]}" in ended.err


def test_ports_of_the_settings_are_opened_where_no_flag_names_others_and_another_free_one_will_do(
    sandbox: Sandbox, server: int
) -> None:
    settings = Settings.model_validate({"forward": f"{server}:3000", "expose_host": [5432]})
    full = SandboxOptions().with_settings(settings)
    assert (full.forward, full.expose_host, full.any_port) == ([f"{server}:3000"], [5432], True)
    told: list[str] = []
    opened = open_ports(sandbox, replace(full, expose_host=None), told.append, or_any=False)
    assert "is taken" in told[0]
    assert opened.forwarded == (3000,)
    asked = SandboxOptions(forward=["80"]).with_settings(settings)
    assert (asked.forward, asked.expose_host, asked.any_port) == (["80"], [5432], False)
    with pytest.raises(ValueError, match="Invalid port"):
        Settings.model_validate({"forward": "x"})


def test_ports_need_a_container(invoke: Invoke) -> None:
    ended = invoke("exec", "--runtime", "cli", "--forward", "3000", "--", "true")
    assert ended.code == 2
    assert ended.err.startswith("ohsandbox: --forward needs a container")


def test_a_forwarded_port_answers_here_and_no_more_once_it_is_closed(sandbox: Sandbox, server: int) -> None:
    ports = SandboxPorts(sandbox)
    told = ports.forward(PortPair(0, server))
    url = told.rpartition(" ")[2]
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"hello"
    assert ports.forwarded == (server,)
    ports.close(parse_port_pair(ports.pairs[0]).host_port)
    assert ports.pairs == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_a_port_of_this_machine_that_is_taken_is_refused_or_replaced(sandbox: Sandbox, server: int) -> None:
    ports = SandboxPorts(sandbox)
    with pytest.raises(UsageError, match=f"Port {server} of this machine is taken"):
        ports.forward(PortPair(server, 3000))
    told = ports.forward(PortPair(server, 3000), or_any=True)
    assert told.endswith(f"(Port {server} of this machine is taken)")
    assert str(server) not in ports.pairs[0]


def test_the_list_says_where_each_port_is_and_where_nobody_listens() -> None:
    class Listens(Sandbox):
        def listening_ports(self) -> tuple[int, ...]:
            return 3000, 5173

    with Listens() as sandbox:
        ports = SandboxPorts(sandbox)
        urls = [ports.forward(PortPair(0, port)).rpartition(" ")[2] for port in (3000, 8080)]
        assert ports.rows() == [
            f"{urls[0]}  port 3000 of the sandbox",
            f"{urls[1]}  port 8080 of the sandbox, where nothing listens yet",
            "listening, not forwarded: 5173",
        ]


def test_what_is_not_forwarded_cannot_be_closed(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match=r"Port 3000 is not forwarded. Forwarded ports of this machine: none."):
        SandboxPorts(sandbox).close(3000)


def test_ports_of_before_are_opened_elsewhere_where_they_are_taken_and_told(sandbox: Sandbox, server: int) -> None:
    told: list[str] = []
    where = SandboxOptions(forward=[f"{server}:3000"])
    with pytest.raises(UsageError, match="is taken"):
        open_ports(sandbox, where, told.append, or_any=False)
    ports = open_ports(sandbox, where, told.append, or_any=True)
    assert ports.forwarded == (3000,)
    assert len(told) == 1
    assert told[0].startswith("Port 3000 of the sandbox: http://127.0.0.1:")


@pytest.mark.docker
def test_a_service_that_the_settings_expose_answers_a_command(
    invoke: Invoke, server: int, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OHSANDBOX_EXPOSE_HOST", str(server))
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{server}/').read())"
    ended = invoke("exec", "--image", image, "--network", "none", "--", "python3", "-c", fetch)
    assert (ended.code, ended.out) == (0, "b'hello'\n")


@pytest.mark.docker
def test_ports_that_a_session_opened_are_open_again_when_it_is_resumed(
    invoke: Invoke, write_script: WriteScript, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] + 1
    model = write_script(("", "true"), ("Done.", None), ("Again.", None))
    lines = ["do it", f"/forward {port}:3000", "/forward 3001", "/forward close 3001", "/forward"]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    first = invoke("run", "--model", model, "--image", image, "--network", "none", "--no-tui")
    assert f"http://127.0.0.1:{port}  port 3000 of the sandbox, where nothing listens yet" in first.out + first.err
    monkeypatch.setattr("sys.stdin", io.StringIO("/status\n"))
    again = invoke("run", "--resume", "last", "--model", model, "--no-tui")
    said = again.out + again.err
    assert f"Port 3000 of the sandbox: http://127.0.0.1:{port}" in said
    assert "3001" not in said


# --- servers that begin to listen are told once ---------------------------------------------------

PATIENCE_S = 60.0


class Ports(FakeRuntime):
    """A sandbox whose ports a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ports: tuple[int, ...] = ()
        self.looked: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()

    def listening_ports(self) -> tuple[int, ...]:
        self.looked.put(self.ports)
        return self.ports


@pytest.fixture
def listening() -> Iterator[Ports]:
    with Ports() as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_ports, "LOOKS_S", (0.0, 0.01, 0.02))
    monkeypatch.setattr(sandbox_ports, "SLOW_S", 0.01)


def test_a_server_of_the_sandbox_is_found_by_its_own_table_of_sockets() -> None:
    told: list[str] = []
    with FakeRuntime() as listening:
        watch = PortWatch(listening, told.append, is_running=lambda: False)
        watch.look()
        told.clear()
        for port in range(20_000, 30_000):
            try:
                server = socket.create_server(("127.0.0.1", port))
            except OSError:
                continue
            break
        with server:
            watch.look()
            watch.look()
    assert told == [listening_line([port])]


def test_each_port_is_told_once_while_calls_run(listening: Ports) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = PortWatch(listening, told.put, is_running=lambda: True)
    watch.nudge()
    assert listening.looked.get(timeout=PATIENCE_S) == ()
    listening.ports = (3000,)
    assert told.get(timeout=PATIENCE_S) == "listening on 3000: /forward 3000 shows it to your browser"
    listening.ports = (3000, 5173, 8000)
    assert told.get(timeout=PATIENCE_S) == "listening on 5173, 8000: /forward 5173 shows one to your browser"
    watch.close()
    assert told.empty()


def test_nothing_is_asked_before_a_call_and_after_its_moment(listening: Ports) -> None:
    # the watch asks whether calls run as soon as no look is left; looks that come too late are one
    no_look_left = threading.Event()

    def is_running() -> bool:
        no_look_left.set()
        return False

    watch = PortWatch(listening, print, is_running=is_running)
    assert listening.looked.empty()
    watch.nudge()
    assert no_look_left.wait(PATIENCE_S)
    looks = listening.looked.qsize()
    assert 1 <= looks <= len(sandbox_ports.LOOKS_S)
    watch.close()
    assert listening.looked.qsize() == looks


def test_ports_that_the_kernel_chose_or_that_are_forwarded_are_not_told(listening: Ports) -> None:
    told: list[str] = []
    listening.ports = (3000, 45_113)
    PortWatch(listening, told.append, is_running=lambda: True, forwarded=lambda: (3000,)).look()
    assert told == []


def test_a_sandbox_that_opens_every_port_gets_one_line(listening: Ports) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    listening.ports = tuple(range(1, 5000))
    watch = PortWatch(listening, told.put, is_running=lambda: True)
    watch.nudge()
    line = "listening on 1, 2, 3, 4, 5, 6 and 4993 more: /forward 1 shows one to your browser"
    assert told.get(timeout=PATIENCE_S) == line
    watch.close()
    assert told.empty()
    assert listening.looked.qsize() == 1


def test_a_dead_sandbox_is_not_brought_back_to_look_at_it(listening: Ports) -> None:
    listening.close()
    watch = PortWatch(listening, print, is_running=lambda: False)
    watch.nudge()
    watch.close()
    assert listening.looked.empty()
