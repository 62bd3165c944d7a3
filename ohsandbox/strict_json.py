"""Strict parsing of JSON that a person wrote: nothing in it is dropped or guessed.

`json.loads` takes the last of two equal keys, so `{"network": "none", ... "network": "open"}` is open; it takes NaN,
and makes infinity of 1e999.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse_json(data: bytes | str) -> Any:
    """Parse a JSON text and return its value; bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is not valid JSON; the message says why on one line, and names a key that stands twice.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data.removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=refuse_constant,
            parse_float=finite,
            parse_int=_bounded,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


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
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
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


def _bounded(text: str) -> int:
    """Parse an integer of at most 64 bits; a longer number is never a setting."""
    if len(text) > 20 or abs(number := int(text)) >= 1 << 64:  # noqa: PLR2004 - the digits of 2**64
        raise ValueError(f"the number {text[:40]} is too large")
    return number
