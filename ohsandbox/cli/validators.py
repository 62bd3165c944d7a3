"""Parsers of option values, beyond their types; typer puts the option's name before the message of a BadParameter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NUMBER = 1e9
"""Thirty years of seconds; timers of the system overflow at 9.2e9."""

MAX_BYTES = 1024**5
"""The engine takes signed 64-bit numbers; no machine has so much."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([bkmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
"""Powers of 1024, as `docker run --memory` has them."""


def positive_number(text: str) -> float:
    """A number above 0.

    Raises:
        typer.BadParameter: the text is not a number, or the number is not above 0, or above MAX_NUMBER.
    """
    return _number(text, lambda number: number > 0, f"a number above 0 and at most {MAX_NUMBER:,.0f}")


def cpu_count(text: str) -> float:
    """A number of processors, of which the engine takes hundredths.

    Raises:
        typer.BadParameter: the text is not a number, or below 0.01.
    """
    return _number(text, lambda number: number >= 0.01, "a number of processors, 0.01 or more")  # noqa: PLR2004


def byte_size(*, minimum: int) -> Callable[[str], int]:
    """A parser of sizes such as 512m and 2g; a number without a unit is bytes.

    The parser raises typer.BadParameter where the text is not a size, below minimum or above MAX_BYTES.
    """

    def parse(text: str) -> int:
        found = _SIZE.fullmatch(text.strip())
        size = 0 if found is None else int(float(found[1]) * _FACTORS[found[2].lower()])
        if not minimum <= size <= MAX_BYTES:
            least = f"{minimum // 1024**2}m"
            raise typer.BadParameter(f"expected a size of {least} or more, as in 512m or 2g, got {text!r}")
        return size

    return parse


def path(text: str) -> Path:
    """The path of a file or directory. `Path("")` would be the current directory, which nobody named.

    Raises:
        typer.BadParameter: the text is empty.
    """
    if not text:
        raise typer.BadParameter("expected a path, got an empty text")
    return Path(text)


def _number(text: str, is_valid: Callable[[float], bool], expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (is_valid(number) and number <= MAX_NUMBER):  # nan is neither
        raise typer.BadParameter(f"expected {expected}, got {text!r}")
    return number
