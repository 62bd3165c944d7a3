"""`Masker`: replaces every form of known values in text and bytes, whole, as a stream, and in log records."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any, AnyStr, NamedTuple

from ohsandbox.secrets.encodings import MIN_SECRET_BYTES, encodings_of
from ohsandbox.secrets.pattern_index import MAX_STRETCH, Haystack, Pattern, PatternIndex, Span, UnbrokenHaystack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_KEPT_URL = "data:"
"""An image for the model: a mask in it would break it, and a search in 5 MB of pixels finds nothing."""

_TEXT = "surrogatepass"
"""How text becomes bytes and back: whatever it holds, surrogates too, comes back as it was."""


class _PatternSets(NamedTuple):
    """The patterns of all values, in one text encoding."""

    plain: PatternIndex
    """Searched in one piece only."""
    broken: PatternIndex
    """Searched broken over lines as well."""

    def over(self, raw: bytes) -> Iterator[tuple[PatternIndex, Haystack]]:
        """Each index that has patterns, with the haystack that it searches."""
        if self.plain.patterns:
            yield self.plain, Haystack(raw)
        if self.broken.patterns:
            yield self.broken, UnbrokenHaystack(raw)

    def spans(self, raw: bytes) -> list[Span]:
        """Occurrences of values, in order, without overlaps."""
        return _merged([span for index, haystack in self.over(raw) for span in index.found(haystack)])

    def whole(self, raw: bytes) -> int:
        """Length of the prefix of raw that later bytes cannot change."""
        least = len(raw)
        for index, haystack, most in ((self.plain, Haystack, 1), (self.broken, UnbrokenHaystack, MAX_STRETCH)):
            first = max(0, len(raw) - most * index.longest)
            least = min(least, first + index.beginning(haystack(raw[first:])))
        return least


class Masker:
    """Replaces values by `<secret:NAME>`. Immutable; falsy without values to search for.

    What overlaps is one mask, named by what begins first, or by the longest of those. Base64, hex and long tokens are
    found over lines and columns as well, but where a line ends in their first 7 characters by `mask_cut` alone.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """Search for values, given by name; one under 8 bytes is ignored."""
        names: dict[str, str] = {}
        for name, value in (values or {}).items():
            for form in encodings_of(value):
                names.setdefault(form, name)
        self._names = sorted(set(names.values()))
        self._of_bytes = _pattern_sets(names, "surrogateescape")
        self._of_text = _pattern_sets(names, _TEXT)

    def __bool__(self) -> bool:
        return bool(self._names)

    def __repr__(self) -> str:
        return f"Masker({', '.join(self._names)})"

    def mask(self, data: AnyStr) -> AnyStr:
        """All of data, with every value masked."""
        if not self:
            return data
        raw = _raw(data)
        spans = self._pattern_sets(data).spans(raw)
        return _like(data, _joined(raw, spans)) if spans else data

    def mask_cut(self, text: str) -> str:
        """`mask` for text from which parts may have been cut: halves of long values, from either end, as well."""
        if not self:
            return text
        raw, pattern_sets = _raw(text), self._of_text
        found = _merged([span for index, haystack in pattern_sets.over(raw) for span in index.torn(haystack)])
        return _like(text, _joined(raw, [_at_characters(raw, span) for span in found])) if found else text

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
        return StreamMasker(self._of_bytes)

    def text_stream(self) -> TextStreamMasker:
        """For text that comes in pieces."""
        return TextStreamMasker(self._of_text)

    def spans(self, data: bytes) -> list[Span]:
        """Occurrences of values, in order, without overlaps."""
        return self._of_bytes.spans(data)

    def whole_prefix(self, data: AnyStr) -> int:
        """Length of the prefix of data that later data cannot change; what follows may be the beginning of a value."""
        raw = _raw(data)
        return len(_like(data, raw[: self._pattern_sets(data).whole(raw)]))

    def before_gap(self, data: AnyStr) -> AnyStr:
        """Data without the beginning of a value at its end, where something is missing behind it."""
        raw = _raw(data)
        return _like(data, raw[: self._pattern_sets(data).whole(raw)])

    def after_gap(self, data: AnyStr) -> AnyStr:
        """Data without the end of a value at its beginning, where something is missing before it."""
        raw, pattern_sets = _raw(data), self._pattern_sets(data)
        plain = pattern_sets.plain.ending(Haystack(raw[: pattern_sets.plain.longest]))
        broken = pattern_sets.broken.ending(UnbrokenHaystack(raw[: MAX_STRETCH * pattern_sets.broken.longest]))
        return _like(data, raw[max(plain, broken) :])

    def _pattern_sets(self, data: AnyStr) -> _PatternSets:
        return self._of_text if isinstance(data, str) else self._of_bytes


class StreamMasker:
    """The masker of one stream: what it gives out is what `mask` makes of the whole, however the pieces were cut.

    It holds back no more than the longest end that may be the beginning of a value.
    """

    def __init__(self, pattern_sets: _PatternSets) -> None:
        self._pattern_sets = pattern_sets
        self._held = b""
        self._covered = 0
        """So many of the held bytes belong to a value whose mask was given out already."""

    def feed(self, data: bytes) -> bytes:
        """What can be shown with data added."""
        data = self._held + data
        return self._give(data, self._pattern_sets.whole(data))

    def flush(self) -> bytes:
        """What was held back: the stream has ended, or nobody waits for more of it."""
        return self._give(self._held, len(self._held))

    def _give(self, data: bytes, upto: int) -> bytes:
        """Give out data before upto; a value that reaches over it is given as its mask, and its rest is covered."""
        spans = self._pattern_sets.spans(data)
        parts: list[bytes] = []
        done = self._covered
        for start, _, end, name in spans:
            if start >= max(upto, done):
                break
            if start >= done:
                parts += [data[done:start], placeholder(name).encode()]
            done = max(done, end)
        if done < upto:
            parts.append(data[done:upto])
            done = upto
        self._held, self._covered = data[upto:], max(0, done - upto)
        return b"".join(parts)


class TextStreamMasker:
    """The same for text."""

    def __init__(self, pattern_sets: _PatternSets) -> None:
        self._stream = StreamMasker(pattern_sets)

    def feed(self, text: str) -> str:
        """What can be shown with text added."""
        return self._stream.feed(text.encode("utf-8", _TEXT)).decode("utf-8", _TEXT)

    def flush(self) -> str:
        """What was held back: the text has ended."""
        return self._stream.flush().decode("utf-8", _TEXT)


def placeholder(name: str) -> str:
    """What stands for the value."""
    return f"<secret:{name}>"


def _pattern_sets(names: Mapping[str, str], errors: str) -> _PatternSets:
    forms = [Pattern(form.encode("utf-8", errors), name) for form, name in names.items()]
    forms.sort(key=lambda form: (-len(form.data), form.data))
    return _PatternSets(
        PatternIndex(form for form in forms if not form.may_break),
        PatternIndex(form for form in forms if form.may_break),
    )


def _raw(data: AnyStr) -> bytes:
    return data.encode("utf-8", _TEXT) if isinstance(data, str) else data


def _like(data: AnyStr, raw: bytes) -> AnyStr:
    """Raw as text where data is text."""
    same: Any = raw.decode("utf-8", _TEXT) if isinstance(data, str) else raw
    return same  # type: ignore[no-any-return] # of data's own type


def _joined(data: bytes, spans: Sequence[Span]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for start, _, end, name in spans:
        parts += [data[done:start], placeholder(name).encode()]
        done = end
    parts.append(data[done:])
    return b"".join(parts)


def _merged(found: list[Span]) -> list[Span]:
    """In order; those that overlap are one, those that only touch are two."""
    spans: list[Span] = []
    for span in sorted(found):
        if spans and span.start < spans[-1].end:
            if span.end > spans[-1].end:
                spans[-1] = spans[-1]._replace(end=span.end)
        else:
            spans.append(span)
    return spans


def _at_characters(raw: bytes, span: Span) -> Span:
    """The span without the parts of characters at its ends."""
    start, end = span.start, span.end
    while start < end and raw[start] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte of UTF-8
        start += 1
    while end < len(raw) and end > start and raw[end] & 0xC0 == 0x80:  # noqa: PLR2004
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
