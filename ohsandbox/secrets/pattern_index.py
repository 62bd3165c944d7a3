"""`PatternIndex`: byte patterns that are searched in data as it is, or ignoring breaks of lines and columns."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, compress, count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SEPARATORS = b" \t\r\n:"
"""Bytes that `base64`, `openssl`, `fold`, `xxd -p` and `od` insert into their output, and YAML before its lines."""

_MIN_HALF_BYTES = 12
"""Shortest half that is searched; the beginning of a shorter value may occur in any text."""

_MIN_BROKEN_BYTES = 16
"""Minimum length of a pattern that is also found when broken: neighbouring words may look like a shorter one."""

_MAX_STRETCH = 2
"""A broken pattern spans at most this many times its length (hex in columns: 1.6); bounds what a stream holds back."""

_KEPT = bytes(byte not in _SEPARATORS for byte in range(256))
_TOKEN = bytes(byte for byte in range(128) if chr(byte).isalnum() or chr(byte) in "+/_-")
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]+")
_BLOCK = 4096
_HEAD = 4
_LOOK = 16
"""A match of this many bytes counts as part of a pattern."""


class Pattern(NamedTuple):
    """One encoding of a value."""

    data: bytes
    name: str
    is_hidden: bool = False
    """Whether the reader of a masked text may not know it."""

    @property
    def may_break(self) -> bool:
        """Whether it is also searched broken over lines or columns."""
        return len(self.data) >= _MIN_BROKEN_BYTES and _ENCODED.fullmatch(self.data) is not None

    @property
    def run(self) -> int:
        """Number of its first bytes that are never broken: hex comes in columns of 2, and a line has more than 8."""
        return 2 if _HEX.fullmatch(self.data) else 8


class Span(NamedTuple):
    """Bytes to mask, from start to end; of several with one start, the one with the least rank gives the name."""

    start: int
    rank: int
    end: int
    name: str


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans, given in order of their start, with overlapping ones merged; adjacent ones stay separate."""
    found: list[Span] = []
    for span in spans:
        if not found or span.start >= found[-1].end:
            found.append(span)
        elif span.end > found[-1].end:
            found[-1] = found[-1]._replace(end=span.end)
    return found


class _Haystack:
    """Bytes to search; with `breaks` without their SEPARATORS, which costs 1.7 ns a byte."""

    def __init__(self, whole: bytes, *, breaks: bool) -> None:
        self.whole = whole
        self.data = whole.translate(None, _SEPARATORS) if breaks else whole
        self._places: dict[int, array[int]] = {}
        """For each block that was asked for, the place in `whole` of each byte of `data`; computing all takes 10 ns a
        byte.
        """

    @cached_property
    def _ends(self) -> list[int]:
        """Number of bytes of `data` before the end of each block of `whole`."""
        blocks = (self.whole[at : at + _BLOCK] for at in range(0, len(self.whole), _BLOCK))
        return list(accumulate(len(block.translate(None, _SEPARATORS)) for block in blocks))

    def where(self, at: int) -> int:
        """Return the place in `whole` of the byte at a place in `data`."""
        if len(self.data) == len(self.whole):
            return at
        block = bisect_right(self._ends, at)
        if block not in self._places:
            kept = self.whole[block * _BLOCK : (block + 1) * _BLOCK].translate(_KEPT)
            self._places[block] = array("Q", compress(count(block * _BLOCK), kept))
        return self._places[block][at - (self._ends[block - 1] if block else 0)]

    def is_pattern(self, at: int, pattern: Pattern, *, stretch: int) -> bool:
        """Whether what begins at a place in `data` may be pattern: unbroken at first, over stretch bytes at most."""
        if stretch > _MAX_STRETCH * len(pattern.data):
            return False
        return self.where(at + pattern.run - 1) - self.where(at) == pattern.run - 1


class PatternIndex:
    """Patterns and every search for them; with `breaks` they are found broken over lines as well."""

    def __init__(self, patterns: Sequence[Pattern], *, breaks: bool, one_by_one: bool = False) -> None:
        self._patterns = patterns
        self._breaks = breaks
        self._longest = max(len(pattern.data) for pattern in patterns)
        self._window = self._longest * (_MAX_STRETCH if breaks else 1)
        self._wholes = _Prefilter([pattern.data for pattern in patterns], one_by_one=one_by_one)

    @cached_property
    def _halves(self) -> tuple[list[tuple[Pattern, bytes, int]], _Prefilter]:
        """The first and the last half of each pattern with their offsets; a short pattern as a whole."""
        halves = []
        for pattern in self._patterns:
            size = len(pattern.data)
            half = (size + 1) // 2 if size >= 2 * _MIN_HALF_BYTES - 1 else size
            halves += [(pattern, pattern.data[at : at + half], at) for at in {0, size - half}]
        return halves, _Prefilter([half for _, half, _ in halves])

    @cached_property
    def _heads(self) -> dict[bytes, list[Pattern]]:
        """Patterns by their first 1, 2, 3 and 4 bytes."""
        heads: dict[bytes, list[Pattern]] = {}
        for pattern in self._patterns:
            for size in range(1, _HEAD + 1):
                heads.setdefault(pattern.data[:size], []).append(pattern)
        return heads

    def found(self, whole: bytes) -> Iterator[Span]:
        """Yield every occurrence of every pattern."""
        haystack = _Haystack(whole, breaks=self._breaks)
        for number in self._wholes.candidates(haystack.data):
            pattern = self._patterns[number]
            spans = (_span(haystack, at, pattern) for at in _places(haystack.data, pattern.data))
            yield from merged_spans(span for span in spans if span)

    def found_cut(self, whole: bytes) -> Iterator[Span]:
        """Yield occurrences of at least half a pattern, from its beginning or to its end; of a short one the whole."""
        halves, prefilter = self._halves
        haystack = _Haystack(whole, breaks=self._breaks)
        for number in prefilter.candidates(haystack.data):
            yield from merged_spans(_grown(haystack, *halves[number]))

    def beginning(self, whole: bytes) -> int:
        """Return the first offset from which the rest may begin a pattern; the length if there is none."""
        first = max(0, len(whole) - self._window)
        haystack = _Haystack(whole[first:], breaks=self._breaks)
        data, size = haystack.data, len(haystack.data)
        heads = self._heads.keys() & {data[at : at + _HEAD] for at in range(max(0, size - self._longest + 1), size)}
        places = (_open(haystack, pattern, head) for head in heads for pattern in self._heads[head])
        return first + min((place for place in places if place is not None), default=len(haystack.whole))

    def ending(self, whole: bytes) -> int:
        """Length of the beginning of whole that is a proper suffix of a pattern; all of it where it is within one."""
        haystack = _Haystack(whole[: self._window], breaks=self._breaks)
        data = haystack.data
        if len(whole) <= self._window and len(data) >= _LOOK and any(data in one.data for one in self._patterns):
            return len(whole)
        sizes = {_ending(data, pattern.data) for pattern in self._patterns} - {0}
        return max((end for size in sizes if (end := haystack.where(size - 1) + 1) == size or size >= _LOOK), default=0)


def _places(data: bytes, needle: bytes, first: int = 0) -> Iterator[int]:
    at = data.find(needle, first)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _span(haystack: _Haystack, at: int, pattern: Pattern) -> Span | None:
    """Return the span of the pattern at a place of haystack; None if it is broken too early, or too wide."""
    size, start = len(pattern.data), haystack.where(at)
    if haystack.whole.startswith(pattern.data, start):
        return Span(start, -size, start + size, pattern.name)
    end = haystack.where(at + size - 1) + 1
    return Span(start, -size, end, pattern.name) if haystack.is_pattern(at, pattern, stretch=end - start) else None


def _grown(haystack: _Haystack, pattern: Pattern, half: bytes, offset: int) -> Iterator[Span]:
    """Each half, at its offset in the pattern, with what else of the pattern stands around it.

    Around half of a hidden pattern, letters and digits are taken for it: whether they belong to it must not show.
    """
    data, whole = haystack.data, haystack.whole
    before, after = pattern.data[:offset][::-1], pattern.data[offset + len(half) :]
    at, end = data.find(half), 0
    while at >= 0:
        if pattern.is_hidden:
            end = at + len(half)
            first, last = haystack.where(at), haystack.where(end - 1) + 1
            left, right = whole[max(0, first - offset) : first], whole[last : last + len(after)]
            first, last = first - len(left) + len(left.rstrip(_TOKEN)), last + len(right) - len(right.lstrip(_TOKEN))
            yield Span(first, 0, last, pattern.name)
        else:
            start = at - _shared(data[max(end, at - offset) : at][::-1], before)
            end = at + len(half)
            end += _shared(data[end : end + len(after)], after)
            rank = -len(pattern.data) if end - start == len(pattern.data) else 0
            yield Span(haystack.where(start), rank, haystack.where(end - 1) + 1, pattern.name)
        at = data.find(half, end - len(half) + 1)


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _open(haystack: _Haystack, pattern: Pattern, head: bytes) -> int | None:
    """Offset in `whole` of the first proper prefix of pattern, with this head, that reaches the end."""
    data = haystack.data
    for at in _places(data, head, max(0, len(data) - len(pattern.data) + 1)):
        if pattern.data.startswith(data[at : at + _LOOK]) and pattern.data.startswith(data[at:]):
            start, there = haystack.where(at), len(data) - at
            size = len(haystack.whole) - start
            stretch = size + len(pattern.data) - there
            if size == there or (there >= pattern.run and haystack.is_pattern(at, pattern, stretch=stretch)):
                return start
    return None


def _ending(data: bytes, pattern: bytes) -> int:
    """Length of the beginning of data that is a proper suffix of pattern."""
    ends = [*_places(pattern, data[:_HEAD], 1), *range(len(pattern) - _HEAD + 1, len(pattern))]
    return next((len(pattern) - at for at in ends if data.startswith(pattern[at:])), 0)


FEW = 20
"""Up to this many needles are searched one by one: 0.1 to 0.2 ns a byte each; the pass over words takes 4 ns."""
SHORT = 1_000
"""Bytes; the pass over words takes 1 to 4 us there, each needle 0.2 us."""


class _Prefilter:
    """Reads bytes as words of 8: every needle of at least 15 bytes contains a whole word, so no hit is missed.

    Each needle has 8 such words, one for each place where it can begin. Shorter ones, of at least 7, have words of 4.
    """

    def __init__(self, needles: Sequence[bytes], *, one_by_one: bool = False) -> None:
        """With one_by_one no words are read: where one stands, 900 bytes take 8 us instead of 6."""
        self._needles = needles
        self._one_by_one = one_by_one
        self._shortest = min(map(len, needles))

    def candidates(self, data: bytes) -> Iterable[int]:
        """The numbers of all needles that stand in data, and of few others."""
        if len(data) < self._shortest:
            return ()
        if self._one_by_one or (len(data) > SHORT and len(self._needles) <= FEW):
            return [number for number, needle in enumerate(self._needles) if needle in data]
        found: set[int] = set()
        for width, words, owners in self._passes:
            view = memoryview(data)[: len(data) // width * width]
            for word in words.intersection(view.cast("Q") if width == 8 else view.cast("I")):  # noqa: PLR2004
                found.update(owners[word])
        return found

    @cached_property
    def _passes(self) -> list[tuple[int, frozenset[int], dict[int, list[int]]]]:
        """For each width: the words of all needles, and the numbers of the needles that have a word."""
        owners: dict[int, dict[int, list[int]]] = {8: {}, 4: {}}
        for number, needle in enumerate(self._needles):
            width = 8 if len(needle) >= 15 else 4  # noqa: PLR2004 - 2 * 8 - 1
            for at in range(width):
                word = int.from_bytes(needle[at : at + width], sys.byteorder)
                owners[width].setdefault(word, []).append(number)
        return [(width, frozenset(found), found) for width, found in owners.items() if found]
