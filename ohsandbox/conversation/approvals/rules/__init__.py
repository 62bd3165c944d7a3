"""`Finding`: one risk that a rule found; `names` and `known_names` give lists of words."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal, NamedTuple


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


def known_names(key: str) -> frozenset[str]:
    """The names that the table `known_names.txt` has below a key; none for a key that it does not have."""
    return _known_names().get(key, frozenset())


@functools.cache
def _known_names() -> dict[str, frozenset[str]]:
    text = Path(__file__).with_name("known_names.txt").read_text(encoding="utf-8")
    entries = (entry.split(":", 1) for entry in re.split(r"\n(?=\S)", text) if entry[0] != "#")
    return {key: names(words) for keys, words in entries for key in _each_key(keys)}


def _each_key(keys: str) -> list[str]:
    *before, last = keys.split(" ")
    return [" ".join([*before, choice]) for choice in last.split("/")]
