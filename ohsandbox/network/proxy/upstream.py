"""Connections to hosts: a name is resolved once, all its addresses are checked, and one of them is used."""

from __future__ import annotations

import asyncio
import base64
import socket
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import h11

from ohsandbox.errors import UsageError
from ohsandbox.network.addresses import address_problem, is_this_machine
from ohsandbox.network.loop import in_daemon_thread
from ohsandbox.network.tls import client_context
from ohsandbox.network.user_proxies import proxy_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Resolver: TypeAlias = Callable[[str, int], Awaitable["Sequence[str]"]]
"""Resolves name and port to addresses; raises OSError if there are none."""
Connector: TypeAlias = Callable[[str, int], Awaitable[Streams]]
"""Connects to an address (or an upstream proxy's name) and port; raises OSError on failure."""

BUFFER_BYTES = 128 * 1024
"""Size of a connection's buffer in each direction."""
CONNECT_TIMEOUT_S = 20.0
"""Time limit for resolving, for connecting to each address, and for the answer of the user's proxy."""
_MAX_ADDRESSES = 8
"""Maximum number of addresses to try, one after the other."""
_RESOLUTIONS = 32
"""Maximum number of concurrent resolutions, each in a thread: the sandbox can ask for any name below a wildcard."""
_MAX_HEAD_BYTES = 16 * 1024


class UpstreamError(ConnectionError):
    """No connection was made; `str(error)` is a predicate whose subject is the host.

    Attributes:
        refused: whether the connection is forbidden; otherwise it failed.
        kind: the error type of RFC 9209 (`destination_ip_prohibited`, `dns_error`, ...).
    """

    def __init__(self, message: str, *, kind: str, refused: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.refused = refused


@dataclass(frozen=True)
class UpstreamProxy:
    """The user's own proxy.

    Attributes:
        host: its name or address.
        port: its port.
        tls: whether the connection to it uses TLS (`https://`).
        authorization: value of `Proxy-Authorization`; "" for none. Secret.
    """

    host: str
    port: int
    tls: bool = False
    authorization: str = ""

    def __repr__(self) -> str:
        return f"UpstreamProxy({self.host!r}, {self.port}, tls={self.tls})"


def proxy_of(url: str) -> UpstreamProxy:
    """Return the proxy that a variable such as HTTPS_PROXY names.

    Raises:
        UpstreamError: it is not an http or https proxy.
    """
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise UpstreamError(
            "is behind your own proxy, whose URL is not an http:// or https:// one", kind="proxy_configuration_error"
        )
    account = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    authorization = "" if parts.username is None else f"Basic {base64.b64encode(account.encode()).decode()}"
    tls = parts.scheme == "https"
    return UpstreamProxy(parts.hostname, port or (443 if tls else 80), tls, authorization)


async def resolved(host: str, port: int) -> Sequence[str]:
    """Return the addresses that this machine's resolver returns, in its order; raise OSError if there are none.

    It runs in a thread, so that slow names delay neither other sandboxes nor the program's exit.
    """
    answers = await in_daemon_thread(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), "ohsandbox-resolver"
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


class MeteredReader(asyncio.StreamReader):
    """A reader that counts received bytes, after `start_tls` the decrypted ones."""

    meter: Callable[[int], None] = staticmethod(lambda _: None)

    def feed_data(self, data: Any) -> None:
        """Accept data that arrived."""
        self.meter(len(data))
        super().feed_data(data)


class MeteredWriter(asyncio.StreamWriter):
    """A writer that counts sent bytes, after `start_tls` those before encryption."""

    meter: Callable[[int], None] = staticmethod(lambda _: None)

    def write(self, data: Any) -> None:
        """Send data."""
        self.meter(len(data))
        super().write(data)


async def connected(address: str, port: int) -> Streams:
    """Open a TCP connection to an address, with counting streams."""
    loop = asyncio.get_running_loop()
    reader = MeteredReader(limit=BUFFER_BYTES, loop=loop)
    transport, protocol = await loop.create_connection(lambda: asyncio.StreamReaderProtocol(reader), address, port)
    return reader, MeteredWriter(transport, protocol, reader, loop)


class Dialer:
    """Opens the connections of one proxy.

    Args:
        resolve: resolves a name to addresses.
        connect: connects to an address.
        proxies: URLs of the user's own proxies by scheme (`http`, `https`, `all`), and the hosts to reach directly
            (`no`); None reads the environment as urllib does. A proxy resolves names itself, so no address can be
            checked here.
    """

    def __init__(
        self,
        *,
        resolve: _Resolver = resolved,
        connect: Connector = connected,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        self._resolve = resolve
        self._connect = connect
        self._resolving = asyncio.Semaphore(_RESOLUTIONS)
        self._proxies = dict(urllib.request.getproxies() if proxies is None else proxies)

    def proxy_for(self, host: str, *, scheme: str) -> UpstreamProxy | None:
        """Return the user's proxy for a host; None if it is reached directly.

        Raises:
            UpstreamError: the proxy's URL is invalid or has another scheme than http and https.
        """
        url = proxy_url(scheme, host, self._proxies)
        return None if url is None else proxy_of(url)

    async def open(self, host: str, port: int, *, private: bool) -> Streams:
        """Open a connection to a checked address of host, or a tunnel to host through the user's proxy.

        Raises:
            UpstreamError: no connection could be made.
        """
        if (proxy := self.proxy_for(host, scheme="https")) is not None:
            return await self._through(proxy, host, port)
        return await self._direct(host, port, private=private)

    async def open_http(self, host: str, port: int, *, private: bool) -> tuple[Streams, UpstreamProxy | None]:
        """Open a connection for plain requests to the host, or to the user's proxy, which is returned with it.

        Raises:
            UpstreamError: no connection could be made.
        """
        if (proxy := self.proxy_for(host, scheme="http")) is not None:
            return await self._to_proxy(proxy), proxy
        return await self._direct(host, port, private=private), None

    async def _direct(self, host: str, port: int, *, private: bool) -> Streams:
        addresses = await self._vetted(host, port, private=private)
        error: OSError = OSError()
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await asyncio.wait_for(self._connect(address, port), CONNECT_TIMEOUT_S)
            except OSError as failed:  # TimeoutError is one
                error = failed
        timed_out = isinstance(error, TimeoutError)
        reason = "did not answer in time" if timed_out else f"cannot be connected to ({_reason_of(error)})"
        raise UpstreamError(reason, kind="connection_timeout" if timed_out else "connection_refused") from error

    async def _vetted(self, host: str, port: int, *, private: bool) -> Sequence[str]:
        """Return all addresses of a name; raise UpstreamError if a connection to any of them is forbidden."""
        try:
            async with self._resolving:
                addresses = await asyncio.wait_for(self._resolve(host, port), CONNECT_TIMEOUT_S)
        except (OSError, UnicodeError) as error:
            raise UpstreamError(f"cannot be resolved ({_reason_of(error)})", kind="dns_error") from error
        if not addresses:
            raise UpstreamError("cannot be resolved (no address)", kind="dns_error")
        for address in addresses:
            problem = address_problem(address, private=private)
            if not problem and is_this_machine(address):
                problem = "an address of this machine itself"
            if problem:
                raise UpstreamError(f"resolves to {problem}", kind="destination_ip_prohibited", refused=True)
        return addresses

    async def _to_proxy(self, proxy: UpstreamProxy) -> Streams:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await self._connect(proxy.host, proxy.port)
                if proxy.tls:
                    await writer.start_tls(client_context(), server_hostname=proxy.host)
                return reader, writer
        except UsageError as error:
            raise UpstreamError(f"is behind your proxy: {error}", kind="proxy_configuration_error") from error
        except OSError as error:
            text = f"is behind your proxy {proxy.host}:{proxy.port}, which cannot be reached ({_reason_of(error)})"
            raise UpstreamError(text, kind="connection_refused") from error

    async def _through(self, proxy: UpstreamProxy, host: str, port: int) -> Streams:
        """Open a tunnel to host through the proxy."""
        reader, writer = await self._to_proxy(proxy)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                status = await _connect_status(reader, writer, proxy, f"{host}:{port}")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, h11.ProtocolError) as error:
            writer.close()
            raise UpstreamError("got no answer from your proxy", kind="http_protocol_error") from error
        if not 200 <= status < 300:  # noqa: PLR2004
            writer.close()
            text = f"was refused by your own proxy {proxy.host}:{proxy.port} (status {status})"
            raise UpstreamError(text, kind="http_request_denied")
        return reader, writer


async def _connect_status(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: UpstreamProxy, authority: str
) -> int:
    """Send CONNECT to the proxy, read exactly the head of its answer, and return the status."""
    headers = [("Host", authority)]
    if proxy.authorization:
        headers.append(("Proxy-Authorization", proxy.authorization))
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    writer.write(connection.send(h11.Request(method="CONNECT", target=authority, headers=headers)) or b"")
    await writer.drain()
    while True:
        connection.receive_data(await reader.readuntil(b"\r\n\r\n"))
        answer = connection.next_event()
        if isinstance(answer, h11.Response):
            return int(answer.status_code)
        if not isinstance(answer, h11.InformationalResponse):
            raise h11.RemoteProtocolError("no response")


def _reason_of(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
