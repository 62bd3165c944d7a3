"""`Sieve`: which of many needles may stand in some bytes, in one pass however many they are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FEW = 20
"""So many needles are looked for one by one: that takes 0.1 to 0.2 ns a byte for each, the pass over words 4 ns."""
SHORT = 1_000
"""Bytes; to look for one needle in so few takes 0.2 us, the pass over words 1 to 4 us."""

_WIDTHS: tuple[tuple[int, Literal["Q", "I"]], ...] = ((8, "Q"), (4, "I"))
"""Bytes of a word, and its format."""


class _Pass(NamedTuple):
    width: int
    format: Literal["Q", "I"]
    words: frozenset[int]
    owners: dict[int, list[int]]
    """The numbers of the needles that have the word."""


class Sieve:
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
        for width, form, words, owners in self._passes:
            met = words.intersection(memoryview(data)[: len(data) // width * width].cast(form))
            if met:
                found.update(number for word in met for number in owners[word])
        return sorted(found) if found else ()

    @cached_property
    def _passes(self) -> list[_Pass]:
        return [*self._made_passes()]

    def _made_passes(self) -> Iterator[_Pass]:
        left = list(range(len(self._needles)))
        for width, form in _WIDTHS:
            large = [number for number in left if len(self._needles[number]) >= 2 * width - 1]
            left = [number for number in left if len(self._needles[number]) < 2 * width - 1]
            owners: dict[int, list[int]] = {}
            for number in large:
                needle = memoryview(self._needles[number])
                for word in {needle[at : at + width].cast(form)[0] for at in range(width)}:
                    owners.setdefault(word, []).append(number)
            if owners:
                yield _Pass(width, form, frozenset(owners), owners)
