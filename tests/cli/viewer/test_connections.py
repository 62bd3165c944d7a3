"""Who may connect to a live page. The other user is a real one: these tests need root to become nobody."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.viewer import connections
from ohsandbox.cli.viewer.connections import MAX_NEWCOMERS, NO_USER, user_of
from ohsandbox.cli.viewer.control import PageControl
from ohsandbox.cli.viewer.server import PageServer
from tests.cli.viewer import example
from tests.cli.viewer.test_server import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
FLOOD = 5000
CPU_S = 4.0
"""What FLOOD connections may cost this process, in seconds of CPU; before, their number and the machine's counted."""

_AS_NOBODY = f"""
import os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
address, count, sends, holds = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), sys.argv[4].encode(), sys.argv[5]
connections = []
for _ in range(count):
    connection = socket.socket()
    connection.connect(address)  # without a look-up of names, for which nobody can read no library
    try:
        connection.sendall(sends)
    except OSError:
        pass  # it was closed at once
    if holds:
        connections.append(connection)
    else:
        connection.close()
print("done", flush=True)
sys.stdin.read()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    directory = example.usual(tmp_path)
    with PageServer(directory, PageControl(directory), title="A title", facts="facts") as server:
        yield server


@pytest.fixture
def client(server: PageServer) -> Client:
    return Client(server.address)


def as_nobody(address: tuple[str, int], *, count: int = 1, sends: str = "", holds: bool) -> subprocess.Popen[str]:
    argv = [sys.executable, "-I", "-c", _AS_NOBODY, address[0], str(address[1]), str(count), sends, "1" * holds]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def address_of(client: Client) -> tuple[str, int]:
    host, _, port = client.host.partition(":")
    return host, int(port)


@needs_root
@needs_linux
def test_another_users_connection_is_closed_unread(client: Client) -> None:
    script = _AS_NOBODY.replace('print("done", flush=True)', "print(repr(connection.recv(1)), flush=True)")
    request = f"GET /network HTTP/1.1\r\nHost: {client.host}\r\nAuthorization: Bearer {client.token}\r\n\r\n"
    argv = [sys.executable, "-I", "-c", script, *map(str, address_of(client)), "1", request, "1"]
    ended = subprocess.run(argv, input="", capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "b''\n" or "ConnectionResetError" in ended.stderr
    with contextlib.closing(socket.create_connection(address_of(client))) as own:
        own.sendall(request.encode())
        assert own.recv(8) == b"HTTP/1.1"


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("knows_users", [True, False], ids=["users are known", "users are not known"])
@pytest.mark.parametrize("holds", [False, True], ids=["closed", "held open"])
@pytest.mark.parametrize("sends", ["", "GET / HTTP/1.1\r\n"], ids=["silent", "half a request"])
def test_a_flood_of_another_user_costs_little_and_the_page_answers(
    server: PageServer, client: Client, monkeypatch: pytest.MonkeyPatch, sends: str, *, knows_users: bool, holds: bool
) -> None:
    if not knows_users:
        monkeypatch.setattr(connections, "user_of", lambda *_: None)
    with client.events() as read, as_nobody(address_of(client), count=FLOOD, sends=sends, holds=holds) as flood:
        assert flood.stdout is not None
        os.set_blocking(flood.stdout.fileno(), False)
        used = time.process_time()
        while not flood.stdout.readline():
            assert client.ask("GET", "/", Authorization="").status == 200
            assert client.ask("GET", "/network").status == 200
            time.sleep(0.05)
        used = time.process_time() - used
        assert client.ask("GET", "/network").status == 200, "what is held open does not keep the person out"
        server.show_now("what has shown the token is kept")
        while read("now")["text"] != "what has shown the token is kept":
            pass
        flood.communicate()
    assert used < CPU_S


def test_the_oldest_connection_without_the_token_makes_room(server: PageServer, client: Client) -> None:
    with contextlib.ExitStack() as stack, client.events() as read:
        silent = [
            stack.enter_context(socket.create_connection(address_of(client), timeout=60))
            for _ in range(MAX_NEWCOMERS + 1)
        ]
        assert silent[0].recv(1) == b""
        assert select.select([silent[-1]], [], [], 0)[0] == []
        server.show_now("what has shown the token is kept")
        while read("now")["text"] != "what has shown the token is kept":
            pass


@needs_linux
def test_the_kernel_says_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        accepted, at = server.accept()
        assert user_of(at, server.getsockname()) == os.geteuid()
        own.close()
        assert user_of(at, server.getsockname()) == NO_USER, "and not root"
        assert user_of(("127.0.0.2", at[1]), server.getsockname()) is None
        accepted.close()


@needs_root
@needs_linux
def test_the_kernel_names_another_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, as_nobody(server.getsockname(), holds=True) as process:
        accepted, at = server.accept()
        assert user_of(at, server.getsockname()) == NOBODY
        process.communicate()
        accepted.close()
