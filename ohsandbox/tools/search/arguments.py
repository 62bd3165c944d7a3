"""What every text that becomes an argument of a program must be."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds a NUL character, which no path or pattern can")
    return text


PathText = Annotated[str, AfterValidator(_without_nul)]
"""Text without NUL."""
