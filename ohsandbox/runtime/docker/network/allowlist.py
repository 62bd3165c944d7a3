"""The allowlist of one sandbox: this process holds policy, log and proxy; the sandbox runs only the connector.

This module is imported at first use, because its imports take 40 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING

from ohsandbox.errors import OhsandboxError, SandboxPaused
from ohsandbox.network.audit import AuditLog
from ohsandbox.network.loop import get_loop, run_in_loop
from ohsandbox.network.policy import NetworkPolicy
from ohsandbox.network.proxy.proxy import Proxy
from ohsandbox.runtime.port_numbers import PROXY_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.network.proxy.proxy import Interceptor
    from ohsandbox.network.tunnel.tunnel import Tunnel

log = logging.getLogger(__name__)

_READY_S = 5.0
"""Seconds that the first process waits for the connector, which starts at the same time and takes about 0.1 s."""
PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Pause in seconds before another attempt to start the connector: after the first failure, and the maximum."""


class Allowlist:
    """The hosts that one sandbox may reach; this process serves them, and without it nothing is reachable."""

    def __init__(
        self,
        rules: Iterable[str],
        *,
        name: str,
        listener: Callable[[NetworkDecision], None],
        interceptor: Interceptor | None = None,
    ) -> None:
        """Create the allowlist without starting anything.

        Args:
            rules: see `NetworkPolicy`.
            name: name of the decision log file: the conversation's id, or the container's name.
            listener: called with each decision, in the proxy's thread.
            interceptor: adds credentials to requests to their hosts.

        Raises:
            UsageError: a rule is invalid.
        """
        self.policy = NetworkPolicy(rules)
        self._listener = listener
        self._interceptor = interceptor
        self._tunnel: Tunnel | None = None
        self._listening: Future[None] | None = None
        self._over = asyncio.Event()
        self._tried = threading.Event()
        """Set once the connector listens or an attempt to start it has failed."""
        self._proxies: list[Proxy] = []
        self.record_as(name)

    def record_as(self, name: str) -> None:
        """Log new decisions under this name; open connections keep the old one."""
        self.audit = AuditLog(name)
        self.audit.on_decision(self._listener)
        self._proxies.append(Proxy(self.policy, self.audit, interceptor=self._interceptor))

    def begin(self, tunnel: Tunnel) -> None:
        """Start the connector in the sandbox, in the background; idempotent."""
        if tunnel is self._tunnel:
            return
        self._tunnel = tunnel
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(tunnel), get_loop())

    async def _listen(self, tunnel: Tunnel) -> None:
        """Start the connector, with retries: the sandbox may be paused, for example for a checkpoint."""
        pause_s = PAUSE_S
        while tunnel is self._tunnel:
            is_paused = False  # nothing runs in a paused sandbox, so callers of `wait` can keep waiting
            try:
                await tunnel.listen(PROXY_PORT, self._serve)
            except (OhsandboxError, OSError) as error:
                is_paused = isinstance(error, SandboxPaused)
                log.info("the allowlist is not served in the sandbox yet: %s", error)
            else:
                if tunnel is not self._tunnel:  # the tunnel was replaced or closed meanwhile
                    await tunnel.unlisten(PROXY_PORT)
                return
            finally:
                if not is_paused:
                    self._tried.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def restart(self) -> None:
        """Start the connector again after all processes were killed; programs that start after this wait for it."""
        if self._tunnel is not None and self.was_tried:
            self._tried.clear()
            asyncio.run_coroutine_threadsafe(self._restart(self._tunnel), get_loop())

    async def _restart(self, tunnel: Tunnel) -> None:
        try:
            await asyncio.wait_for(tunnel.restart(), _READY_S)
        except TimeoutError:
            log.info("the allowlist is not served in the sandbox again within %g s", _READY_S)
        finally:
            self._tried.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._proxies[-1].serve(reader, writer)

    def connect(self) -> socket.socket:
        """Return a connection to the proxy, for code of this process that makes requests for the sandbox."""
        near, far = socket.socketpair()
        asyncio.run_coroutine_threadsafe(self._serve_socket(far), get_loop())
        return near

    async def _serve_socket(self, far: socket.socket) -> None:
        await self._serve(*await asyncio.open_connection(sock=far))

    @property
    def is_beginning(self) -> bool:
        """Whether the connector is being started for the first time."""
        return self._tunnel is not None and not self.was_tried

    @property
    def was_tried(self) -> bool:
        """Whether the connector listens, or could not be started."""
        return self._tried.is_set()

    def wait(self) -> None:
        """Wait until the connector listens or an attempt to start it has failed, at most _READY_S seconds."""
        self._tried.wait(_READY_S)

    def close(self) -> None:
        """Stop serving, and end all connections."""
        run_in_loop(self._end())
        self.audit.close()

    async def _end(self) -> None:
        tunnel, self._tunnel = self._tunnel, None
        self._over.set()
        if tunnel is not None and self._listening is not None:
            # the connector may be starting just now: its port must be free for the next one
            await asyncio.wait({asyncio.wrap_future(self._listening)}, timeout=_READY_S)
            await tunnel.unlisten(PROXY_PORT)
        for proxy in self._proxies:
            proxy.close()
