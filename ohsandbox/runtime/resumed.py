"""`Resumed`: what became of a sandbox between two processes that work in it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Resumed(NamedTuple):
    """What `Runtime.resume` found."""

    how: Literal["same", "checkpoint", "new"]
    """`same`: the files are as they were left; `checkpoint`: as they were when it was made; `new`: a fresh sandbox."""
    notes: tuple[str, ...] = ()
    """For the person, a line each: what was done to it, and where it is not what was asked for."""
    place: str = ""
    """Its name, for people; empty where it has none."""
