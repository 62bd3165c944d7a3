"""Masking of credentials in a host's answers, which tells the sandbox nothing about a value that it has not guessed.

The sandbox may choose an answer's text (a file that it stored at the host) and sees the length and time of each piece
that arrives. So neither depends on a value: what is held back is decided by the number of bytes, by the places of
bytes that no encoding contains, by a websocket's frames, and by the time spent waiting for the host.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.network.credentials.credentials import MAX_ENCODED_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ohsandbox.secrets import Masker
    from ohsandbox.secrets.pattern_index import Span

HOLD_S = 5.0
"""Seconds of waiting for the host between two ticks. A value that the host sends in two parts, further apart than
this, is not masked; TCP sends a lost packet again after 1 s unless it knows better (RFC 6298, 2.1)."""

_BREAKS = bytes(byte if 0x20 <= byte < 0x7F else 0x0A for byte in range(256))  # noqa: PLR2004 - visible ASCII and blank
"""A translation to newlines of all bytes that occur in no encoding of a value, since a header's value is ASCII."""


class EchoMask:
    """Replaces every encoding of the values in one body by as many `*`.

    The body passes up to its last byte that no encoding contains, such as a newline. Of the rest, the last hold_bytes
    wait for more, for the end, or for the second `tick`.
    """

    def __init__(self, masker: Masker, *, hold_bytes: int = MAX_ENCODED_BYTES) -> None:
        """Hold back hold_bytes, at least as many as the longest encoding has."""
        self._masker = masker
        self._hold_bytes = hold_bytes
        self._held = b""
        self._covered = 0
        """Number of the first held bytes that belong to a value whose beginning has passed."""
        self._ticked = 0
        """Number of the first held bytes that have seen a tick."""

    @property
    def is_holding(self) -> bool:
        """Whether bytes wait for more of the body."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Add data; return the masked bytes that can be passed on."""
        last = data.translate(_BREAKS).rfind(b"\n")
        size = len(self._held) + last + 1 if last >= 0 else 0
        self._held += data
        # not before there are twice as many: so each byte is searched three times at most, however small the pieces
        if len(self._held) > 2 * self._hold_bytes:
            size = max(size, len(self._held) - self._hold_bytes)
        return self._release(size)

    def tick(self) -> bytes:
        """Return the bytes that have seen a tick before; the next tick returns the others that wait now."""
        data = self._release(self._ticked)
        self._ticked = len(self._held)
        return data

    def flush(self) -> bytes:
        """Return the bytes that were held back; the body has ended."""
        return self._release(len(self._held))

    def _release(self, size: int) -> bytes:
        if not size:
            return b""
        spans = self._masker.spans(self._held)
        starred = b"*" * self._covered + _starred(self._held, spans)[self._covered :]
        self._covered = max(size, self._covered, *(end for start, _, end, _ in spans if start < size)) - size
        self._ticked = max(0, self._ticked - size)
        self._held = self._held[size:]
        return starred[:size]


class WebSocketMask:
    """The same for the frames of a websocket (RFC 6455, 5.2): each message is a body, in however many frames it comes.

    Bytes that are no frame of a server without extensions are one body until the connection ends.
    """

    def __init__(self, masker: Masker, *, hold_bytes: int = MAX_ENCODED_BYTES) -> None:
        """As `EchoMask`."""
        self._masker = masker
        self._message = EchoMask(masker, hold_bytes=hold_bytes)
        self._unread = b""
        """The beginning of a frame's head or of a control frame."""
        self._missing = 0
        """Number of bytes of the current frame's payload that have not arrived."""
        self._is_last_frame = False
        self._pieces: deque[bytes | int] = deque()
        """What is not passed on yet, in order: heads and control frames, and sizes of payload between them."""
        self._payload = b""
        """Masked payload that is not passed on yet."""

    @property
    def is_holding(self) -> bool:
        """Whether bytes wait for more of their message."""
        return self._message.is_holding

    def feed(self, data: bytes) -> bytes:
        """Add data; return the masked bytes that can be passed on."""
        data, at = self._unread + data, 0
        while at < len(data):
            if not self._missing:
                head = _head(data, at)
                if head is None or (head.is_control and len(data) - at < head.size + head.payload):
                    break
                if head.is_control:  # between two frames of a message
                    end = at + head.size + head.payload
                    self._pieces.append(data[at : at + head.size] + masked(self._masker, data[at + head.size : end]))
                    at = end
                    continue
                self._pieces.append(data[at : at + head.size])
                at += head.size
                self._missing, self._is_last_frame = head.payload, head.is_last
            payload = data[at : at + self._missing]
            at += len(payload)
            self._missing -= len(payload)
            self._pieces.append(len(payload))
            self._payload += self._message.feed(payload)
            if not self._missing and self._is_last_frame:
                self._payload += self._message.flush()
        self._unread = data[at:]
        return self._passed()

    def tick(self) -> bytes:
        """As `EchoMask.tick`."""
        self._payload += self._message.tick()
        return self._passed()

    def flush(self) -> bytes:
        """Return all bytes that were held back; the connection has ended."""
        self._payload += self._message.flush()
        data, self._unread = self._unread, b""
        return self._passed() + masked(self._masker, data)

    def _passed(self) -> bytes:
        """Take what can be passed on."""
        parts: list[bytes] = []
        payload = memoryview(self._payload)
        while self._pieces:
            piece = self._pieces.popleft()
            if isinstance(piece, bytes):
                parts.append(piece)
                continue
            parts.append(bytes(payload[:piece]))
            if piece > len(payload):
                self._pieces.appendleft(piece - len(payload))
                payload = payload[:0]
                break
            payload = payload[piece:]
        self._payload = bytes(payload)
        return b"".join(parts)


class _Head(NamedTuple):
    """The head of a frame: its size, and what it announces."""

    size: int
    payload: int
    is_last: bool
    is_control: bool


def _head(data: bytes, at: int) -> _Head | None:
    """Return the head that begins at a place of data; None if it is incomplete."""
    if len(data) < at + 2:
        return None
    first, second = data[at], data[at + 1]
    if first & 0x70 or second & 0x80:  # an extension or a client's mask, which no server may use here
        return _Head(0, sys.maxsize, is_last=True, is_control=False)
    size = 2 + {126: 2, 127: 8}.get(second, 0)
    if len(data) < at + size:
        return None
    payload = int.from_bytes(data[at + 2 : at + size]) if size > 2 else second  # noqa: PLR2004 - the two were read
    return _Head(size, payload, is_last=first >= 0x80, is_control=bool(first & 0x08) and size == 2)  # noqa: PLR2004


def masked(masker: Masker, data: bytes) -> bytes:
    """Return data, which is whole, with `*` over every encoding of a value."""
    return _starred(data, masker.spans(data))


def _starred(data: bytes, spans: Sequence[Span]) -> bytes:
    if not spans:
        return data
    stars = bytearray(data)
    for start, _, end, _ in spans:
        stars[start:end] = b"*" * (end - start)
    return bytes(stars)
