"""Ports: what listens in the sandbox is reached here, and what is named here is reached there."""
# ruff: noqa: S101, D103 - cases are tests: their names are sentences

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.runtime.base import Runtime


@contextlib.contextmanager
def _echo_server() -> Iterator[int]:
    """A server of this machine that sends back all that one client sends; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as peer:
                while data := peer.recv(65536):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])


def a_service_of_the_host_is_reached_inside_and_a_port_inside_is_reached_here(runtime: Runtime) -> None:
    data = os.urandom(1024 * 1024)
    with _echo_server() as port, contextlib.ExitStack() as stack:
        with contextlib.suppress(UsageError):  # taken: the sandbox has this machine's ports
            stack.enter_context(runtime.expose_host(port))
        forward = stack.enter_context(runtime.forward(port))
        with socket.create_connection(("127.0.0.1", forward.port)) as peer:

            def send() -> None:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            heard = b""
            while piece := peer.recv(65536):
                heard += piece
            sender.join()
    assert heard == data
