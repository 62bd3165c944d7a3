"""Ports as a person has them: `--forward`, `--expose-host`, `/forward`, and what is told of them."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.port_numbers import PortPair, parse_port_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ohsandbox.cli.options import SandboxOptions
    from ohsandbox.cli.session import RunSession
    from ohsandbox.cli.slash_commands import CommandContext
    from ohsandbox.network.tunnel.ports import Forward
    from ohsandbox.runtime.base import Runtime

USAGE = "/forward [PORT | HOST_PORT:PORT | close PORT]"


class _Open(NamedTuple):
    port: int
    """In the sandbox."""
    forward: Forward


class SandboxPorts:
    """The ports that a command has opened into its sandbox and out of it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: list[_Open] = []
        self._exposed: list[int] = []

    @property
    def forwarded(self) -> tuple[int, ...]:
        """Ports of the sandbox that this machine reaches."""
        return tuple(one.port for one in self._open)

    @property
    def pairs(self) -> list[str]:
        """What is forwarded, as `--forward` takes it."""
        return [str(PortPair(one.forward.port, one.port)) for one in self._open]

    @property
    def urls(self) -> list[str]:
        """Where what is forwarded is reached."""
        return [f"{one.forward.url} ({one.port})" for one in self._open]

    def forward(self, pair: PortPair, *, or_any: bool = False) -> str:
        """Open it, and return the line that tells where; or_any takes another port here if that one cannot be had.

        Raises:
            UsageError: the port of this machine cannot be had.
        """
        taken = ""
        try:
            forward = self._runtime.forward(pair.port, pair.host_port)
        except UsageError as error:
            if not or_any:
                raise
            forward = self._runtime.forward(pair.port)
            taken = f" ({str(error).partition('. ')[0]})"
        self._open.append(_Open(pair.port, forward))
        return f"Port {pair.port} of the sandbox: {forward.url}{taken}"

    def expose(self, port: int) -> str:
        """Open a port of this machine to the sandbox, and return the line that tells of it."""
        self._runtime.expose_host(port)
        self._exposed.append(port)
        return f"Port {port} of this machine: 127.0.0.1:{port} in the sandbox"

    def close(self, port: int) -> None:
        """Close what leads from this port of this machine, or else to this port of the sandbox.

        Raises:
            UsageError: nothing does.
        """
        found = [one for one in self._open if one.forward.port == port] or [
            one for one in self._open if one.port == port
        ]
        if not found:
            known = ", ".join(str(one.forward.port) for one in self._open) or "none"
            raise UsageError(f"Port {port} is not forwarded. Forwarded ports of this machine: {known}.")
        for one in found:
            one.forward.close()
            self._open.remove(one)

    def rows(self) -> list[str]:
        """What is open, and what listens and is not forwarded, a line each.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        listening = self._runtime.listening_ports()
        rows = [
            f"{one.forward.url}  port {one.port} of the sandbox"
            + ("" if one.port in listening else ", where nothing listens yet")
            for one in self._open
        ]
        rows += [f"127.0.0.1:{port} in the sandbox  port {port} of this machine" for port in self._exposed]
        if others := [str(port) for port in listening if port not in self.forwarded]:
            rows.append(f"listening, not forwarded: {', '.join(others)}")
        return rows or ["Nothing listens in the sandbox, and nothing is forwarded. /forward 3000 forwards a port."]


def open_ports(runtime: Runtime, where: SandboxOptions, tell: Callable[[str], None], *, or_any: bool) -> SandboxPorts:
    """Open what the options name, and tell where. or_any: see `SandboxPorts.forward`; what still fails is told.

    What the settings name is opened so in any case.

    Raises:
        UsageError: a port cannot be had, unless or_any.
    """
    ports, or_any = SandboxPorts(runtime), or_any or where.any_port
    if not runtime.isolated:
        return ports
    asked = [partial(ports.forward, parse_port_pair(text), or_any=or_any) for text in where.forward or ()]
    asked += [partial(ports.expose, port) for port in where.expose_host or ()]
    named = {*(where.forward or ())}  # of the flags, or of what is resumed
    of_project = [one for one in where.project.forward if one not in named]
    opening = [(one, or_any) for one in asked]
    opening += [(partial(ports.forward, parse_port_pair(text), or_any=True), True) for text in of_project]
    for one, may_fail in opening:
        try:
            tell(one())
        except OhsandboxError as error:
            if not may_fail:
                raise
            tell(str(error))
    return ports


@contextlib.contextmanager
def opened_ports(runtime: Runtime, where: SandboxOptions, tell: Callable[[str], None]) -> Iterator[None]:
    """Have open what the options name, for a command that asks nothing: they close with the sandbox."""
    open_ports(runtime, where, tell, or_any=False)
    yield


# --- /forward ---------------------------------------------------------------------------------------


def forward_command(context: CommandContext, arguments: Sequence[str]) -> None:
    """Show what is forwarded, forward a port, or close one."""
    session = context.session
    if not session.runtime.isolated:
        raise UsageError("Nothing is to be forwarded: the agent's programs run on this machine itself.")
    match [*arguments]:
        case []:
            context.show(Text("\n").join(map(Text, session.sandbox.ports.rows())))
        case ["close", port]:
            session.close_forward(parse_port_pair(port).host_port)
            context.show(f"Port {port} is closed.")
        case [port] if port != "close":
            # an explicit port of this machine was asked for; without one the same is only the first choice
            context.show(session.forward(parse_port_pair(port), or_any=":" not in port))
        case _:
            raise UsageError(f"Invalid arguments {' '.join(arguments)!r}. Usage: {USAGE}")


def port_words(session: RunSession) -> list[str]:
    """What `/forward` can be given."""
    with contextlib.suppress(OhsandboxError):
        listening = [port for port in session.runtime.listening_ports() if port not in session.sandbox.ports.forwarded]
        return ["close", *map(str, listening)]
    return ["close"]
