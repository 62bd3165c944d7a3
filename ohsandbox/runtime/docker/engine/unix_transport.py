"""HTTP over an engine's local socket, with one pool of connections and without leaking sockets on failure."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool
from docker.utils import parse_host
from requests.exceptions import ConnectionError  # noqa: A004

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.runtime.docker.engine.ssh_tunnel import SshTunnel


class _EngineConnection(UnixHTTPConnection):  # type: ignore[misc,unused-ignore]
    """A connection that closes its socket if connecting fails; docker-py's leaves it open."""

    unix_socket: str
    timeout: float | None

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _EngineConnectionPool(UnixHTTPConnectionPool):  # type: ignore[misc,unused-ignore]
    def _new_conn(self) -> _EngineConnection:
        return _EngineConnection(self.base_url, self.socket_path, self.timeout)


class OnePoolAdapter(UnixHTTPAdapter):  # type: ignore[misc,unused-ignore]
    """Sends requests over a local socket from one pool; tunnel is the connection to which the socket leads, if any.

    docker-py has a pool for each URL, keeps 25, and closes the least recently used one even while another thread's
    request returns to it: of 30 sessions opened at once some failed with an AttributeError of urllib3. If the tunnel
    was lost, a request that changes nothing is repeated through a new one.
    """

    socket_path: str

    def __init__(
        self,
        url: str,
        timeout_s: float,
        connections: int,
        *,
        tunnel: SshTunnel | None,
        on_reconnect: Callable[[], None],
    ) -> None:
        """Store the arguments without connecting; on_reconnect is called when the tunnel was restored."""
        super().__init__(parse_host(url), timeout_s, max_pool_size=connections)
        self._tunnel = tunnel
        self._on_reconnect = on_reconnect

    def get_connection(self, url: str, proxies: Any = None) -> Any:  # noqa: ARG002 - the signature of requests
        """Return the one pool, whatever the URL."""
        if self._tunnel is not None and (path := self._tunnel.open()) != self.socket_path:  # the tunnel was lost
            self.socket_path = path  # the earlier pool, which may be in use, stays unchanged
            self._on_reconnect()
        with self.pools.lock:
            if (pool := self.pools.get(self.socket_path)) is None:
                pool = _EngineConnectionPool(
                    "http+docker://localhost", self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
                self.pools[self.socket_path] = pool
        return pool

    def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        """Send a request; see `requests.adapters.HTTPAdapter.send`."""
        try:
            return super().send(request, *arguments, **options)
        except ConnectionError:
            if self._tunnel is None or request.method not in {"GET", "HEAD"}:
                raise
            self._tunnel.settle()
            return super().send(request, *arguments, **options)
