"""The frames between the host and the connector in a sandbox; everything that comes from inside is checked here."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ohsandbox.errors import OhsandboxError

VERSION = 1
HALF = 256
"""Streams that each side may open at once: the host those below this number, the connector those from it on."""
PIECE_BYTES = 64 * 1024
"""The longest payload of a frame."""
WINDOW_BYTES = 256 * 1024
"""What one direction of a stream may hold that the receiver has not handed on; connector.c has the same figure."""
ABORTED = 104
"""ECONNRESET: the reason of a CLOSE that gives up what is under way."""

_HEADER = struct.Struct("<HHI")
_VALUE = struct.Struct("<I")


class FrameKind(IntEnum):
    """What a frame says; connector.c has the same list."""

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


_FROM_INSIDE = {
    FrameKind.HELLO,
    FrameKind.OPENED,
    FrameKind.LISTENING,
    FrameKind.ACCEPTED,
    FrameKind.DATA,
    FrameKind.END,
    FrameKind.CLOSE,
    FrameKind.CREDIT,
}


class ConnectorError(OhsandboxError):
    """The program in the sandbox that carries connections sent what it never sends: its connections are closed."""


class Frame(NamedTuple):
    """One frame from inside: value is 0 for DATA, payload is empty for others."""

    kind: FrameKind
    stream: int
    value: int
    payload: bytes


def frame(kind: FrameKind, stream: int = 0, value: int = 0) -> bytes:
    """A frame that carries a number."""
    return _HEADER.pack(kind, stream, _VALUE.size) + _VALUE.pack(value)


def data_header(stream: int, length: int) -> bytes:
    """The header of a DATA frame with a payload of length bytes, at most PIECE_BYTES."""
    return _HEADER.pack(FrameKind.DATA, stream, length)


class FrameReader:
    """Splits the connector's output into frames; it holds at most one that is not complete."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that data completes.

        Raises:
            ConnectorError: a kind, a stream or a length is none that the connector sends.
        """
        if self._partial:
            data = self._partial + data
        found, at, view = [], 0, memoryview(data)
        while len(data) - at >= _HEADER.size:
            number, stream, length = _HEADER.unpack_from(data, at)
            kind = _checked(number, stream, length)
            begin, end = at + _HEADER.size, at + _HEADER.size + length
            if end > len(data):
                break
            is_data = kind is FrameKind.DATA
            value = 0 if is_data else _VALUE.unpack_from(data, begin)[0]
            found.append(Frame(kind, stream, value, bytes(view[begin:end]) if is_data else b""))
            at = end
        self._partial = data[at:]
        return found


def _checked(number: int, stream: int, length: int) -> FrameKind:
    try:
        kind = FrameKind(number)
    except ValueError:
        raise ConnectorError(f"The connector sent a frame of the unknown kind {number}.") from None
    if kind not in _FROM_INSIDE:
        raise ConnectorError(f"The connector sent {kind.name}, which only the host sends.")
    if stream >= 2 * HALF and kind is not FrameKind.LISTENING:  # there it is a port
        raise ConnectorError(f"The connector named stream {stream}; there are {2 * HALF}.")
    if not (1 <= length <= PIECE_BYTES if kind is FrameKind.DATA else length == _VALUE.size):
        raise ConnectorError(f"The connector sent {kind.name} with {length} bytes.")
    return kind
