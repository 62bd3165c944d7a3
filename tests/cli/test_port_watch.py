"""Servers that begin to listen are told once, and nothing is asked where nothing is called."""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.sandbox import ports
from ohsandbox.cli.sandbox.ports import PortWatch, listening_line
from ohsandbox.testing import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def sandbox() -> Iterator[Ports]:
    with Ports() as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LOOKS_S", (0.0, 0.01, 0.02))
    monkeypatch.setattr(ports, "SLOW_S", 0.01)


def test_a_server_of_the_sandbox_is_found_by_its_own_table_of_sockets() -> None:
    told: list[str] = []
    with FakeRuntime() as sandbox:
        watch = PortWatch(sandbox, told.append, is_running=lambda: False)
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


def test_each_port_is_told_once_while_calls_run(sandbox: Ports) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = PortWatch(sandbox, told.put, is_running=lambda: True)
    watch.nudge()
    assert sandbox.looked.get(timeout=PATIENCE_S) == ()
    sandbox.ports = (3000,)
    assert told.get(timeout=PATIENCE_S) == "listening on 3000: /forward 3000 shows it to your browser"
    sandbox.ports = (3000, 5173, 8000)
    assert told.get(timeout=PATIENCE_S) == "listening on 5173, 8000: /forward 5173 shows one to your browser"
    watch.close()
    assert told.empty()


def test_nothing_is_asked_before_a_call_and_after_its_moment(sandbox: Ports) -> None:
    # the watch asks whether calls run as soon as no look is left; looks that come too late are one
    no_look_left = threading.Event()

    def is_running() -> bool:
        no_look_left.set()
        return False

    watch = PortWatch(sandbox, print, is_running=is_running)
    assert sandbox.looked.empty()
    watch.nudge()
    assert no_look_left.wait(PATIENCE_S)
    looks = sandbox.looked.qsize()
    assert 1 <= looks <= len(ports.LOOKS_S)
    watch.close()
    assert sandbox.looked.qsize() == looks


def test_ports_that_the_kernel_chose_or_that_are_forwarded_are_not_told(sandbox: Ports) -> None:
    told: list[str] = []
    sandbox.ports = (3000, 45_113)
    PortWatch(sandbox, told.append, is_running=lambda: True, forwarded=lambda: (3000,)).look()
    assert told == []


def test_a_sandbox_that_opens_every_port_gets_one_line(sandbox: Ports) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    sandbox.ports = tuple(range(1, 5000))
    watch = PortWatch(sandbox, told.put, is_running=lambda: True)
    watch.nudge()
    line = "listening on 1, 2, 3, 4, 5, 6 and 4993 more: /forward 1 shows one to your browser"
    assert told.get(timeout=PATIENCE_S) == line
    watch.close()
    assert told.empty()
    assert sandbox.looked.qsize() == 1


def test_a_dead_sandbox_is_not_brought_back_to_look_at_it(sandbox: Ports) -> None:
    sandbox.close()
    watch = PortWatch(sandbox, print, is_running=lambda: False)
    watch.nudge()
    watch.close()
    assert sandbox.looked.empty()
