"""`Masker`: takes every form of known values out of text and bytes, whole or as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AnyStr, Generic, NamedTuple

from ohsandbox.secrets.forms import MIN_SECRET_BYTES, forms_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIN_HALF_CHARS = 12
"""`mask_cut` looks for halves from this length on; the beginning of a shorter value may stand in anything."""

_KEPT_URL = "data:"
"""An image for the model: a mask in it would break it, and a search in 5 MB of pixels finds nothing."""


class Span(NamedTuple):
    """Where something to be masked stands."""

    start: int
    end: int
    name: str


class _Table(NamedTuple, Generic[AnyStr]):
    """The forms, longest first, each with the name of its value."""

    forms: tuple[tuple[AnyStr, str], ...]
    longest: int


class Masker:
    """Replaces values by `<secret:NAME>`. Immutable; falsy when there is nothing to look for.

    The search is one `find` a form, which runs at memory speed: 30 forms cost 3 ms a megabyte. What overlaps is one
    mask, named by what begins first, or by the longest of those.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """Take the values by name; one under 8 bytes is not looked for."""
        names: dict[str, str] = {}
        for name, value in (values or {}).items():
            for form in forms_of(value):
                names.setdefault(form, name)
        ordered = sorted(names.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        self._text = _Table(tuple(ordered), max(map(len, names), default=0))
        raw = tuple((form.encode("utf-8", "surrogateescape"), name) for form, name in ordered)
        self._bytes = _Table(raw, max((len(form) for form, _ in raw), default=0))

    def __bool__(self) -> bool:
        return bool(self._text.forms)

    def __repr__(self) -> str:
        return f"Masker({', '.join(sorted({name for _, name in self._text.forms}))})"

    def mask(self, data: AnyStr) -> AnyStr:
        """All of data, with every value masked."""
        return _joined(data, self.spans(data)) if self else data

    def mask_cut(self, text: str) -> str:
        """`mask` for text from which parts may have been cut: halves of long values, from either end, as well."""
        if not self:
            return text
        found = [span for form, name in self._text.forms for span in _torn(text, form, name)]
        return _joined(text, _merged([*self._found(text), *found]))

    def mask_json(self, value: Any) -> Any:
        """A copy of plain JSON with every text in it masked, keys too, but no `data:` URL; value itself without any."""
        if not self:
            return value
        if isinstance(value, str):
            return value if len(value) < MIN_SECRET_BYTES or value.startswith(_KEPT_URL) else self.mask_cut(value)
        if isinstance(value, dict):
            return {self.mask(key): self.mask_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(item) for item in value]
        return value

    def stream(self) -> StreamMasker:
        """For bytes that come in pieces."""
        return StreamMasker(self)

    def spans(self, data: AnyStr) -> list[Span]:
        """Where values stand, in order, without overlaps."""
        return _merged(self._found(data))

    def whole_prefix(self, data: AnyStr) -> int:
        """How much of data can be judged now: behind it stands what may become a value with what comes next."""
        table = self._table(data)
        first = max(0, len(data) - table.longest + 1)
        return min((at for form, _ in table.forms if (at := _beginning(data, form, first)) >= 0), default=len(data))

    def before_gap(self, data: AnyStr) -> AnyStr:
        """Data without the beginning of a value at its end, where something is missing behind it."""
        return data[: self.whole_prefix(data)]

    def after_gap(self, data: AnyStr) -> AnyStr:
        """Data without the end of a value at its beginning, where something is missing before it."""
        ends = (_ending(data, form) for form, _ in self._table(data).forms)
        return data[max(ends, default=0) :]

    def _table(self, data: AnyStr) -> _Table[AnyStr]:
        table: Any = self._text if isinstance(data, str) else self._bytes
        return table  # type: ignore[no-any-return] # the table of data's own type

    def _found(self, data: AnyStr) -> list[Span]:
        found: list[Span] = []
        for form, name in self._table(data).forms:
            at = data.find(form)
            while at >= 0:
                end = at + len(form)
                if found and found[-1].name == name and found[-1].start <= at < found[-1].end <= end:
                    found[-1] = found[-1]._replace(end=end)  # a value that overlaps itself: one span, not a million
                else:
                    found.append(Span(at, end, name))
                at = data.find(form, at + 1)
        return found


class StreamMasker:
    """The masker of one stream: what it gives out is what `mask` makes of the whole, however the pieces were cut.

    It holds back no more than the longest end that may be the beginning of a value.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""
        self._covered = 0
        """So many of the held bytes belong to a value whose mask was given out already."""

    def feed(self, data: bytes) -> bytes:
        """What can be shown with data added."""
        if not self._masker:
            return data
        data = self._held + data
        return self._give(data, self._masker.whole_prefix(data))

    def flush(self) -> bytes:
        """What was held back: the stream has ended, or nobody waits for more of it."""
        return self._give(self._held, len(self._held))

    def _give(self, data: bytes, upto: int) -> bytes:
        """Give out data before upto; a value that reaches over it is given as its mask, and its rest is covered."""
        spans = self._masker.spans(data)
        parts: list[bytes] = []
        done = self._covered
        for start, end, name in spans:
            if start >= max(upto, done):
                break
            if start >= done:
                parts += [data[done:start], mask_of(name).encode()]
            done = max(done, end)
        if done < upto:
            parts.append(data[done:upto])
            done = upto
        self._held, self._covered = data[upto:], max(0, done - upto)
        return b"".join(parts)


def mask_of(name: str) -> str:
    """What stands for the value."""
    return f"<secret:{name}>"


def _joined(data: AnyStr, spans: Sequence[Span]) -> AnyStr:
    if not spans:
        return data
    parts: list[AnyStr] = []
    done = 0
    for start, end, name in spans:
        mask: Any = mask_of(name) if isinstance(data, str) else mask_of(name).encode()
        parts += [data[done:start], mask]
        done = end
    parts.append(data[done:])
    return data[:0].join(parts)


def _merged(found: list[Span]) -> list[Span]:
    """In order; those that overlap are one, those that only touch are two.

    Of one start the first found gives the name: forms are looked for longest first.
    """
    spans: list[Span] = []
    for span in sorted(found, key=lambda span: span.start):
        if spans and span.start < spans[-1].end:
            if span.end > spans[-1].end:
                spans[-1] = spans[-1]._replace(end=span.end)
        else:
            spans.append(span)
    return spans


def _beginning(data: AnyStr, form: AnyStr, first: int) -> int:
    """Where, at or behind first, a proper prefix of form begins that reaches to the end of data; -1 for nowhere."""
    first = max(first, len(data) - len(form) + 1)
    at = data.find(form[:4], first)
    while at >= 0:
        if form.startswith(data[at:]):
            return at
        at = data.find(form[:4], at + 1)
    ends = (len(data) - size for size in (3, 2, 1) if data.endswith(form[:size]))
    return next((at for at in ends if at >= first), -1)


def _ending(data: AnyStr, form: AnyStr) -> int:
    """How much of data's beginning is the end of form, but not all of it."""
    head = data[: len(form) - 1]
    at = head.rfind(form[-4:])
    while at >= 0:
        if form.endswith(head[: at + 4]):
            return at + 4
        at = head.rfind(form[-4:], 0, at + 3)
    return next((size for size in (3, 2, 1) if head.startswith(form[len(form) - size :])), 0)


def _torn(text: str, form: str, name: str) -> list[Span]:
    """Where at least half of form stands, from its beginning or up to its end."""
    half = (len(form) + 1) // 2
    if half < MIN_HALF_CHARS:
        return []
    found: list[Span] = []
    at = text.find(form[:half])
    while at >= 0:
        size = half
        while size < len(form) and text[at + size : at + size + 1] == form[size]:
            size += 1
        found.append(Span(at, at + size, name))
        at = text.find(form[:half], at + size - half + 1)
    at = text.find(form[-half:])
    while at >= 0:
        size = half
        while size < len(form) and at + half - size > 0 and text[at + half - size - 1] == form[-size - 1]:
            size += 1
        found.append(Span(at + half - size, at + half, name))
        at = text.find(form[-half:], at + 1)
    return found
