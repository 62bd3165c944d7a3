"""`Checkpoint`: a sandbox's files at one moment."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - a NamedTuple's annotations are read by whoever prints it
from typing import NamedTuple


class Checkpoint(NamedTuple):
    """What `Runtime.checkpoint` made and `Runtime.restore` takes. Processes and tmpfs are no part of it."""

    id: str
    """The engine's; unique."""
    label: str
    """What the caller called it; may be empty."""
    made_at: datetime
    size_bytes: int
    """What it holds beyond the image that the sandbox was made from."""
