"""The frames between the host and the connector in a sandbox; all frames from the sandbox are validated here."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ohsandbox.errors import OhsandboxError

VERSION = 1
HALF = 256
"""Maximum number of streams that each side opens at once. The host numbers its own from 0, the connector from HALF."""
PIECE_BYTES = 64 * 1024
"""The longest payload of a frame."""
WINDOW_BYTES = 512 * 1024
"""Maximum number of bytes in one direction of a stream that the receiver has not passed on; as in connector.c."""
ABORTED = 104
"""ECONNRESET: the reason in a CLOSE that aborts the connection."""

_HEADER = struct.Struct("<HHI")
_VALUE = struct.Struct("<I")


class FrameKind(IntEnum):
    """The kind of a frame; connector.c has the same list."""

    HELLO = 0
    OPEN = 1
    OPENED = 2
    LISTEN = 3
    LISTENING = 4
    UNLISTEN = 5
    ACCEPTED = 6
    DATA = 7
    END = 8
    CLOSE = 9
    CREDIT = 10


_FROM_HOST = {FrameKind.OPEN, FrameKind.LISTEN, FrameKind.UNLISTEN}


class ConnectorError(OhsandboxError):
    """The connector in the sandbox sent an invalid frame; all its connections are closed."""


class Frame(NamedTuple):
    """One frame from the sandbox, or a part of a DATA frame; value is 0 for DATA, payload is empty for others."""

    kind: FrameKind
    stream: int
    value: int
    payload: bytes


def frame(kind: FrameKind, stream: int = 0, value: int = 0) -> bytes:
    """Return a frame that carries a number."""
    return _HEADER.pack(kind, stream, _VALUE.size) + _VALUE.pack(value)


def data_header(stream: int, length: int) -> bytes:
    """Return the header of a DATA frame with a payload of length bytes, at most PIECE_BYTES."""
    return _HEADER.pack(FrameKind.DATA, stream, length)


class FrameReader:
    """Splits the connector's output into frames; it buffers only part of a header or of a number."""

    def __init__(self) -> None:
        self._partial = b""
        self._stream = 0
        self._left = 0
        """Bytes that remain of the current DATA frame."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that data completes, and what has arrived of the payload of the last one.

        Raises:
            ConnectorError: a kind, stream or length is invalid.
        """
        complete: list[Frame] = []
        if self._partial:
            data = self._partial + data
        position, end = 0, len(data)
        while position < end:
            if self._left:
                count = min(self._left, end - position)
                complete.append(Frame(FrameKind.DATA, self._stream, 0, data[position : position + count]))
                self._left -= count
                position += count
                continue
            if end - position < _HEADER.size:
                break
            number, stream, length = _HEADER.unpack_from(data, position)
            if (kind := _checked(number, stream, length)) is FrameKind.DATA:
                self._stream, self._left = stream, length
                position += _HEADER.size
                continue
            if end - position < _HEADER.size + length:
                break
            complete.append(Frame(kind, stream, _VALUE.unpack_from(data, position + _HEADER.size)[0], b""))
            position += _HEADER.size + length
        self._partial = data[position:]
        return complete


def _checked(number: int, stream: int, length: int) -> FrameKind:
    try:
        kind = FrameKind(number)
    except ValueError:
        raise ConnectorError(f"The connector sent a frame of the unknown kind {number}.") from None
    if kind in _FROM_HOST:
        raise ConnectorError(f"The connector sent {kind.name}, which only the host sends.")
    if stream >= 2 * HALF and kind is not FrameKind.LISTENING:  # in a LISTENING frame it is a port
        raise ConnectorError(f"The connector named stream {stream}; there are {2 * HALF}.")
    if not (1 <= length <= PIECE_BYTES if kind is FrameKind.DATA else length == _VALUE.size):
        raise ConnectorError(f"The connector sent {kind.name} with {length} bytes.")
    return kind
