"""What the tests' own guard of the network refuses."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ELSEWHERE = ("192.0.2.1", 9)


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.connect(ELSEWHERE),
        lambda one: one.connect_ex(ELSEWHERE),
        lambda one: one.sendto(b"x", ELSEWHERE),
        lambda one: one.sendto(b"x", 0, ELSEWHERE),
        lambda one: one.sendmsg([b"x"], [], 0, ELSEWHERE),
    ],
)
def test_a_socket_of_a_test_reaches_this_machine_only(call: Callable[[socket.socket], object]) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        pytest.raises(PermissionError, match=r"connects to 192\.0\.2\.1:9"),
    ):
        call(one)


def test_a_socket_of_a_test_reaches_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        client.sendto(b"x", server.getsockname())
        server.settimeout(10)
        assert server.recv(1) == b"x"
