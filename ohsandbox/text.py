"""Makes foreign text fit to be stored, quoted, and shown to a model within a limit; parses sizes and names.

Not for what a person decides by (`review_text`), nor for what a program printed (`runtime.shell.terminal`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Name of an environment variable that POSIX lets a shell export (XBD 3.230)."""
MAX_BYTES = 1024**5
"""The largest size: the engine takes signed 64-bit numbers; no machine has so much."""
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([bkmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
"""Powers of 1024, as in `docker run --memory`."""


def encodable(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate; a surrogate pair becomes its character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encodable_tree(value: Any) -> Any:
    """Return a copy of JSON-like data in which every string, keys included, can be encoded."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_tree(key): encodable_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable_tree(item) for item in value]
    return value


def texts_in(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, keys included."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += [*item.values(), *item]
        elif isinstance(item, list):
            pending += item


def natural_number(text: str | bytes) -> int | None:
    """Return the number that up to 20 ASCII digits write, as many as 64 bits need; None for any other text.

    `isdigit` is no such check of what a sandbox prints: it takes `²`, and 5,000 digits, of which `int` makes an error.
    """
    digits = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return int(digits) if re.fullmatch(r"[0-9]{1,20}", digits) else None


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quoted_line(text: str, *, limit_chars: int) -> str:
    """Return at most limit_chars characters of text on one line, without control and format characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= limit_chars else line[: limit_chars - 1] + "…"


def cut_middle(text: str, *, limit_chars: int) -> str:
    """Return the text, or its head and tail with a line between them that states exactly how much is missing.

    Head and tail together have limit_chars characters; the line between is additional.
    """
    if len(text) <= limit_chars:
        return text
    head = limit_chars // 2
    tail = limit_chars - head
    missing = len(text) - limit_chars
    return f"{text[:head]}\n[... {missing} of {len(text)} characters left out here ...]\n{text[len(text) - tail :]}"


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that is most like this one; None where none is similar.

    likeness: at least so much of both names are letters that they have in common, in the same order.
    """
    return next(iter(difflib.get_close_matches(name[:100], list(known), n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` to end a message about an unknown name; "" where no known name is similar."""
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""


def quoted_brackets(pattern: str) -> str:
    """Return a pattern of `fnmatch` that means the same, with each bracket quoted that is never closed.

    For each of these, fnmatch looks through the rest of the pattern: 64,000 take 10 minutes (Python 3.11).
    """
    head, closing, tail = pattern.rpartition("]")
    return head + closing + tail.replace("[", "[[]")


def byte_size(text: str) -> int:
    """Parse a size such as `512m` or `2g` into bytes; a number without a unit is bytes.

    Raises:
        ValueError: it is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size, as in 512m or 2g")
    return int(float(match[1]) * _FACTORS[match[2].lower()])
