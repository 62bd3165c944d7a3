"""TOML, read strictly: no number that is larger than a machine's, in time in proportion to the text."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from ohsandbox.strict_json import is_deep, number_faults

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w\\-])(?:{_PART}[ \t]*+\.[ \t]*+){{64}}")
"""Matches `a.a.a.a...`: tomllib takes time quadratic in the parts of a key, hours for one of 256 KiB."""
_LONG_INTEGER = re.compile(r"\d[\d_]{4000}")
"""Python refuses to convert 4,300 digits and more, with an error that is none of tomllib's."""
_LINE = re.compile(r"at line (\d{1,9})")


class InvalidToml(ValueError):  # noqa: N818 - a ValueError, as those of strict_json and strict_yaml
    """The text is not TOML, or is hostile; the message is one line."""

    def __init__(self, message: str, *, line: int | None = None, location: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.line = line
        """From 1; None if it is not known."""
        self.location = location
        """The keys and indices that lead to a refused value."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text.

    Raises:
        InvalidToml: it is not TOML, a key has 64 parts or more, it is nested too deeply, an integer has more than 64
            bits, or a float is not finite.
    """
    if long_key := _LONG_KEY.search(text):
        raise InvalidToml("not TOML that is read: a key has over 64 parts", line=_line_at(text, long_key))
    try:
        parsed = tomllib.loads(text)
    except RecursionError:
        raise InvalidToml("not TOML that is read: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        message = str(error).partition("\n")[0]
        line = _LINE.search(message)
        raise InvalidToml(f"not TOML: {message}", line=int(line[1]) if line else None) from None
    except ValueError:
        long_integer = _LONG_INTEGER.search(text)
        raise InvalidToml(
            "not TOML that is read: an integer has more than 64 bits",
            line=_line_at(text, long_integer) if long_integer else None,
        ) from None
    if is_deep(parsed):
        raise InvalidToml("not TOML that is read: nested too deeply")
    for location, message in number_faults(parsed):
        raise InvalidToml(f"{'.'.join(location)} {message}", location=location)
    return parsed


def _line_at(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1
