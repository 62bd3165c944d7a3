"""What the values of options must be, beyond their type; typer puts the option's name before the message."""

from __future__ import annotations

from pathlib import Path

import typer

MAX_NUMBER = 1e9
"""Thirty years of seconds; timers of the system overflow at 9.2e9."""


def above_zero(text: str) -> float:
    """A number of seconds or dollars.

    Raises:
        typer.BadParameter: it is none, not above 0, or over MAX_NUMBER.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_NUMBER:  # nan is neither
        raise typer.BadParameter(f"{text!r} is no number above 0 and up to {MAX_NUMBER:,.0f}.")
    return number


def path(text: str) -> Path:
    """A name of a file or directory. `Path("")` would be the current directory, which nobody named.

    Raises:
        typer.BadParameter: it is empty.
    """
    if not text:
        raise typer.BadParameter("it is empty. Name one, or leave the option out.")
    return Path(text)
