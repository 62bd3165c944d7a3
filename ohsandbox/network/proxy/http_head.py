"""The head of a request to the proxy, parsed strictly, and its destination.

Constructs that servers interpret differently are refused: a line end without CR, a folded header, two lengths, two
hosts, a user name in the URL, an IP address instead of a host name.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

import h11

from ohsandbox.network.addresses import HostNameError, normalized_host
from ohsandbox.network.policy import HTTP_PORT

_MAX_HEADERS = 100
_AUTHORITY = re.compile(rb"([^\s:@/?#\\\[\]%]{1,255})(?::([1-9]\d{0,4}))?", re.ASCII)
_ABSOLUTE = re.compile(rb"http://([^/?#\\]*)([/?][^#\\]*)?", re.IGNORECASE)
_ORIGIN = re.compile(rb"/[^#\\]*")
_ECHOED = frozenset({b"TRACE", b"TRACK"})
"""Methods whose answer repeats the request as it arrived (RFC 9110, 9.3.8), with everything that proxies added."""
_BAD_IN_LINE = re.compile(rb"[\x00\r]")


class HeadError(Exception):
    """A refused request; `str(error)` is the reason, as a predicate whose subject is the request.

    Attributes:
        status: status of the answer.
        host: the requested host, as far as it could be parsed; any text that the sandbox sent.
        port: the port; 0 for none.
    """

    def __init__(self, message: str, *, status: int = 400, host: str = "", port: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.host = host
        self.port = port


class Target(NamedTuple):
    """The destination of a request.

    Attributes:
        host: the normalized name.
        port: its port.
        path: the path with the query; "" for CONNECT.
    """

    host: str
    port: int
    path: bytes

    @property
    def authority(self) -> str:
        """The authority as in a Host header for plain HTTP."""
        return self.host if self.port == HTTP_PORT else f"{self.host}:{self.port}"


class RequestReader:
    """Reads heads and bodies of requests from one connection; reading a head consumes nothing beyond it.

    Args:
        reader: stream of the connection.
        limit_bytes: maximum size of a head.
    """

    def __init__(self, reader: asyncio.StreamReader, limit_bytes: int) -> None:
        self._reader = reader
        self._limit_bytes = limit_bytes
        self.pending = bytearray()
        """Bytes that were read with a body and belong to the next request."""

    async def read_head(self) -> bytes:
        """Return the bytes of the next head with the empty line; b"" if the connection ended before it.

        Raises:
            HeadError: it is too long or incomplete, or has a line that servers interpret differently.
        """
        lines: list[bytes] = []
        size = 0
        while not lines or lines[-1] != b"\r\n":
            line = await self._line()
            if not line and not lines:
                return b""
            size += len(line)
            if size > self._limit_bytes or len(lines) > _MAX_HEADERS:
                raise HeadError("has too long a head", status=431)
            if not line.endswith(b"\r\n") or _BAD_IN_LINE.search(line, 0, len(line) - 2):
                raise HeadError("has a line that does not end in CR LF, or a control character in it")
            if line[:1] in {b" ", b"\t"}:
                raise HeadError("has a folded header")
            lines.append(line)
        return b"".join(lines)

    async def _line(self) -> bytes:
        end = self.pending.find(b"\n") + 1
        if end:
            line = bytes(self.pending[:end])
            del self.pending[:end]
            return line
        pending_bytes = bytes(self.pending)
        self.pending.clear()
        try:
            return pending_bytes + await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if pending_bytes or error.partial:
                raise HeadError("ends in the middle") from None
            return b""
        except asyncio.LimitOverrunError:
            raise HeadError("has too long a head", status=431) from None

    async def read_some(self, limit_bytes: int) -> bytes:
        """Return some bytes of a body, at most limit_bytes; b"" at the end."""
        if self.pending:
            data = bytes(self.pending)
            self.pending.clear()
            return data
        return await self._reader.read(limit_bytes)


def parsed_request(head: bytes, connection: h11.Connection) -> h11.Request:
    """Return the request of a complete head; connection, a server's, can then parse the body.

    Raises:
        HeadError: it is malformed, asks for an echo, has two hosts, or states its length twice.
    """
    try:
        connection.receive_data(head)
        request = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise HeadError(f"is malformed ({error})", status=error.error_status_hint) from None
    if not isinstance(request, h11.Request):
        raise HeadError("is malformed")
    if request.method.upper() in _ECHOED:
        raise HeadError("asks for its own echo, which would show the passwords that proxies add to it", status=501)
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version != b"1.1"):
        raise HeadError("states its length in two ways")
    if names.count(b"host") > 1:
        raise HeadError("names two hosts")
    return request


def request_target(request: h11.Request, *, inside: Target | None = None) -> Target:
    """Return the destination of a request, which its Host header must match.

    Args:
        request: result of `parsed_request`.
        inside: destination of the tunnel through which it came; requests in a tunnel name only a path.

    Raises:
        HeadError: the target is invalid for a proxy, or does not name the host of the Host header or of the tunnel.
    """
    if request.method == b"CONNECT":
        target = _authority(request.target, default_port=None, path=b"")
    elif inside is not None and (origin := _ORIGIN.fullmatch(request.target)):
        target = inside._replace(path=origin[0])
    elif absolute := _ABSOLUTE.fullmatch(request.target):
        path = absolute[2] or b"/"
        target = _authority(absolute[1], default_port=HTTP_PORT, path=path if path[:1] == b"/" else b"/" + path)
    else:
        raise HeadError("has a target that a proxy does not take: use CONNECT for https, and whole URLs for http")
    if inside is not None and (target.host, target.port) != (inside.host, inside.port):
        raise HeadError("leaves the tunnel that it came through", host=target.host, port=target.port)
    _check_host(request, target)
    return target


def _check_host(request: h11.Request, target: Target) -> None:
    for name, value in request.headers:
        if name != b"host":
            continue
        default_port = target.port if request.method == b"CONNECT" else HTTP_PORT
        try:
            host_target = _authority(value, default_port=default_port, path=b"")
        except HeadError:
            host_target = None
        if host_target is None or (host_target.host, host_target.port) != (target.host, target.port):
            raise HeadError("has a Host header that names another host", host=target.host, port=target.port)


def _authority(text: bytes, *, default_port: int | None, path: bytes) -> Target:
    """Parse host and port.

    Raises:
        HeadError: it is not a host name and port, or the port is missing and default_port is None.
    """
    address = text.decode("latin-1")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        kinds = ((b"@", "holds a user's name"), (b"[", "is an IPv6 address; hosts are allowed by name"))
        kind = next((kind for sign, kind in kinds if sign in text), "is not a host and port")
        raise HeadError(f"names a destination that {kind}", status=403, host=address)
    port = int(match[2]) if match[2] else default_port
    if port is None or port > 0xFFFF:  # noqa: PLR2004 - 16 bits
        raise HeadError("names a destination without a port, or with a wrong one", host=address)
    if not match[1].isascii():
        raise HeadError("names a host in letters that are not ASCII", host=address, port=port)
    try:
        return Target(normalized_host(match[1].decode("ascii")), port, path)
    except HostNameError as error:
        raise HeadError(f"names a destination that {error}", status=403, host=address, port=port) from None
