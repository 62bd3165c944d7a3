"""Ports on the command line and in the session: `--forward`, `--expose-host`, `/forward`, and their reports."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.port_numbers import PortPair, parse_port_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ohsandbox.cli.options.shared import SandboxOptions
    from ohsandbox.cli.session.run_session import RunSession
    from ohsandbox.cli.session.slash_commands import CommandContext
    from ohsandbox.network.tunnel.ports import Forward
    from ohsandbox.runtime.base import Runtime

USAGE = "/forward [PORT | HOST_PORT:PORT | close PORT]"


class _Open(NamedTuple):
    port: int
    """The port in the sandbox."""
    forward: Forward


class SandboxPorts:
    """The ports that a command has opened into its sandbox and out of it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: list[_Open] = []
        self._exposed: list[int] = []

    @property
    def forwarded(self) -> tuple[int, ...]:
        """Ports of the sandbox that are forwarded to this machine."""
        return tuple(port.port for port in self._open)

    @property
    def pairs(self) -> list[str]:
        """The forwarded ports as `--forward` takes them."""
        return [str(PortPair(port.forward.port, port.port)) for port in self._open]

    @property
    def urls(self) -> list[str]:
        """The addresses of the forwarded ports."""
        return [f"{port.forward.url} ({port.port})" for port in self._open]

    def forward(self, pair: PortPair, *, or_any: bool = False) -> str:
        """Forward a port and return a line with its address; with or_any, use another port here if that one is taken.

        Raises:
            UsageError: the port of this machine cannot be used.
        """
        taken_text = ""
        try:
            forward = self._runtime.forward(pair.port, pair.host_port)
        except UsageError as error:
            if not or_any:
                raise
            forward = self._runtime.forward(pair.port)
            taken_text = f" ({str(error).partition('. ')[0]})"
        self._open.append(_Open(pair.port, forward))
        return f"Port {pair.port} of the sandbox: {forward.url}{taken_text}"

    def expose(self, port: int) -> str:
        """Open a port of this machine to the sandbox, and return a line about it."""
        self._runtime.expose_host(port)
        self._exposed.append(port)
        return f"Port {port} of this machine: 127.0.0.1:{port} in the sandbox"

    def close(self, port: int) -> None:
        """Close the forward from this port of this machine, or else the one to this port of the sandbox.

        Raises:
            UsageError: the port is not forwarded.
        """
        matches = [one for one in self._open if one.forward.port == port] or [
            one for one in self._open if one.port == port
        ]
        if not matches:
            open_ports_text = ", ".join(str(port.forward.port) for port in self._open) or "none"
            raise UsageError(f"Port {port} is not forwarded. Forwarded ports of this machine: {open_ports_text}.")
        for one in matches:
            one.forward.close()
            self._open.remove(one)

    def rows(self) -> list[str]:
        """Return a line for each open port and for each port that is listened on but not forwarded.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        listening = self._runtime.listening_ports()
        rows = [
            f"{port.forward.url}  port {port.port} of the sandbox"
            + ("" if port.port in listening else ", where nothing listens yet")
            for port in self._open
        ]
        rows += [f"127.0.0.1:{port} in the sandbox  port {port} of this machine" for port in self._exposed]
        if others := [str(port) for port in listening if port not in self.forwarded]:
            rows.append(f"listening, not forwarded: {', '.join(others)}")
        return rows or ["Nothing listens in the sandbox, and nothing is forwarded. /forward 3000 forwards a port."]


def open_ports(runtime: Runtime, where: SandboxOptions, tell: Callable[[str], None], *, or_any: bool) -> SandboxPorts:
    """Open the ports that the options name and report their addresses. or_any: see `SandboxPorts.forward`.

    With or_any, failures are reported and not raised. Ports of the settings are always opened that way.

    Raises:
        UsageError: a port cannot be used, and or_any is False.
    """
    ports, or_any = SandboxPorts(runtime), or_any or where.any_port
    if not runtime.isolated:
        return ports
    requests = [partial(ports.forward, parse_port_pair(text), or_any=or_any) for text in where.forward or ()]
    requests += [partial(ports.expose, port) for port in where.expose_host or ()]
    named_pairs = {*(where.forward or ())}  # of the flags, or of what is resumed
    of_project = [pair for pair in where.project.forward if pair not in named_pairs]
    opening = [(request, or_any) for request in requests]
    opening += [(partial(ports.forward, parse_port_pair(text), or_any=True), True) for text in of_project]
    for request, may_fail in opening:
        try:
            tell(request())
        except OhsandboxError as error:
            if not may_fail:
                raise
            tell(str(error))
    return ports


@contextlib.contextmanager
def opened_ports(runtime: Runtime, where: SandboxOptions, tell: Callable[[str], None]) -> Iterator[None]:
    """Open the ports that the options name for a command without questions; they close with the sandbox."""
    open_ports(runtime, where, tell, or_any=False)
    yield


# --- /forward ---------------------------------------------------------------------------------------


def forward_command(context: CommandContext, arguments: Sequence[str]) -> None:
    """Show the forwarded ports, forward a port, or close one."""
    session = context.session
    if not session.runtime.isolated:
        raise UsageError(
            f"Nothing is to be forwarded: the agent's programs run on {session.runtime.machine} itself. "
            "Use their ports directly."
        )
    match [*arguments]:
        case []:
            context.show(Text("\n").join(map(Text, session.sandbox.ports.rows())))
        case ["close", port]:
            session.sandbox.close_forward(parse_port_pair(port).host_port)
            context.show(f"Port {port} is closed.")
        case [port] if port != "close":
            # an explicit port of this machine was asked for; without one the same is only the first choice
            context.show(session.sandbox.forward(parse_port_pair(port), or_any=":" not in port))
        case _:
            raise UsageError(f"Invalid arguments {' '.join(arguments)!r}. Usage: {USAGE}")


def port_words(session: RunSession) -> list[str]:
    """Return the completions of `/forward`."""
    with contextlib.suppress(OhsandboxError):
        listening = [port for port in session.runtime.listening_ports() if port not in session.sandbox.ports.forwarded]
        return ["close", *map(str, listening)]
    return ["close"]


# --- what begins to listen ------------------------------------------------------------------------

LOOKS_S = (0.3, 1.0, 3.0)
"""Delays in seconds after a call began or ended: a server needs a moment to start. A check takes 5 ms."""
SLOW_S = 3.0
"""Seconds between checks while the agent works."""
CLOSE_S = 1.0
"""How long, in seconds, the end waits for a check; only a hanging sandbox takes longer."""
MAX_TOLD = 64
"""Number of ports that are reported; after that the sandbox is not checked any more."""
_MAX_IN_A_LINE = 6
_FIRST_EPHEMERAL = 32768
"""First port that the kernel chooses by itself (ip_local_port_range); such ports are not reported."""


class PortWatch:
    """Checks the sandbox's ports in a thread of its own while the agent works, and for a moment after each call.

    Without calls there are no checks.
    """

    def __init__(
        self,
        runtime: Runtime,
        tell: Callable[[str], None],
        *,
        is_running: Callable[[], bool],
        forwarded: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Start nothing yet.

        Args:
            runtime: a running sandbox.
            tell: is called with a line, in the watch's thread.
            is_running: returns whether calls may be running, so that checks continue.
            forwarded: ports that need no report.
        """
        self._runtime, self._tell, self._is_running, self._forwarded = runtime, tell, is_running, forwarded
        self._told: set[int] = set()
        self._looks: list[float] = []
        """Monotonic times of the next checks."""
        self._changed = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def nudge(self) -> None:
        """Schedule checks after a call began or ended, since it may have started a server."""
        now = time.monotonic()
        with self._changed:
            self._looks = [now + later for later in LOOKS_S]
            self._changed.notify()
            if self._thread is None and not self._is_over:
                self._thread = threading.Thread(target=self._watch, name="ohsandbox-ports", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop checking, and wait for a check in progress if the sandbox answers."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _watch(self) -> None:
        while self._is_due():
            with contextlib.suppress(OhsandboxError):  # who uses the sandbox is told, in words
                if self._runtime.is_alive():  # a dead one is brought back by who uses it
                    self.look()

    def _is_due(self) -> bool:
        """Wait for the next check; return False if there is none."""
        with self._changed:
            while not self._is_over and len(self._told) < MAX_TOLD:
                now = time.monotonic()
                if not self._looks and self._is_running():
                    self._looks = [now + SLOW_S]
                if self._looks and self._looks[0] <= now:
                    self._looks = [look_at for look_at in self._looks if look_at > now]
                    return True
                self._changed.wait(self._looks[0] - now if self._looks else None)
        return False

    def look(self) -> None:
        """Report new listening ports.

        Raises:
            SandboxUnavailable: the sandbox did not answer.
        """
        new_ports = [
            port for port in self._runtime.listening_ports() if port < _FIRST_EPHEMERAL and port not in self._told
        ]
        self._told.update(new_ports)
        ports = [port for port in new_ports if port not in self._forwarded()]
        if ports and not self._is_over:
            self._tell(listening_line(ports))


def listening_line(ports: Collection[int]) -> str:
    """Describe ports on which a program has begun to listen."""
    first, *_ = ports
    if len(ports) == 1:
        return f"listening on {first}: /forward {first} shows it to your browser"
    shown = ", ".join(map(str, [*ports][:_MAX_IN_A_LINE]))
    more = f" and {len(ports) - _MAX_IN_A_LINE} more" if len(ports) > _MAX_IN_A_LINE else ""
    return f"listening on {shown}{more}: /forward {first} shows one to your browser"
