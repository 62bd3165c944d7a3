"""`Masker`: replaces every form of known values in text, whole, as a stream, and in log records."""

from __future__ import annotations

import logging
import re
import traceback
from typing import TYPE_CHECKING, Any

from ohsandbox.secrets.encodings import MIN_SECRET_BYTES, encodings_of
from ohsandbox.secrets.pattern_index import Pattern, PatternIndex, Span, merged_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_IMAGE = re.compile(
    "data:image/(?:png;base64,iVBORw0KGgo|jpeg;base64,/9j/|gif;base64,R0lGOD|webp;base64,UklGR)[A-Za-z0-9+/]*+={0,2}"
)
"""An image for the model, with the first bytes of its format: a mask in it would break it."""

_TEXT = "surrogatepass"
"""Error handler for converting text to bytes and back without loss, even if it contains surrogates."""

_INSIDE_CHARACTER = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that continue a character."""


class Masker:
    """Replaces secret values by `<secret:NAME>`. Immutable; falsy without values to search for.

    Overlapping values get one mask, named by the value that begins first, or by the longest of those. Base64, hex and
    long tokens are found over lines and columns as well, but where a line ends in their first 7 characters by
    `mask_cut` alone.
    """

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        *,
        hidden: Mapping[str, str] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """Search for values and hidden ones, by name; one under 8 bytes is ignored.

        Whoever chooses a text and reads it masked knows the values, and must learn no part of a hidden one: what
        `mask_cut` and `mask_window` leave out depends on no part of it that is shorter than half. With one_by_one the
        time of `spans` hardly depends on parts of values either; it is slower with many.
        """
        values, hidden = values or {}, hidden or {}
        names: dict[bytes, str] = {}
        for name, value in (*hidden.items(), *values.items()):
            names = {form.encode("utf-8", _TEXT): name for form in encodings_of(value)} | names
        known = {form.encode("utf-8", _TEXT) for value in values.values() for form in encodings_of(value)}
        self._names = sorted(set(names.values()))
        patterns = [
            Pattern(data, names[data], is_hidden=data not in known)
            for data in sorted(names, key=lambda data: (-len(data), data))
        ]
        self._indexes = _indexes(patterns, one_by_one=one_by_one)
        self._known = _indexes([one for one in patterns if not one.is_hidden]) if hidden else self._indexes

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def __repr__(self) -> str:
        return f"Masker({', '.join(self._names)})"

    def mask(self, text: str) -> str:
        """Return all of text, with every value masked."""
        raw = text.encode("utf-8", _TEXT)
        return _replaced(text, raw, self.spans(raw))

    def mask_cut(self, text: str) -> str:
        """Do the same as `mask` for text that may have been cut: halves of long values are masked too."""
        raw = text.encode("utf-8", _TEXT)
        return _replaced(text, raw, self._cut_spans(raw))

    def mask_json(self, value: Any) -> Any:
        """Return a copy of plain JSON with all texts and keys masked but images' URLs; value itself without secrets."""
        if not self:
            return value
        if isinstance(value, str):
            return value if len(value) < MIN_SECRET_BYTES or _IMAGE.fullmatch(value) else self.mask_cut(value)
        if isinstance(value, dict):
            return {self.mask(key): self.mask_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(item) for item in value]
        return value

    def stream(self) -> StreamMasker:
        """Return a masker for text that arrives in pieces."""
        return StreamMasker(self)

    def spans(self, data: bytes) -> list[Span]:
        """Return the occurrences of values, in order, without overlaps."""
        return merged_spans(sorted(span for index in self._indexes for span in index.found(data)))

    def whole_prefix(self, data: bytes) -> int:
        """Return the length of the prefix of data that later data cannot change; a value may begin after it.

        It tells whoever chose data how much of a value it guessed: only a person or a file of this machine may see it.
        """
        return min((index.beginning(data) for index in self._indexes), default=len(data))

    def known_prefix(self, data: bytes) -> int:
        """Return the same as `whole_prefix` for the values that are not hidden."""
        return min((index.beginning(data) for index in self._known), default=len(data))

    def mask_window(self, text: str, *, after_gap: bool = False, before_gap: bool = False, cut: bool = False) -> str:
        """Return text that is a part of a longer one, masked, without pieces of values at its ends.

        The pieces are looked for before masking: the mask of a line of a value would hide that the value's first lines
        stand before it.

        Args:
            text: the part.
            after_gap: text before it is missing, so it may begin with the end of a value.
            before_gap: text after it is missing, so it may end with the beginning of a value.
            cut: as in `mask_cut`.
        """
        raw = text.encode("utf-8", _TEXT)
        first = _end_of_value(raw, self._known) if after_gap else 0
        last = self.known_prefix(raw) if before_gap else len(raw)
        spans = self._cut_spans(raw) if cut else self.spans(raw)
        inside = [span for span in spans if span.end > first and span.start < last]
        moved = [
            span._replace(start=max(span.start, first) - first, end=min(span.end, last) - first) for span in inside
        ]
        kept = raw[first : max(first, last)]
        return _replaced(kept.decode("utf-8", _TEXT), kept, moved)

    def after_gap(self, text: str) -> str:
        """Return text without the end of a value at its beginning, since the text before it is missing."""
        raw = text.encode("utf-8", _TEXT)
        return raw[_end_of_value(raw, self._known) :].decode("utf-8", _TEXT)

    def _cut_spans(self, raw: bytes) -> list[Span]:
        found = merged_spans(sorted(span for index in self._indexes for span in index.found_cut(raw)))
        return [_at_characters(raw, span) for span in found]


def _indexes(patterns: Sequence[Pattern], *, one_by_one: bool = False) -> list[PatternIndex]:
    split = {breaks: [one for one in patterns if one.may_break == breaks] for breaks in (False, True)}
    return [PatternIndex(some, breaks=breaks, one_by_one=one_by_one) for breaks, some in split.items() if some]


def _end_of_value(raw: bytes, indexes: Sequence[PatternIndex]) -> int:
    return max((index.ending(raw) for index in indexes), default=0)


class StreamMasker:
    """The masker of one stream: its output equals `mask` of the whole text, however the pieces were cut.

    It holds back no more than the longest end that may be the beginning of a value.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""
        self._covered = 0
        """Number of held bytes that belong to a value whose mask was already returned."""

    def feed(self, text: str) -> str:
        """Return the text that can be shown after this piece."""
        data = self._held + text.encode("utf-8", _TEXT)
        return self._give(data, self._masker.whole_prefix(data))

    def flush(self) -> str:
        """Return the text that was held back: the text has ended, or nobody waits for more of it."""
        return self._give(self._held, len(self._held))

    def _give(self, data: bytes, upto: int) -> str:
        """Return data before upto, masked; a value that extends beyond it gives its mask, and its rest is covered."""
        parts: list[bytes] = []
        done = self._covered
        for start, _, end, name in self._masker.spans(data):
            if start >= max(upto, done):
                break
            if start >= done:
                parts += [data[done:start], placeholder(name).encode()]
            done = max(done, end)
        parts.append(data[done:upto])
        self._held, self._covered = data[upto:], max(0, done - upto)
        return b"".join(parts).decode("utf-8", _TEXT)


def placeholder(name: str) -> str:
    """Return the text that replaces a value."""
    return f"<secret:{name}>"


def _replaced(text: str, raw: bytes, spans: Sequence[Span]) -> str:
    """Return the text, which raw encodes, with placeholders in place of the spans."""
    if not spans:
        return text
    parts: list[bytes] = []
    done = 0
    for start, _, end, name in spans:
        parts += [raw[done:start], placeholder(name).encode()]
        done = end
    return b"".join([*parts, raw[done:]]).decode("utf-8", _TEXT)


def _at_characters(raw: bytes, span: Span) -> Span:
    """Return the span without partial characters at its ends."""
    start, end = span.start, span.end
    while start < end and raw[start] in _INSIDE_CHARACTER:
        start += 1
    while start < end < len(raw) and raw[end] in _INSIDE_CHARACTER:
        end -= 1
    return span._replace(start=start, end=end)


class MaskingFilter(logging.Filter):
    """Masks a record's message and traceback, for every handler after this one as well. Add it to a handler."""

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record; always let it pass."""
        if not self._masker:
            return True
        record.msg, record.args = self._masker.mask(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
        record.exc_info = None
        if record.exc_text:
            record.exc_text = self._masker.mask(record.exc_text)
        return True
