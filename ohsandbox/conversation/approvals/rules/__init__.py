"""`Finding`: one thing that a rule noticed."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """A risk and, on one line for a person, what was seen."""

    risk: Literal["MEDIUM", "HIGH"]
    what: str


def quoted(text: str) -> str:
    """Foreign text in a finding: cut, on one line."""
    return repr(text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}...")


MAX_QUOTED_CHARS = 80
"""Enough to recognise a path."""
