"""`Table`: forms that are looked for, and every way to look for them in a `View`."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.secrets.sieve import Sieve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ohsandbox.secrets.views import View

MIN_HALF_BYTES = 12
"""Halves are looked for from this length on; the beginning of a shorter value may stand in anything."""

MIN_BROKEN_BYTES = 16
"""A shorter form is found in one piece only: words side by side may read alike."""
MAX_STRETCH = 2
"""A broken form takes at most so many times its length (hex in columns: 1.6), so a stream holds no more back."""
_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]+")
_MIN_PIECE = 4
"""Of a half, what stands alone behind a break must be so long, or it is the next line's own."""
_HEAD = 4
_LOOK = 16
"""So many bytes that read like part of a form are one."""


class Form(NamedTuple):
    """One way to write a value."""

    data: bytes
    name: str

    @property
    def may_break(self) -> bool:
        """Whether it is looked for in several lines or columns, too."""
        return len(self.data) >= MIN_BROKEN_BYTES and _ENCODED.fullmatch(self.data) is not None

    @property
    def run(self) -> int:
        """So many bytes at its beginning stand side by side: hex comes in columns of 2, and a line has more than 8."""
        return 2 if _HEX.fullmatch(self.data) else 8


class Span(NamedTuple):
    """Where something to be masked stands; of one place the one with the least rank is named."""

    start: int
    rank: int
    end: int
    name: str


class Table:
    """Forms, longest first."""

    def __init__(self, forms: Iterable[Form]) -> None:
        """Take them."""
        self.forms = tuple(forms)
        self.longest = max((len(form.data) for form in self.forms), default=0)

    @cached_property
    def _sieve(self) -> Sieve:
        return Sieve([form.data for form in self.forms])

    @cached_property
    def _halves(self) -> Sieve:
        """Of each form the first half and the last, or all of it twice."""
        return Sieve([part for form in self.forms for part in _parts(form.data)])

    @cached_property
    def _heads(self) -> dict[bytes, list[Form]]:
        """Forms by their first 1, 2, 3 and 4 bytes."""
        heads: dict[bytes, list[Form]] = {}
        for form in self.forms:
            for size in range(1, _HEAD + 1):
                heads.setdefault(form.data[:size], []).append(form)
        return heads

    @cached_property
    def _whole_heads(self) -> frozenset[bytes]:
        return frozenset(head for head in self._heads if len(head) == _HEAD)

    def found(self, view: View) -> Iterator[Span]:
        """Every form, wherever it stands."""
        for number in self._sieve.candidates(view.data):
            form = self.forms[number]
            yield from _runs(span for at in _places(view.data, form.data) if (span := _span(view, at, form)))

    def torn(self, view: View) -> Iterator[Span]:
        """At least half of a form, from its beginning or up to its end; of a short one all of it."""
        for number in self._halves.candidates(view.data):
            form = self.forms[number // 2]
            first, last = _parts(form.data)
            if number % 2 == 0:
                yield from _runs(_from_first(view, form, first))
            elif last != first or len(last) < len(form.data):
                yield from _runs(_up_to_last(view, form, last))

    def beginning(self, view: View) -> int:
        """Where in `whole` the first place is from which what follows may become a form with what comes next."""
        data, heads = view.data, self._heads
        places = [place for head in self._heads_in(data) for place in _beginnings(view, head, heads[head])]
        for size in range(1, min(_HEAD - 1, len(data)) + 1):
            forms = heads.get(data[-size:], ())
            places += [place for form in forms if (place := _open(view, len(data) - size, form)) is not None]
        return min(places, default=len(view.whole))

    def _heads_in(self, window: bytes) -> Iterable[bytes]:
        """The heads of 4 bytes that stand in window."""
        if len(self._whole_heads) <= len(window):
            return [head for head in self._whole_heads if head in window]
        return self._whole_heads & {window[at : at + _HEAD] for at in range(len(window) - _HEAD + 1)}

    def ending(self, view: View) -> int:
        """How much of the beginning of `whole` is the end of a form, but not all of it."""
        sizes = {_ending(view.data, form.data) for form in self.forms} - {0}
        return max((end for size in sizes if (end := view.where(size - 1) + 1) == size or size >= _LOOK), default=0)


def _places(data: bytes, needle: bytes, first: int = 0) -> Iterator[int]:
    at = data.find(needle, first)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _span(view: View, at: int, form: Form) -> Span | None:
    """The form at a place of view; None where it is broken too early, or too wide."""
    size = len(form.data)
    start = view.where(at)
    if view.whole.startswith(form.data, start):
        return Span(start, -size, start + size, form.name)
    end = view.where(at + size - 1) + 1
    if end - start > MAX_STRETCH * size or not view.unbroken(at, form.run):
        return None
    return Span(start, -size, end, form.name)


def _open(view: View, at: int, form: Form) -> int | None:
    """Where in `whole` the form begins that the end of view may become, from a place on; None where it cannot."""
    there = len(view.data) - at
    start = view.where(at)
    size = len(view.whole) - start
    if size == there:
        return start
    if there < form.run or size + len(form.data) - there > MAX_STRETCH * len(form.data):
        return None
    return start if view.unbroken(at, form.run) else None


def _beginnings(view: View, head: bytes, forms: list[Form]) -> Iterator[int]:
    """For each form the first place where a proper prefix of it begins that reaches to the end."""
    data = view.data
    for form in forms:
        for at in _places(data, head, max(0, len(data) - len(form.data) + 1)):
            if form.data.startswith(data[at : at + _LOOK]) and form.data.startswith(data[at:]):
                place = _open(view, at, form)
                if place is not None:
                    yield place
                    break


def _ending(data: bytes, form: bytes) -> int:
    """How much of data's beginning is the end of form, but not all of it."""
    head = data[: len(form) - 1]
    at = head.rfind(form[-_HEAD:])
    while at >= 0:
        if form.endswith(head[: at + _HEAD]):
            return at + _HEAD
        at = head.rfind(form[-_HEAD:], 0, at + _HEAD - 1)
    return next((size for size in (3, 2, 1) if head.startswith(form[len(form) - size :])), 0)


def _parts(form: bytes) -> tuple[bytes, bytes]:
    half = (len(form) + 1) // 2
    return (form[:half], form[-half:]) if half >= MIN_HALF_BYTES else (form, form)


def _from_first(view: View, form: Form, first: bytes) -> Iterator[Span]:
    at = view.data.find(first)
    while at >= 0:
        size = _shared(view.data[at : at + len(form.data)], form.data)
        yield _torn_span(view, at, at + size, form)
        at = view.data.find(first, at + size - len(first) + 1)


def _up_to_last(view: View, form: Form, last: bytes) -> Iterator[Span]:
    done = 0
    for at in _places(view.data, last):
        end = at + len(last)
        begin = max(0, end - len(form.data))
        start = at if at < done else end - _shared(view.data[begin:end][::-1], form.data[::-1])
        yield _torn_span(view, start, end, form)
        done = end


def _torn_span(view: View, start: int, end: int, form: Form) -> Span:
    """A part of a form; what stands alone on a line of its own and is short is none of it."""
    if end - start == len(form.data):
        return Span(view.where(start), -len(form.data), view.where(end - 1) + 1, form.name)
    for size in range(1, _MIN_PIECE):
        if not view.unbroken(end - size - 1, 2):
            end -= size
            break
    for size in range(1, _MIN_PIECE):
        if not view.unbroken(start + size - 1, 2):
            start += size
            break
    return Span(view.where(start), 0, view.where(end - 1) + 1, form.name)


def _runs(spans: Iterable[Span]) -> Iterator[Span]:
    """Those of one form that overlap are one: of a value that overlaps itself there may be a million."""
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
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
