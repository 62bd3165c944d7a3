"""HTTP over an engine's local socket: one pool of connections, and a refused one leaves no open socket behind."""

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
    """docker-py's leaves its socket open where connecting fails."""

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
    """Requests over a local socket share a pool of connections; tunnel is what its other end hangs on.

    docker-py has a pool for each URL, keeps 25, and closes the least used one also while a request of another thread
    comes back to it: of 30 sessions opened at once some failed with an AttributeError of urllib3. Where the tunnel was
    lost, a question that changes nothing is asked again through the next one.
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
        """Connect to nothing yet; on_reconnect is called when the tunnel was made again."""
        super().__init__(parse_host(url), timeout_s, max_pool_size=connections)
        self._tunnel = tunnel
        self._on_reconnect = on_reconnect

    def get_connection(self, url: str, proxies: Any = None) -> Any:  # noqa: ARG002 - the signature of requests
        """The pool, whatever the URL."""
        if self._tunnel is not None and (path := self._tunnel.open()) != self.socket_path:  # it was lost
            self.socket_path = path  # the pool of before, which may be in use, stays whole
            self._on_reconnect()
        with self.pools.lock:
            if (pool := self.pools.get(self.socket_path)) is None:
                pool = _EngineConnectionPool(
                    "http+docker://localhost", self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
                self.pools[self.socket_path] = pool
        return pool

    def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        """As of requests."""
        try:
            return super().send(request, *arguments, **options)
        except ConnectionError:
            if self._tunnel is None or request.method not in {"GET", "HEAD"}:
                raise
            self._tunnel.settle()
            return super().send(request, *arguments, **options)
