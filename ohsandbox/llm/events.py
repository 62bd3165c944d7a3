"""What `send` tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RetryEvent(_Event):
    """A request failed and is made again after a wait. What was streamed of it is void."""

    type: Literal["retry"] = "retry"
    attempt: int
    """The number of the attempt that failed, from 1."""
    wait_s: float
    reason: str
    """One line."""


class DeltaEvent(_Event):
    """A piece of the answer's text, as it is written."""

    type: Literal["delta"] = "delta"
    text: str


class WarningEvent(_Event):
    """Something the person should know; the work goes on."""

    type: Literal["warning"] = "warning"
    text: str


LLMEvent = RetryEvent | DeltaEvent | WarningEvent
OnEvent = Callable[[LLMEvent], None]
