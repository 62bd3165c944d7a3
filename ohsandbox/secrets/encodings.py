"""Encodings of a value that are masked: as it is, escaped, quoted, base64, hex."""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING
from unicodedata import normalize
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_SECRET_BYTES = 8
"""A shorter value occurs in too much other text: masking `1234` would make every output unreadable."""

_MIN_LINE_CHARS = 12
"""Shortest line of a value of several lines that is masked by itself."""

_BOUNDARY = re.compile(r"-----[A-Z0-9 ]+-----")
"""The first and last lines of PEM (RFC 7468), which are not secret: every certificate has them."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_IN_DOUBLE_QUOTES = re.compile(r'(["$`\\!])')
_FIRST_WHOLE = (0, 2, 3)
"""Of base64 with 0, 1 and 2 bytes before a value, the first character that these do not decide."""


def encodings_of(value: str) -> set[str]:
    """Every encoding to search for, each of at least MIN_SECRET_BYTES characters; empty for a shorter value."""
    if len(value.encode("utf-8", "surrogateescape")) < MIN_SECRET_BYTES:
        return set()
    forms = {form for text in _texts(value) for form in (*_spellings(text), *_encodings(text))}
    for line in value.splitlines():
        line = line.strip()  # noqa: PLW2901 - what is around it does not count
        if len(line) >= _MIN_LINE_CHARS and not _BOUNDARY.fullmatch(line):
            forms.update(_spellings(line))
    return {form for form in forms if len(form) >= MIN_SECRET_BYTES}


def _texts(value: str) -> set[str]:
    """The value, what editors and macOS's file names make of it (NFC and NFD), and what is shown of invalid UTF-8."""
    stripped = value.strip()
    shown = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return {value, stripped, shown, normalize("NFC", stripped), normalize("NFD", stripped)}


def _spellings(text: str) -> Iterator[str]:
    """What programs write for text when they quote it; most are text itself."""
    yield text
    yield text.replace("\r\n", "\n")
    yield text.replace("\r\n", "\n").replace("\n", "\r\n")  # from a terminal
    yield _CONTROLS.sub("", text)  # what `clean` leaves of it
    yield html.escape(text)
    yield repr(text)[1:-1]
    yield text.replace("'", "'\\''")  # sh
    yield _IN_DOUBLE_QUOTES.sub(r"\\\1", text)  # bash's `export -p`
    for ensure_ascii in (True, False):
        yield (escaped := json.dumps(text, ensure_ascii=ensure_ascii)[1:-1])
        yield escaped.replace("/", "\\/")  # PHP and others
        yield json.dumps(escaped, ensure_ascii=ensure_ascii)[1:-1]  # JSON in JSON
    raw = text.encode("utf-8", "surrogateescape")
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield quoted
        yield re.sub("%..", lambda found: found[0].lower(), quoted)


def _encodings(text: str) -> Iterator[str]:
    raw = text.encode("utf-8", "surrogateescape")
    yield raw.hex()
    yield raw.hex().upper()
    for before, first in enumerate(_FIRST_WHOLE):
        encoded = base64.b64encode(bytes(before) + raw).decode()[first : (before + len(raw)) * 8 // 6]
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")
