"""A proxy before an engine's socket that changes what containers are made of: a stand-in for a lax engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENGINE = os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or "/var/run/docker.sock"


class LaxProxy:
    """Listens at `host`; every body of POST /containers/create goes through `change` first."""

    def __init__(self, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        self.host = f"unix://{path}"
        self._change = change
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        with client, engine, contextlib.suppress(OSError):
            engine.connect(ENGINE)
            back = threading.Thread(target=_copy, args=(engine, client), daemon=True)
            back.start()
            while (request := self._request(client)) is not None:
                engine.sendall(request)
                if b"upgrade:" in request.lower():
                    break
            _copy(client, engine)
            back.join()

    def _request(self, client: socket.socket) -> bytes | None:
        """The next request, changed where it makes a container."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (byte := client.recv(1)):
                return None
            head += byte
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        body = b""
        while length and len(body) < int(length[1]):
            body += client.recv(65536)
        if b"/containers/create" in head.splitlines()[0]:
            made = json.loads(body)
            self._change(made)
            body = json.dumps(made).encode()
            head = re.sub(rb"(?i)content-length: *\d+", b"Content-Length: %d" % len(body), head)
        return head + body


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
