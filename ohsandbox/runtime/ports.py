"""Ports of a sandbox on this machine and of this machine in a sandbox, for every backend, over `open_channel`."""

from __future__ import annotations

import contextlib
import platform
import secrets
import shlex
from typing import TYPE_CHECKING, cast

from ohsandbox.errors import OhsandboxError, SandboxFileError, SandboxPaused, SandboxUnavailable
from ohsandbox.runtime.aio import waited
from ohsandbox.runtime.port_numbers import LIST_LISTENERS, MAX_LISTENERS_BYTES, parse_listeners
from ohsandbox.runtime.recovery import RecoveringBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.network.tunnel.ports import ExposedPort, Forward, PortConnection, Ports
    from ohsandbox.network.tunnel.tunnel import Tunnel
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.channel import Channel

PLACES = ("/dev/shm", "/var/tmp", "/tmp")  # noqa: S108 - in the sandbox, and below it a directory with a random name
"""Directories where programs can be run in most containers, if not in `Runtime.state_dir`."""


class PortForwarding(RecoveringBackend):
    """Makes the sandbox's servers reachable on this machine, and services of this machine reachable in the sandbox."""

    connector_dir: str | None = None
    """A directory of the sandbox that is kept for the connector's program; None where one has to be found."""
    connector_owner: str | None = None
    """The user who writes the program; None is the sandbox's own."""
    connector_user: str | None = None
    """The user who runs it."""
    connector_made: str | None = None
    """The directory that was made for the connector; it is removed at the end."""
    ports_beside: frozenset[int] = frozenset()
    """Ports of services beside the sandbox, in its network."""
    _ports_made: Ports | None = None
    _on_connection: Callable[[PortConnection], None] | None = None
    """Called after the end of each connection, as `Ports.on_connection` is."""

    def forward(self, port: int, host_port: int = 0) -> Forward:
        """Let programs of this machine reach a server in the sandbox, whatever network the sandbox has.

        Each connection to 127.0.0.1:host_port goes to 127.0.0.1:port in the sandbox, or to [::1]:port where that
        refuses. If no server listens, an HTTP client is told so and any other connection is reset; a server may be
        started later. At most 256 are open at once.

        Args:
            port: of the sandbox.
            host_port: of this machine; 0 takes a free one, which `Forward.port` tells.

        Raises:
            UsageError: a port is invalid, or host_port is taken.
        """
        return self._ports.forward(port, host_port)

    def expose_host(self, port: int) -> ExposedPort:
        """Let programs in the sandbox reach one service of this machine: 127.0.0.1:port inside is 127.0.0.1:port here.

        Raises:
            UsageError: port is invalid, or taken in the sandbox.
            SandboxUnavailable: the sandbox is not usable.
        """
        return self._ports.expose_host(port)

    def listening_ports(self) -> tuple[int, ...]:
        """The TCP ports on which programs of the sandbox listen, on its loopback too, in order; takes 4 ms.

        Those of a proxy, of services of this machine, on which we listen there, and of services beside the sandbox are
        not among them.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        listed = self.snippet(LIST_LISTENERS, limit_bytes=MAX_LISTENERS_BYTES).stdout
        ours = () if self._ports_made is None else self._ports.listening
        return parse_listeners(listed, without={*ours, *self.ports_beside})

    aforward = waited(forward)
    aexpose_host = waited(expose_host)
    alistening_ports = waited(listening_ports)

    @property
    def tunnel(self) -> Tunnel:
        """Connections into and out of the sandbox; its coroutines run in `ohsandbox.network.loop`."""
        return self._ports.tunnel

    @property
    def _ports(self) -> Ports:
        """Made at first use: most sandboxes need no port, and its modules cost a start 20 ms."""
        with self._lock:
            if self._ports_made is None:
                from ohsandbox.network.tunnel.ports import Ports  # noqa: PLC0415

                self._ports_made = Ports(self._open_connector)
                self._ports_made.on_connection = self._on_connection
            return self._ports_made

    def _open_connector(self) -> Channel:
        """See `open_connector`. A sandbox that is dead is not started again for it.

        Raises:
            SandboxPaused: it may be started in a moment, as after a checkpoint.
            SandboxUnavailable: the sandbox is dead.
        """
        if isinstance(loss := self._loss(), SandboxPaused):
            raise loss
        if loss is not None:
            raise SandboxUnavailable(f"The sandbox {self.id[:12]} does not run, so nothing reaches it.") from loss
        return open_connector(cast("Runtime", self))

    def _close_ports(self) -> None:
        if self._ports_made is None:
            return
        self._ports.close()
        made, self.connector_made = self.connector_made, None
        if made is not None:
            with contextlib.suppress(OhsandboxError):
                self.snippet(b"rm -rf -- " + shlex.quote(made).encode(), user=self.connector_owner)


def open_connector(runtime: Runtime) -> Channel:
    """Start the connector in the sandbox.

    Raises:
        SandboxUnavailable: the sandbox cannot run it.
    """
    from ohsandbox.network.programs import program  # noqa: PLC0415 - as `Runtime._ports`

    machine = runtime.snippet(b"uname -m").stdout.decode(errors="replace").strip() or platform.machine()
    if (data := program(machine)) is None:
        raise SandboxUnavailable(
            f"Ports go through a program for x86_64 and aarch64, and this sandbox is {machine[:20]!r}."
        )
    failure = ""
    for directory in _places(runtime):
        path = f"{directory}/connector"
        try:
            runtime.write_bytes(path, data, mode=0o755, user=runtime.connector_owner)
        except SandboxFileError as error:
            failure = str(error)
            continue
        tried = runtime.snippet(f"{shlex.quote(path)} check".encode(), user=runtime.connector_owner)
        if tried.status == "0":
            if directory != runtime.connector_dir:
                runtime.connector_made = directory
            return runtime.open_channel([path], user=runtime.connector_user, workdir="/")
        failure = f"{path} cannot be run: {tried.complaint or tried.stderr.decode(errors='replace')}"
        runtime.snippet(b"rm -rf -- " + shlex.quote(directory).encode(), user=runtime.connector_owner)
    raise SandboxUnavailable(f"The program that carries ports cannot be started in the sandbox: {failure[:200]}")


def _places(runtime: Runtime) -> list[str]:
    """Directories for the program, with new names that nobody in the sandbox can guess."""
    known = runtime.connector_dir or runtime.connector_made
    new = f"ohs-net-{secrets.token_hex(8)}"
    return [*([known] if known else []), *(f"{place}/{new}" for place in (runtime.state_dir, *PLACES))]
