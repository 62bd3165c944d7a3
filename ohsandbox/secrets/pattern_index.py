"""`PatternIndex`: byte patterns that are searched in data as it stands, or without the breaks of lines and columns."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SEPARATORS = b" \t\r\n:"
"""What `base64`, `openssl`, `fold`, `xxd -p` and `od` put into what they print, and YAML before its lines."""

_KEPT = bytes(byte not in SEPARATORS for byte in range(256))
_BLOCK = 4096


class Haystack:
    """Bytes that are searched as they stand."""

    def __init__(self, whole: bytes) -> None:
        """Search whole."""
        self.whole = whole
        self.data = whole

    def where(self, at: int) -> int:
        """The place in `whole` of the byte at a place in `data`."""
        return at

    def unbroken(self, at: int, size: int) -> bool:
        """Whether size bytes of `data` stand side by side in `whole`."""
        return self.where(at + size - 1) - self.where(at) == size - 1


class UnbrokenHaystack(Haystack):
    """Bytes that are searched without SEPARATORS, so that a value broken over lines is found."""

    def __init__(self, whole: bytes) -> None:
        """Search whole; costs 1.7 ns a byte."""
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


# --- patterns ----------------------------------------------------------------------------------

MIN_HALF_BYTES = 12
"""Shortest half that is searched; the beginning of a shorter value may occur in any text."""

MIN_BROKEN_BYTES = 16
"""A shorter pattern is found in one piece only: neighbouring words may read like it."""
MAX_STRETCH = 2
"""A broken pattern spans at most this many times its length (hex in columns: 1.6); bounds what a stream holds back."""
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]+")
_MIN_PIECE = 4
"""Fewer bytes of a half behind a line break belong to the next line, not to the value."""
_HEAD = 4
_LOOK = 16
"""A match of this many bytes counts as part of a pattern."""


class Pattern(NamedTuple):
    """One encoding of a value."""

    data: bytes
    name: str

    @property
    def may_break(self) -> bool:
        """Whether it is also searched broken over lines or columns."""
        return len(self.data) >= MIN_BROKEN_BYTES and _ENCODED.fullmatch(self.data) is not None

    @property
    def run(self) -> int:
        """Bytes at its beginning that are never broken: hex comes in columns of 2, and a line has more than 8."""
        return 2 if _HEX.fullmatch(self.data) else 8


class Span(NamedTuple):
    """Bytes to mask, from start to end; of several with one start, the one with the least rank gives the name."""

    start: int
    rank: int
    end: int
    name: str


class PatternIndex:
    """Patterns, longest first, and every search for them."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        """Index patterns."""
        self.patterns = tuple(patterns)
        self.longest = max((len(pattern.data) for pattern in self.patterns), default=0)

    @cached_property
    def _prefilter(self) -> _Prefilter:
        return _Prefilter([pattern.data for pattern in self.patterns])

    @cached_property
    def _halves(self) -> _Prefilter:
        """The first and last half of each pattern; a short pattern twice."""
        return _Prefilter([part for pattern in self.patterns for part in _parts(pattern.data)])

    @cached_property
    def _heads(self) -> dict[bytes, list[Pattern]]:
        """Patterns by their first 1, 2, 3 and 4 bytes."""
        heads: dict[bytes, list[Pattern]] = {}
        for pattern in self.patterns:
            for size in range(1, _HEAD + 1):
                heads.setdefault(pattern.data[:size], []).append(pattern)
        return heads

    @cached_property
    def _whole_heads(self) -> frozenset[bytes]:
        return frozenset(head for head in self._heads if len(head) == _HEAD)

    def found(self, haystack: Haystack) -> Iterator[Span]:
        """Every occurrence of every pattern."""
        for number in self._prefilter.candidates(haystack.data):
            pattern = self.patterns[number]
            yield from _runs(
                span for at in _places(haystack.data, pattern.data) if (span := _span(haystack, at, pattern))
            )

    def torn(self, haystack: Haystack) -> Iterator[Span]:
        """Occurrences of at least half a pattern, from its beginning or to its end; of a short one the whole."""
        for number in self._halves.candidates(haystack.data):
            pattern = self.patterns[number // 2]
            first, last = _parts(pattern.data)
            if number % 2 == 0:
                yield from _runs(_from_first(haystack, pattern, first))
            elif last != first or len(last) < len(pattern.data):
                yield from _runs(_up_to_last(haystack, pattern, last))

    def beginning(self, haystack: Haystack) -> int:
        """The first offset in `whole` from which the rest may begin a pattern; its length where nothing may."""
        data, heads = haystack.data, self._heads
        places = [place for head in self._heads_in(data) for place in _beginnings(haystack, head, heads[head])]
        for size in range(1, min(_HEAD - 1, len(data)) + 1):
            patterns = heads.get(data[-size:], ())
            places += [
                place for pattern in patterns if (place := _open(haystack, len(data) - size, pattern)) is not None
            ]
        return min(places, default=len(haystack.whole))

    def _heads_in(self, window: bytes) -> Iterable[bytes]:
        """The heads of 4 bytes that occur in window."""
        if len(self._whole_heads) <= len(window):
            return [head for head in self._whole_heads if head in window]
        return self._whole_heads & {window[at : at + _HEAD] for at in range(len(window) - _HEAD + 1)}

    def ending(self, haystack: Haystack) -> int:
        """Length of the beginning of `whole` that is a proper suffix of a pattern."""
        sizes = {_ending(haystack.data, pattern.data) for pattern in self.patterns} - {0}
        return max((end for size in sizes if (end := haystack.where(size - 1) + 1) == size or size >= _LOOK), default=0)


def _places(data: bytes, needle: bytes, first: int = 0) -> Iterator[int]:
    at = data.find(needle, first)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _span(haystack: Haystack, at: int, pattern: Pattern) -> Span | None:
    """The pattern at an offset of haystack; None where it is broken too early, or too wide."""
    size = len(pattern.data)
    start = haystack.where(at)
    if haystack.whole.startswith(pattern.data, start):
        return Span(start, -size, start + size, pattern.name)
    end = haystack.where(at + size - 1) + 1
    if end - start > MAX_STRETCH * size or not haystack.unbroken(at, pattern.run):
        return None
    return Span(start, -size, end, pattern.name)


def _open(haystack: Haystack, at: int, pattern: Pattern) -> int | None:
    """Offset in `whole` of a pattern that the end of haystack may begin, from an offset on; None where it cannot."""
    there = len(haystack.data) - at
    start = haystack.where(at)
    size = len(haystack.whole) - start
    if size == there:
        return start
    if there < pattern.run or size + len(pattern.data) - there > MAX_STRETCH * len(pattern.data):
        return None
    return start if haystack.unbroken(at, pattern.run) else None


def _beginnings(haystack: Haystack, head: bytes, patterns: list[Pattern]) -> Iterator[int]:
    """For each pattern the first offset of a proper prefix that reaches the end."""
    data = haystack.data
    for pattern in patterns:
        for at in _places(data, head, max(0, len(data) - len(pattern.data) + 1)):
            if pattern.data.startswith(data[at : at + _LOOK]) and pattern.data.startswith(data[at:]):
                place = _open(haystack, at, pattern)
                if place is not None:
                    yield place
                    break


def _ending(data: bytes, pattern: bytes) -> int:
    """Length of the beginning of data that is a proper suffix of pattern."""
    head = data[: len(pattern) - 1]
    at = head.rfind(pattern[-_HEAD:])
    while at >= 0:
        if pattern.endswith(head[: at + _HEAD]):
            return at + _HEAD
        at = head.rfind(pattern[-_HEAD:], 0, at + _HEAD - 1)
    return next((size for size in (3, 2, 1) if head.startswith(pattern[len(pattern) - size :])), 0)


def _parts(pattern: bytes) -> tuple[bytes, bytes]:
    half = (len(pattern) + 1) // 2
    return (pattern[:half], pattern[-half:]) if half >= MIN_HALF_BYTES else (pattern, pattern)


def _from_first(haystack: Haystack, pattern: Pattern, first: bytes) -> Iterator[Span]:
    at = haystack.data.find(first)
    while at >= 0:
        size = _shared(haystack.data[at : at + len(pattern.data)], pattern.data)
        yield _torn_span(haystack, at, at + size, pattern)
        at = haystack.data.find(first, at + size - len(first) + 1)


def _up_to_last(haystack: Haystack, pattern: Pattern, last: bytes) -> Iterator[Span]:
    done = 0
    for at in _places(haystack.data, last):
        end = at + len(last)
        begin = max(0, end - len(pattern.data))
        start = at if at < done else end - _shared(haystack.data[begin:end][::-1], pattern.data[::-1])
        yield _torn_span(haystack, start, end, pattern)
        done = end


def _torn_span(haystack: Haystack, start: int, end: int, pattern: Pattern) -> Span:
    """A part of a pattern, without what stands alone on a line of its own and is shorter than _MIN_PIECE."""
    if end - start == len(pattern.data):
        return Span(haystack.where(start), -len(pattern.data), haystack.where(end - 1) + 1, pattern.name)
    for size in range(1, _MIN_PIECE):
        if not haystack.unbroken(end - size - 1, 2):
            end -= size
            break
    for size in range(1, _MIN_PIECE):
        if not haystack.unbroken(start + size - 1, 2):
            start += size
            break
    return Span(haystack.where(start), 0, haystack.where(end - 1) + 1, pattern.name)


def _runs(spans: Iterable[Span]) -> Iterator[Span]:
    """Overlapping spans of one pattern merged: a value that overlaps itself may occur a million times."""
    last: Span | None = None
    for span in spans:
        if last is not None and span.start < last.end:
            last = Span(min(last.start, span.start), min(last.rank, span.rank), max(last.end, span.end), last.name)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _shared(one: bytes, other: bytes) -> int:
    """Length of the common prefix, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# --- which of many may stand there -------------------------------------------------------------

FEW = 20
"""Up to this many needles are searched one by one: 0.1 to 0.2 ns a byte each; the pass over words takes 4 ns."""
SHORT = 1_000
"""Bytes; the pass over words takes 1 to 4 us there, each needle 0.2 us."""

_WIDTHS: tuple[tuple[int, Literal["Q", "I"]], ...] = ((8, "Q"), (4, "I"))
"""Bytes of a word, and its format."""


class _Pass(NamedTuple):
    width: int
    word_format: Literal["Q", "I"]
    words: frozenset[int]
    owners: dict[int, list[int]]
    """The numbers of the needles that have the word."""


class _Prefilter:
    """Of bytes read as words of 8, every needle of at least 15 bytes holds one as a whole: no hit is missed.

    Each needle has 8 such words, one for each place where it can begin. Shorter ones have words of 4.
    """

    def __init__(self, needles: Sequence[bytes]) -> None:
        """Each needle has at least 7 bytes."""
        self._needles = needles
        self._shortest = min(map(len, needles), default=0)

    def candidates(self, data: bytes) -> Iterable[int]:
        """The numbers, ascending, of all needles that stand in data, and of few others."""
        if len(data) < self._shortest:
            return ()
        if len(data) > SHORT and len(self._needles) <= FEW:
            return [number for number, needle in enumerate(self._needles) if needle in data]
        found: set[int] = set()
        for width, word_format, words, owners in self._passes:
            met = words.intersection(memoryview(data)[: len(data) // width * width].cast(word_format))
            if met:
                found.update(number for word in met for number in owners[word])
        return sorted(found) if found else ()

    @cached_property
    def _passes(self) -> list[_Pass]:
        return [*self._made_passes()]

    def _made_passes(self) -> Iterator[_Pass]:
        left = list(range(len(self._needles)))
        for width, word_format in _WIDTHS:
            large = [number for number in left if len(self._needles[number]) >= 2 * width - 1]
            left = [number for number in left if len(self._needles[number]) < 2 * width - 1]
            owners: dict[int, list[int]] = {}
            for number in large:
                needle = memoryview(self._needles[number])
                for word in {needle[at : at + width].cast(word_format)[0] for at in range(width)}:
                    owners.setdefault(word, []).append(number)
            if owners:
                yield _Pass(width, word_format, frozenset(owners), owners)
