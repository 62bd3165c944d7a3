"""`Finding`: one risk that a rule found; `names` and `names_by_program` parse the tables, which are lists of words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Finding(NamedTuple):
    """A risk level and, on one line for a user, what the rule found."""

    risk: Literal["MEDIUM", "HIGH"]
    what: str


MAX_QUOTED_CHARS = 80
"""Limit of a quoted text: enough to recognise a path."""


def quoted(text: str) -> str:
    """Quote foreign text for a finding: truncated, on one line."""
    return repr(text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}...")


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def names_by_program(rows: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the words of each program, from rows that name several programs and their words."""
    names_of: dict[str, frozenset[str]] = {}
    for programs, words in rows.items():
        for program in programs.split():
            names_of[program] = names_of.get(program, frozenset()) | names(words)
    return names_of
