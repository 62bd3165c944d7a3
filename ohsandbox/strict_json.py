"""The parsers of JSON: a strict one for what a person wrote, where nothing is dropped or guessed, and one for the rest.

`json.loads` takes the last of two equal keys, so `{"network": "none", ... "network": "open"}` is open; it takes NaN,
and makes infinity of 1e999. A text of 1,000 brackets is a RecursionError to it (Python 3.11).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 64
"""Deepest nesting of a value: what walks it afterwards may do so by recursion."""
MAX_INTEGER = 2**64 - 1
"""Largest absolute value of an integer: a longer number is never a setting, and Python prints none of 4,300 digits."""


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text and return its value; bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is not valid JSON; the message says why on one line, and names a key that stands twice.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data.removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    value = load_json(
        text,
        object_pairs_hook=_without_duplicates,
        parse_constant=refuse_constant,
        parse_float=finite,
        parse_int=bounded_integer,
    )
    if is_deep(value):
        raise ValueError("it is nested too deep")
    return value


def load_json(data: bytes | str, **options: Any) -> Any:
    """Parse JSON that a program wrote, as `json.loads` does with these options.

    Raises:
        ValueError: it is not valid JSON or, other than with `json.loads`, it is nested too deep.
    """
    try:
        return json.loads(data, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def is_deep(value: object) -> bool:
    """Whether dicts and lists are nested more than MAX_DEPTH levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
    return bool(level)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for name, value in pairs:
        if name in parsed:
            raise ValueError(f"the key {name[:100]!r} stands twice in one object")
        parsed[name] = value
    return parsed


def is_object(text: str) -> bool:
    """Whether every parser reads the text as a JSON object."""
    try:
        return isinstance(load_json(text), dict)
    except ValueError:
        return False


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities; for `parse_constant` of `json`."""
    raise ValueError(f"{name} is not a JSON number")


def finite(text: str) -> float:
    """Parse a number, and refuse one beyond the largest float; for `parse_float` of `json`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def bounded_integer(text: str, base: int = 10) -> int:
    """Parse an integer of at most 64 bits; for `parse_int` of `json`.

    Raises:
        ValueError: it has more bits, or is no integer.
    """
    if len(text) > 70 or abs(number := int(text, base)) > MAX_INTEGER:  # noqa: PLR2004 - 64 binary digits, sign, 0b
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def number_faults(value: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the places of nested dicts and lists with an integer of over 64 bits or a float that is not finite.

    Each is (keys and indices, what is wrong). It is for parsers that cannot be told how to parse a number, on a value
    that is not deep.
    """
    pending: list[tuple[tuple[str, ...], object]] = [((), value)]
    while pending:
        location, item = pending.pop()
        if isinstance(item, int) and abs(item) > MAX_INTEGER:
            yield location, f"has {item.bit_length()} bits: expected an integer of at most 64"
        elif isinstance(item, float) and not math.isfinite(item):
            yield location, f"= {item}: expected a finite number"
        elif isinstance(item, dict):
            pending += [((*location, str(key)), inner) for key, inner in reversed(item.items())]
        elif isinstance(item, list):
            pending += [((*location, str(index)), item[index]) for index in reversed(range(len(item)))]
