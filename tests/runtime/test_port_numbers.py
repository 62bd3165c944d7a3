"""Ports on which the sandbox listens."""

from __future__ import annotations

import socket

import pytest

from ohsandbox.runtime.port_numbers import parse_listeners
from ohsandbox.testing import FakeRuntime

V4 = b"0100007F:0BB8\n00000000:0050\n"
V6 = b"00000000000000000000000001000000:1F90\n00000000000000000000000000000000:0050\n"


def test_ports_are_in_order_and_named_once() -> None:
    assert parse_listeners(V4 + V6) == (80, 3000, 8080)


def test_own_ports_and_the_engines_resolver_are_left_out() -> None:
    assert parse_listeners(V4 + b"0B00007F:9C41\n", without={80}) == (3000,)


@pytest.mark.parametrize(
    "said", [b"", b"garbage\n", b"0100007F:0BB8 x\n", b"0100007F:00000BB8\n", b"0100007F:0000\n", b"\xff\x00:0BB8\n"]
)
def test_what_is_no_address_is_no_port(said: bytes) -> None:
    assert parse_listeners(said) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_server_is_found_among_many_connections(family: socket.AddressFamily, address: str) -> None:
    with FakeRuntime() as sandbox, socket.create_server((address, 0), family=family, backlog=100) as server:
        port = server.getsockname()[1]
        clients = [socket.create_connection((address, port)) for _ in range(80)]
        assert port in sandbox.listening_ports()
        for client in clients:
            assert client.getsockname()[1] not in sandbox.listening_ports()
            client.close()
    with FakeRuntime() as sandbox:
        assert port not in sandbox.listening_ports()
