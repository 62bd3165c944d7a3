"""How long, how often and at what price a conversation may go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.errors import LimitReachedError

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent


class Limits(BaseModel):
    """Checked before each request to the model; None is no limit.

    Iterations and time count from the user's last message that started a run; tokens and cost over the whole
    conversation, with what a resumed log already spent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_iterations: int | None = Field(default=500, gt=0)
    """Requests to the model."""
    max_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    """Read and written together."""
    max_cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Spending:
    """What a conversation has used up so far."""

    def __init__(self) -> None:
        self.iterations = 0
        self.tokens = 0
        self.cost_usd = 0.0
        self._run_started = time.monotonic()

    def begin_run(self) -> None:
        """Iterations and time start again."""
        self.iterations = 0
        self._run_started = time.monotonic()

    def add(self, event: SDKEvent) -> None:
        """Take in what an event says was used."""
        usage = event.data.get("usage") or {}
        self.tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        self.cost_usd += event.data.get("cost_usd") or 0.0
        self.iterations += event.data.get("requests", 0)  # of sub-agents and of tools, each told in a notice

    def remaining(self, limits: Limits) -> Limits:
        """What is left of limits, as the limits of a conversation inside this one.

        Raises:
            LimitReachedError: nothing is left of one.
        """
        self.check(limits)
        used = {
            "max_iterations": self.iterations,
            "max_time_s": time.monotonic() - self._run_started,
            "max_tokens": self.tokens,
            "max_cost_usd": self.cost_usd,
        }
        given = limits.model_dump()
        return Limits(**{name: given[name] and given[name] - used[name] for name in used})

    def check(self, limits: Limits) -> None:
        """Pass if one more request may be made.

        Raises:
            LimitReachedError: a limit is reached; code is MaxIterations, MaxTime, MaxTokens or MaxCost.
        """
        elapsed_s = time.monotonic() - self._run_started
        spent = (
            ("MaxIterations", "max_iterations", self.iterations, limits.max_iterations, "requests to the model"),
            ("MaxTime", "max_time_s", elapsed_s, limits.max_time_s, "seconds"),
            ("MaxTokens", "max_tokens", self.tokens, limits.max_tokens, "tokens"),
            ("MaxCost", "max_cost_usd", self.cost_usd, limits.max_cost_usd, "US dollars"),
        )
        for code, name, value, limit, unit in spent:
            if limit is not None and value >= limit:
                message = f"The limit of {limit} {unit} is reached ({round(value, 3):g} used). Raise {name} to go on."
                raise LimitReachedError(message, code=code)
