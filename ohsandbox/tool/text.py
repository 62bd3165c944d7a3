"""Limits the text for a model."""

from __future__ import annotations


def cut_middle(text: str, *, limit_chars: int) -> str:
    """The text, or its head and tail with a line between that states exactly how much is missing.

    Head and tail together have limit_chars characters; the line between is additional.
    """
    if len(text) <= limit_chars:
        return text
    head = limit_chars // 2
    tail = limit_chars - head
    missing = len(text) - limit_chars
    return f"{text[:head]}\n[... {missing} of {len(text)} characters left out here ...]\n{text[len(text) - tail :]}"
