"""A forwarded port as clients of this machine have it: both loopbacks, and nobody listening yet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import random
import socket
import struct
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.network.loop import get_loop
from ohsandbox.network.tunnel.ports import _End
from ohsandbox.runtime import Runtime
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from ohsandbox.network.tunnel.ports import PortConnection


class Sandbox(FakeRuntime):
    """Its ports are carried by the connector, though they are those of this machine."""

    forward = Runtime.forward
    expose_host = Runtime.expose_host


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as runtime:
        yield runtime


@pytest.fixture
def nobody() -> int:
    """A port on which nothing listens, and which is not given to the forward, since both are of this machine.

    It is chosen at random, because tests that run beside this one look for such a port too.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_a_browser_is_told_that_nothing_listens_yet_and_asks_again(sandbox: Sandbox, nobody: int) -> None:
    with sandbox.forward(nobody) as forward, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(forward.url)
    with refused.value as answer:
        assert (answer.status, answer.headers["Refresh"], answer.headers["Cache-Control"]) == (502, "2", "no-store")
        assert answer.read().startswith(f"Nothing listens on port {nobody} of the sandbox yet.".encode())


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-client\r\n", b"\x16\x03\x01\x02\x00"], ids=["nothing", "ssh", "tls"])
def test_another_client_is_disconnected(
    sandbox: Sandbox, nobody: int, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ohsandbox.network.tunnel.ports.FIRST_BYTES_S", 0.05)
    with sandbox.forward(nobody) as forward, socket.create_connection(("127.0.0.1", forward.port)) as client:
        client.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_a_server_that_starts_later_answers_at_the_same_forward(sandbox: Sandbox, nobody: int) -> None:
    with sandbox.forward(nobody) as forward:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(forward.url)
        refused.value.close()
        with socket.create_server(("127.0.0.1", nobody)) as server:
            client = socket.create_connection(("127.0.0.1", forward.port))
            inside, _ = server.accept()
            with client, inside:
                inside.sendall(b"here")
                assert client.recv(4, socket.MSG_WAITALL) == b"here"


def test_a_server_that_ends_after_its_client_was_reset_unseen_is_reset_too(
    sandbox: Sandbox, nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", nobody)) as server, sandbox.forward(nobody) as forward:
        client = socket.create_connection(("127.0.0.1", forward.port))
        inside, _ = server.accept()
        with inside:
            client.settimeout(1)
            with pytest.raises(TimeoutError):  # until nobody reads the client any more
                client.sendall(bytes(1 << 26))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            inside.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionResetError):
                list(iter(lambda: inside.recv(1 << 20), b""))
    assert not [record for record in caplog.records if record.name == "asyncio"]


class TransportThatReadsWhilePaused(asyncio.Transport):
    """Delivers all that it is given, paused or not, as Python 3.11.2 does after a pause in `connection_made`."""

    def __init__(self, protocol: asyncio.Protocol, received: bytes = b"", *, ends: bool = False) -> None:
        super().__init__()
        self.written, self.has_ended = b"", False
        protocol.connection_made(self)
        for byte in received:
            protocol.data_received(bytes([byte]))
        if ends:
            protocol.eof_received()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: Buffer) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        pass


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
async def test_what_a_client_sends_before_the_sandbox_has_connected_arrives(*, ends: bool) -> None:
    near = _End()
    TransportThatReadsWhilePaused(near, b"first", ends=ends)
    far = _End(near)
    inside = TransportThatReadsWhilePaused(far)
    near.begin()
    if not ends:
        near.data_received(b" second")
    assert (inside.written, inside.has_ended) == (b"first" if ends else b"first second", ends)


async def test_a_server_that_has_ended_before_the_client_is_passed_on_still_receives_what_it_sent() -> None:
    near = _End()
    TransportThatReadsWhilePaused(near, b"request", ends=True)
    far = _End(near)
    inside = TransportThatReadsWhilePaused(far, ends=True)
    near.begin()
    assert inside.written == b"request"


def test_both_loopback_addresses_lead_there_and_close_together(sandbox: Sandbox, nobody: int) -> None:
    with socket.create_server(("127.0.0.1", nobody)) as server, sandbox.forward(nobody) as forward:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, forward.port)), server.accept()[0] as inside:
                assert inside.fileno() > 0
    for address in ("127.0.0.1", "::1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, forward.port)).close()


def test_a_server_on_the_other_loopback_is_no_obstacle(sandbox: Sandbox, nobody: int) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with sandbox.forward(nobody, port) as forward:
            assert forward.port == port


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, r"Port 80 of this machine needs root. Choose another host_port, from 1024 on"),
        (errno.EADDRNOTAVAIL, r"Port 80 of this machine cannot be listened on: .* Choose another host_port"),
    ],
)
def test_a_port_that_cannot_be_listened_on_names_the_remedy(
    sandbox: Sandbox, nobody: int, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    async def refuse(*_: object, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(get_loop(), "create_server", refuse)
    with pytest.raises(UsageError, match=remedy):
        sandbox.forward(nobody, 80)


def test_a_port_of_the_sandbox_that_cannot_be_listened_on_names_the_remedy(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(sandbox.tunnel, "answer", refuse)
    with pytest.raises(UsageError, match=r"Port 80 of the sandbox cannot be listened on: Permission.* another port"):
        sandbox.expose_host(80)


def test_a_connection_that_the_server_resets_is_reported_with_the_reason_though_the_listener_of_reports_fails(
    nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    reported: queue.SimpleQueue[PortConnection] = queue.SimpleQueue()

    def fail(connection: PortConnection) -> None:
        reported.put(connection)
        raise ValueError("a defect")

    with Sandbox() as sandbox:
        sandbox._on_connection = fail
        with socket.create_server(("127.0.0.1", nobody)) as server, sandbox.forward(nobody) as forward:
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", forward.port)) as client:
                    inside, _ = server.accept()
                    inside.sendall(b"x")
                    assert client.recv(1) == b"x"
                    inside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    inside.close()
                    with contextlib.suppress(ConnectionResetError):
                        assert client.recv(1) == b""
                assert "was reset inside" in reported.get(timeout=5).error
    assert [record.message for record in caplog.records] == ["a listener of connections failed"] * 2


async def test_a_port_closes_at_the_end_of_an_asynchronous_block(sandbox: Sandbox, nobody: int) -> None:
    async with sandbox.forward(nobody) as forward, sandbox.expose_host(nobody) as exposed:
        assert (exposed.port, sandbox._ports.listening) == (nobody, frozenset({nobody}))
    assert not sandbox._ports.listening
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forward.port)).close()


def test_a_sandbox_with_the_ports_of_this_machine_has_a_server_at_a_second_one(nobody: int) -> None:
    with FakeRuntime() as sandbox, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        port = server.getsockname()[1]
        with sandbox.forward(port, nobody) as forward, socket.create_connection(("127.0.0.1", nobody)) as client:
            inside, _ = server.accept()
            with inside:
                inside.sendall(b"here")
                assert (client.recv(4, socket.MSG_WAITALL), forward.port) == (b"here", nobody)


def test_ports_that_the_connector_listens_on_are_no_servers_of_the_sandbox(sandbox: Sandbox, nobody: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, sandbox.expose_host(nobody):
        found, other = sandbox.listening_ports(), server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", nobody)):  # it listens
            assert (other in found, nobody in found) == (True, False)
