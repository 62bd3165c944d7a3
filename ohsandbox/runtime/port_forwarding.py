"""Ports of a sandbox on this machine, and of this machine in a sandbox, for all backends, over `open_channel`."""

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
"""Directories from which programs can be run in most containers, if not from `Runtime.state_dir`."""


class PortForwarding(RecoveringBackend):
    """Makes the sandbox's servers reachable on this machine, and services of this machine reachable in the sandbox."""

    connector_dir: str | None = None
    """Directory of the sandbox for the connector's program; None if one has to be found."""
    connector_owner: str | None = None
    """The user that writes the program; None is the sandbox's own."""
    connector_user: str | None = None
    """The user that runs it; None is the sandbox's own."""
    connector_made: str | None = None
    """The directory that was created for the program; it is removed at the end."""
    ports_beside: frozenset[int] = frozenset()
    """Ports of services beside the sandbox, in its network namespace."""
    _ports_made: Ports | None = None
    _on_connection: Callable[[PortConnection], None] | None = None
    """Called after the end of each connection; see `Ports`."""

    def forward(self, port: int, host_port: int = 0) -> Forward:
        """Make a server in the sandbox reachable for programs of this machine, whatever network the sandbox has.

        Each connection to 127.0.0.1:host_port leads to 127.0.0.1:port in the sandbox, or to [::1]:port if that refuses.
        If no server listens, an HTTP client gets an answer that says so, and other connections are reset; a server may
        be started later. At most 256 connections are open at once.

        Args:
            port: the port in the sandbox.
            host_port: the port of this machine; 0 takes a free one, which is `Forward.port`.

        Raises:
            UsageError: a port is invalid, or host_port is taken.
        """
        return self._ports.forward(port, host_port)

    def expose_host(self, port: int) -> ExposedPort:
        """Make a service of this machine reachable for programs in the sandbox: 127.0.0.1:port inside leads to it here.

        Raises:
            UsageError: port is invalid, or taken in the sandbox.
            SandboxUnavailable: the sandbox is not usable.
        """
        return self._ports.expose_host(port)

    def listening_ports(self) -> tuple[int, ...]:
        """Return the TCP ports on which programs of the sandbox listen, also on loopback, sorted; takes 4 ms.

        Ports on which ohsandbox itself listens there (the proxy, exposed services of this machine) and those of
        services beside the sandbox are left out.

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
        """The ports, created at first use: most sandboxes need none, and the import takes 20 ms."""
        with self._lock:
            if self._ports_made is None:
                from ohsandbox.network.tunnel.ports import Ports  # noqa: PLC0415 - most runtimes forward no port

                self._ports_made = Ports(self._open_connector, self._on_connection)
            return self._ports_made

    def _open_connector(self) -> Channel:
        """Start the connector as `open_connector` does; a dead sandbox is not started again for it.

        Raises:
            SandboxPaused: the sandbox is paused, perhaps only for a checkpoint.
            SandboxUnavailable: the sandbox is dead, or cannot run the connector.
        """
        if isinstance(loss := self._loss(), SandboxPaused):
            raise loss
        if loss is not None:
            raise SandboxUnavailable(f"The sandbox {self.id[:12]} is not running; its ports are unreachable.") from loss
        channel, directory = open_connector(cast("Runtime", self))
        self.connector_made = None if directory == self.connector_dir else directory
        return channel

    def _close_ports(self) -> None:
        if self._ports_made is None:
            return
        self._ports.close()
        connector, self.connector_made = self.connector_made, None
        if connector is not None:
            with contextlib.suppress(OhsandboxError):
                _remove(cast("Runtime", self), connector)


def open_connector(runtime: Runtime) -> tuple[Channel, str]:
    """Start the connector in the sandbox; return its channel, and the directory of its program.

    Raises:
        SandboxUnavailable: the sandbox cannot run it.
    """
    from ohsandbox.network.programs import program  # noqa: PLC0415 - most runtimes forward no port

    machine = runtime.snippet(b"uname -m").stdout.decode(errors="replace").strip() or platform.machine()
    if (data := program(machine)) is None:
        raise SandboxUnavailable(
            f"Ports need a program that exists for x86_64 and aarch64, and this sandbox has {machine[:20]!r}."
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
            try:
                return runtime.open_channel([path], user=runtime.connector_user, workdir="/"), directory
            except BaseException:
                if directory != runtime.connector_dir:
                    with contextlib.suppress(OhsandboxError):
                        _remove(runtime, directory)
                raise
        failure = f"{path} cannot be run: {tried.complaint or tried.stderr.decode(errors='replace')}"
        _remove(runtime, directory)
    raise SandboxUnavailable(f"The program that carries ports cannot be started in the sandbox: {failure[:200]}")


def _remove(runtime: Runtime, directory: str) -> None:
    runtime.snippet(b"rm -rf -- " + shlex.quote(directory).encode(), user=runtime.connector_owner)


def _places(runtime: Runtime) -> list[str]:
    """Return directories for the program, with new names that nobody in the sandbox can guess."""
    connector = runtime.connector_dir or runtime.connector_made
    new = f"ohs-net-{secrets.token_hex(8)}"
    return [*([connector] if connector else []), *(f"{parent}/{new}" for parent in (runtime.state_dir, *PLACES))]
