"""Lines out of a stream of bytes, with a bound on each."""

from __future__ import annotations


class LineTooLongError(ValueError):
    """A line went over the limit; the stream is of no more use."""


class LineFramer:
    r"""Cuts bytes into lines at `\n`, without it and without a `\r` before it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that data completes.

        Raises:
            LineTooLongError: one of them, or what is held of the next one, is over the limit.
        """
        if b"\n" not in data:
            self._held += data
            self._check(len(self._held))
            return []
        lines = (bytes(self._held) + data if self._held else data).split(b"\n")
        self._held = bytearray(lines.pop())
        self._check(max(len(self._held), *map(len, lines)))
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> bytes:
        """What came after the last newline."""
        return bytes(self._held)

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._held = bytearray()
            raise LineTooLongError(f"a line of more than {self._limit / 1_000_000:g} MB")
