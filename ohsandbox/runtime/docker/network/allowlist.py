"""The allowlist of one sandbox: policy, log and proxy in this process; inside is only the connector.

Imported at first use: what it needs costs a start 40 ms.
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
from ohsandbox.network.loop import get_loop, run
from ohsandbox.network.policy import NetworkPolicy
from ohsandbox.network.proxy.proxy import Proxy
from ohsandbox.runtime.docker.network.proxy_variables import PROXY_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from ohsandbox.network.audit import NetworkDecision
    from ohsandbox.network.proxy.proxy import Interceptor
    from ohsandbox.network.tunnel.tunnel import Tunnel

log = logging.getLogger(__name__)

_READY_S = 5.0
"""How long the first process waits for the connector; it starts beside that process, and takes some 0.1 s."""
PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Before the connector is started again where it could not be, the first time and at most."""


class Allowlist:
    """What one sandbox may reach. This process decides everything: without it, nothing is reached."""

    def __init__(
        self,
        rules: Iterable[str],
        *,
        name: str,
        listener: Callable[[NetworkDecision], None],
        interceptor: Interceptor | None = None,
    ) -> None:
        """Begin nothing yet.

        Args:
            rules: see `NetworkPolicy`.
            name: of the file of decisions: the conversation's id, or the container's name.
            listener: is told of each decision, in the thread of the proxy.
            interceptor: adds credentials to requests to their hosts.

        Raises:
            UsageError: a rule is none.
        """
        self.policy = NetworkPolicy(rules)
        self._listener = listener
        self._interceptor = interceptor
        self._tunnel: Tunnel | None = None
        self._listening: Future[None] | None = None
        self._over = asyncio.Event()
        self._tried = threading.Event()
        """Set once the connector listens, or was tried to."""
        self._proxies: list[Proxy] = []
        self.record_as(name)

    def record_as(self, name: str) -> None:
        """From now on decisions are kept under this name; those about connections that are open, under the old one."""
        self.audit = AuditLog(name)
        self.audit.on_decision(self._listener)
        self._proxies.append(Proxy(self.policy, self.audit, interceptor=self._interceptor))

    def begin(self, tunnel: Tunnel) -> None:
        """Have the connector listen inside, in the background. Twice is fine."""
        if tunnel is self._tunnel:
            return
        self._tunnel = tunnel
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(tunnel), get_loop())

    async def _listen(self, tunnel: Tunnel) -> None:
        """Listen, at the first attempt or a later one: a sandbox may be paused just now, as for a checkpoint."""
        pause_s = PAUSE_S
        while tunnel is self._tunnel:
            is_paused = False  # nothing runs inside meanwhile, so whoever waits for us may wait on
            try:
                await tunnel.listen(PROXY_PORT, self._serve)
            except (OhsandboxError, OSError) as error:
                is_paused = isinstance(error, SandboxPaused)
                log.info("the allowlist is not served in the sandbox yet: %s", error)
            else:
                if tunnel is not self._tunnel:  # ended meanwhile
                    await tunnel.unlisten(PROXY_PORT)
                return
            finally:
                if not is_paused:
                    self._tried.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def restart(self) -> None:
        """The connector was killed, as with all processes: who starts a program from now on waits for it again."""
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
        """A connection to the proxy for a program of this process that asks in the sandbox's name."""
        near, far = socket.socketpair()
        asyncio.run_coroutine_threadsafe(self._serve_socket(far), get_loop())
        return near

    async def _serve_socket(self, far: socket.socket) -> None:
        await self._serve(*await asyncio.open_connection(sock=far))

    @property
    def is_beginning(self) -> bool:
        """The connector is being started for the first time."""
        return self._tunnel is not None and not self.was_tried

    @property
    def was_tried(self) -> bool:
        """The connector listens, or cannot now."""
        return self._tried.is_set()

    def wait(self) -> None:
        """Return once the connector listens, or cannot now: programs inside are refused a connection then."""
        self._tried.wait(_READY_S)

    def close(self) -> None:
        """Serve nothing more, and end every connection."""
        run(self._end())
        self.audit.close()

    async def _end(self) -> None:
        tunnel, self._tunnel = self._tunnel, None
        self._over.set()
        if tunnel is not None and self._listening is not None:
            # the connector may be starting just now: whoever listens next finds the port free
            await asyncio.wait({asyncio.wrap_future(self._listening)}, timeout=_READY_S)
            await tunnel.unlisten(PROXY_PORT)
        for proxy in self._proxies:
            proxy.close()
