"""Bytes as they are searched: as they stand, or without what breaks long words into lines and columns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, compress

SEPARATORS = b" \t\r\n:"
"""What `base64`, `openssl`, `fold`, `xxd -p` and `od` put into what they print, and YAML before its lines."""

_KEPT = bytes(byte not in SEPARATORS for byte in range(256))
_BLOCK = 4096


class View:
    """Bytes as they stand."""

    def __init__(self, whole: bytes) -> None:
        """Take them."""
        self.whole = whole
        self.data = whole

    def where(self, at: int) -> int:
        """The place in `whole` of the byte at a place in `data`."""
        return at

    def unbroken(self, at: int, size: int) -> bool:
        """Whether size bytes of `data` stand side by side in `whole`."""
        return self.where(at + size - 1) - self.where(at) == size - 1


class Squeezed(View):
    """Bytes without SEPARATORS."""

    def __init__(self, whole: bytes) -> None:
        """1.7 ns a byte."""
        super().__init__(whole)
        self.data = whole.translate(None, SEPARATORS)
        self._places: dict[int, array[int]] = {}
        """Of the blocks that were asked for, each place in `whole` of a byte of `data`."""

    @cached_property
    def _ends(self) -> list[int]:
        """How many bytes of `data` stand before the end of each block of `whole`."""
        blocks = (self.whole[at : at + _BLOCK] for at in range(0, len(self.whole), _BLOCK))
        return list(accumulate(len(block.translate(None, SEPARATORS)) for block in blocks))

    def where(self, at: int) -> int:
        """The place in `whole` of the byte at a place in `data`."""
        if len(self.data) == len(self.whole):
            return at
        block = bisect_right(self._ends, at)
        places = self._places.get(block)
        if places is None:
            first = block * _BLOCK
            kept = self.whole[first : first + _BLOCK].translate(_KEPT)
            places = self._places[block] = array("Q", compress(range(first, first + _BLOCK), kept))
        return places[at - (self._ends[block - 1] if block else 0)]
