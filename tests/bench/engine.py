"""What ohsandbox is compared with: the engine's own API, used the obvious way through docker-py."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any, Self

import docker

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PlainContainer:
    """A container that sleeps, driven by docker-py alone."""

    def __init__(self, image: str) -> None:
        self._client = docker.from_env()
        self._api = self._client.api
        self._container = self._client.containers.run(image, ["sleep", "infinity"], detach=True, network_mode="none")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.remove(force=True, v=True)
        self._client.close()

    def exec_once(self, *argv: str) -> None:
        """One `docker exec`, to its end."""
        self._api.exec_start(self._api.exec_create(self._container.id, list(argv))["Id"])

    def archive_round_trip(self, data: bytes) -> None:
        """Write and read one small file through the archive API."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("bench")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        self._container.put_archive("/tmp", packed.getvalue())
        b"".join(self._container.get_archive("/tmp/bench")[0])

    def _socket(self, *argv: str) -> tuple[Any, str]:
        exec_id = self._api.exec_create(self._container.id, list(argv), stdin=True)["Id"]
        raw = self._api.exec_start(exec_id, socket=True)
        return getattr(raw, "_sock", raw), exec_id

    def raw_read(self, *argv: str) -> int:
        """Bytes that arrive on the hijacked stream, headers and all, as fast as they can be dropped."""
        socket, _ = self._socket(*argv)
        socket.settimeout(None)
        view, total = memoryview(bytearray(1 << 20)), 0
        while count := socket.recv_into(view):
            total += count
        socket.close()
        return total

    def raw_write(self, data: Buffer, *argv: str) -> None:
        """Send data to a process and wait for its end."""
        socket, exec_id = self._socket(*argv)
        socket.settimeout(None)
        socket.sendall(data)
        socket.shutdown(1)
        while socket.recv(1 << 16):
            pass
        while self._api.exec_inspect(exec_id)["Running"]:
            time.sleep(0.001)
        socket.close()


def docker_run_detached(image: str) -> None:
    """`docker run -d` of the command line, and the container's removal (not timed by the caller's clock)."""
    argv = ["docker", "run", "-d", "--network", "none", image, "sleep", "infinity"]
    started = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    _to_remove.append(started)


_to_remove: list[str] = []


def remove_started() -> None:
    """Remove what docker_run_detached started."""
    while _to_remove:
        subprocess.run(["docker", "rm", "-f", "-v", _to_remove.pop()], check=True, capture_output=True)
