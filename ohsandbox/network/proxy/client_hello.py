"""The server name in the first message of TLS, parsed strictly: ambiguous messages are refused.

RFC 8446, 4.1.2 and 5.1; RFC 6066, 3. The message may be spread over many records and any number of reads.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import NamedTuple

_MAX_HELLO_BYTES = 32 * 1024
"""Maximum size of all records of a ClientHello; with post-quantum key shares it takes about 2 KiB."""
_CHANGE_CIPHER_SPEC, _HANDSHAKE = 20, 22
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
_RECORD_HEADER, _MESSAGE_HEADER = 5, 4
_MAX_RECORD = 2**14
_SERVER_NAME = 0
_ENCRYPTED = frozenset({0xFE0D, 0xFFCE})
"""encrypted_client_hello (RFC 9849) and its earlier draft: they carry another name that we cannot read."""
ALERT_ACCESS_DENIED = bytes((21, 3, 1, 0, 2, 2, 49))
"""A fatal alert that programs show as "access denied" (RFC 8446, 6.2)."""


_RETRY_RANDOM = hashlib.sha256(b"HelloRetryRequest").digest()
"""Marks a HelloRetryRequest in the random field of a ServerHello; the client then sends a second ClientHello (RFC 8446,
4.1.3)."""


class ClientHelloError(ValueError):
    """The first bytes of a connection are not a ClientHello that names its server; `str(error)` is a predicate."""


class ClientHello(NamedTuple):
    """A ClientHello message.

    Attributes:
        raw: all bytes that were read, beginning with the first record's header.
        server_name: the name that the client sent, in lower case; "" if it sent none.
    """

    raw: bytes
    server_name: str


async def read_client_hello(
    reader: asyncio.StreamReader, first: bytes = b"", *, is_second: bool = False
) -> ClientHello:
    """Read the records of a ClientHello, and no byte beyond them.

    Args:
        reader: stream of the client.
        first: bytes that were read already, at most a record's header.
        is_second: whether it answers a HelloRetryRequest, so that change_cipher_spec may come before it.

    Raises:
        ClientHelloError: the message is not a ClientHello, or is encrypted, malformed, or longer than _MAX_HELLO_BYTES.
        asyncio.IncompleteReadError: the connection ended before its end.
    """
    raw, message = b"", b""
    while not _is_whole(message):
        header = first + await reader.readexactly(_RECORD_HEADER - len(first))
        first = b""
        size = int.from_bytes(header[3:])
        if is_second and not raw and header[0] == _CHANGE_CIPHER_SPEC and size == 1:
            raw = header + await reader.readexactly(1)
            continue
        if header[0] != _HANDSHAKE or header[1] != 3:  # noqa: PLR2004 - SSL 3.0 and all of TLS
            raise ClientHelloError("is not TLS")
        if not 0 < size <= _MAX_RECORD or len(raw) + size > _MAX_HELLO_BYTES:
            raise ClientHelloError("is a TLS record of a wrong size")
        fragment = await reader.readexactly(size)
        raw += header + fragment
        message += fragment
    return ClientHello(raw, server_name(message))


def _is_whole(message: bytes) -> bool:
    """Whether a handshake message is complete.

    Raises:
        ClientHelloError: it is not a ClientHello, or too long.
    """
    if message and message[0] != _CLIENT_HELLO:
        raise ClientHelloError("is not a ClientHello")
    if len(message) < _MESSAGE_HEADER:
        return False
    size = int.from_bytes(message[1:_MESSAGE_HEADER])
    if size > _MAX_HELLO_BYTES:
        raise ClientHelloError("is too long a ClientHello")
    return len(message) >= _MESSAGE_HEADER + size


class _Fields:
    """Reads fields one after the other; an incomplete field is an error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ClientHelloError("is a malformed ClientHello")
        field, self._at = self._data[self._at : end], end
        return field

    def number(self, size: int) -> int:
        return int.from_bytes(self.read(size))

    def vector(self, length_bytes: int) -> bytes:
        return self.read(self.number(length_bytes))

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def end(self) -> None:
        if self.more:
            raise ClientHelloError("is a malformed ClientHello")


def server_name(message: bytes) -> str:
    """Return the name in a complete ClientHello message, in lower case; "" if it has none.

    Raises:
        ClientHelloError: it is malformed, has an extension twice, or hides its name (ECH).
    """
    handshake = _Fields(message)
    handshake.read(1)
    hello = _Fields(handshake.vector(3))
    handshake.end()
    hello.read(2 + 32)  # legacy_version, random
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        hello.vector(length_bytes)
    extensions = _Fields(hello.vector(2) if hello.more else b"")
    hello.end()
    bodies: dict[int, bytes] = {}
    while extensions.more:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind in bodies:
            raise ClientHelloError("is a ClientHello with an extension twice")
        bodies[kind] = body
    if _ENCRYPTED & bodies.keys():
        raise ClientHelloError(
            "hides the name of its server (encrypted ClientHello), which browsers can be told not to"
        )
    return _name(bodies[_SERVER_NAME]) if _SERVER_NAME in bodies else ""


def _name(extension: bytes) -> str:
    """Return the name in the list's only entry, which must have type 0 (host name)."""
    outer = _Fields(extension)
    entries = _Fields(outer.vector(2))
    outer.end()
    kind, name = entries.number(1), entries.vector(2)
    entries.end()
    if kind != 0 or not name or not name.isascii():
        raise ClientHelloError("is a malformed ClientHello")
    return name.decode("ascii").lower()


async def read_server_answer(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return the first record of a server's answer to a ClientHello, and whether it asks for a second ClientHello.

    If the server sends something other than a handshake record, the bytes read so far are returned unchanged.
    """
    header = record = b""
    try:
        header = await reader.readexactly(_RECORD_HEADER)
        if header[0] != _HANDSHAKE:
            return header, False
        record = await reader.readexactly(int.from_bytes(header[3:]))
    except asyncio.IncompleteReadError as error:
        return header + error.partial, False
    return header + record, record[:1] == bytes([_SERVER_HELLO]) and record[6:38] == _RETRY_RANDOM
