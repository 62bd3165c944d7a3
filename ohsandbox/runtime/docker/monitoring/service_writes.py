"""What the services beside a sandbox have written, process by process.

A process of ours in the service's container reads it, so the image's own shell supplies the figures. Of a service
without a shell they are unknown.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.errors import OhsandboxError, UnknownUserError
from ohsandbox.runtime.channel import Stream
from ohsandbox.runtime.docker.channel import DockerChannel, ProcessRequest
from ohsandbox.runtime.docker.monitoring.process_writes import ProcessWrites, parse_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ohsandbox.runtime.docker.container import Container

_SCRIPT = files("ohsandbox.runtime").joinpath("scripts/processes.sh").read_text("utf-8") + "\nohs_written 0"
_TIMEOUT_S = 5.0
_MAX_BYTES = 1024 * 1024
"""Maximum size of the figures of one service: 10,000 processes."""
_AT_ONCE = 4


class Services(NamedTuple):
    """The services of one sandbox."""

    containers: Callable[[], Mapping[str, Container]]
    """Returns those that may run, by name."""
    stop: Callable[[str], None]
    """Stops one for good."""

    def written(self) -> dict[tuple[str, int], ProcessWrites]:
        """Return what each process of each running service has written; pid 0 where a service cannot be asked."""
        containers = self.containers()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            by_service = zip(containers, pool.map(_written, containers.values()), strict=True)
            return {(name, pid): process for name, processes in by_service for pid, process in processes.items()}


def _written(container: Container) -> dict[int, ProcessWrites]:
    try:
        processes = parse_writes(_output(container, "0:0"))
        for user in sorted({process.user for process in processes.values() if process.disk_bytes is None}):
            try:
                more = parse_writes(_output(container, user))
            except UnknownUserError:  # its writes stay unknown
                continue
            processes |= {
                pid: process for pid, process in more.items() if process.disk_bytes is not None and pid in processes
            }
    except (OhsandboxError, OSError):
        try:
            is_running = bool(container.inspect()["State"].get("Running"))
        except OhsandboxError:
            is_running = False
        return {0: ProcessWrites(None, None, None, None, "", "")} if is_running else {}
    # its calls write to connections, too
    return {pid: process._replace(call_bytes=None) for pid, process in processes.items()}


def _output(container: Container, user: str) -> bytes:
    """Return the figures, read as a user; raise OSError for output without end."""
    deadline, output = time.monotonic() + _TIMEOUT_S, b""
    with DockerChannel(container, ProcessRequest(["/bin/sh", "-c", _SCRIPT], user=user)) as channel:
        channel.close_stdin()
        while chunks := channel.read(deadline - time.monotonic()):
            output += b"".join(chunk.data for chunk in chunks if chunk.stream is Stream.STDOUT)
            if len(output) > _MAX_BYTES or time.monotonic() > deadline:
                break
        else:
            if chunks is not None:
                return output
        channel.kill()
    raise TimeoutError
