"""`Finding`: one risk that a rule found."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """A risk level and, on one line for a user, what the rule found."""

    risk: Literal["MEDIUM", "HIGH"]
    what: str


def quoted(text: str) -> str:
    """Quote foreign text for a finding: truncated, on one line."""
    return repr(text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}...")


MAX_QUOTED_CHARS = 80
"""Enough to recognise a path."""
