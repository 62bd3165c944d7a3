"""`Spending`: requests, time, tokens and cost of a conversation so far, held against its limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ohsandbox.errors import LimitReachedError

if TYPE_CHECKING:
    from ohsandbox.conversation.config import Limits
    from ohsandbox.events import SDKEvent


class Spending:
    """Requests, time, tokens and cost used so far."""

    def __init__(self) -> None:
        self.iterations = 0
        self.tokens = 0
        self.cost_usd = 0.0
        self._run_started = time.monotonic()
        self._used_s = 0.0
        self._spoken_to = True

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, without waits for a person."""
        return time.monotonic() - self._run_started

    def begin_run(self) -> None:
        """Reset iterations and time if the user has sent a message; a run after a confirmation continues them."""
        if self._spoken_to:
            self.iterations, self._used_s = 0, 0.0
        self._spoken_to = False
        self._run_started = time.monotonic() - self._used_s

    def end_run(self) -> None:
        """Stop the clock until the next run."""
        self._used_s = self.elapsed_s

    def add(self, event: SDKEvent) -> None:
        """Add the usage that an event reports."""
        usage = event.data.get("usage") or {}
        self.tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        self.cost_usd += event.data.get("cost_usd") or 0.0
        self.iterations += event.data.get("requests", 0)  # of sub-agents and of tools, each told in a notice
        self._spoken_to = self._spoken_to or event.type == "user_message"

    def recall(self, event: SDKEvent) -> None:
        """`add` for an event of an earlier process: its requests are counted by their answers."""
        if event.type == "user_message":
            self.iterations = 0
        self.add(event)
        if "usage" in event.data and "requests" not in event.data:
            self.iterations += 1
            self._spoken_to = False

    def remaining(self, limits: Limits) -> Limits:
        """The rest of limits, as the limits of a sub-agent's conversation.

        Raises:
            LimitReachedError: nothing is left of one.
        """
        self.check(limits)
        return limits.model_copy(
            update={
                "max_iterations": _left(limits.max_iterations, self.iterations),
                "max_time_s": _left(limits.max_time_s, self.elapsed_s),
                "max_tokens": _left(limits.max_tokens, self.tokens),
                "max_cost_usd": _left(limits.max_cost_usd, self.cost_usd),
            }
        )

    def check(self, limits: Limits) -> None:
        """Check that one more request may be made.

        Raises:
            LimitReachedError: a limit is reached; code is MaxIterations, MaxTime, MaxTokens or MaxCost.
        """
        spent = (
            ("MaxIterations", "max_iterations", self.iterations, limits.max_iterations, "requests to the model"),
            ("MaxTime", "max_time_s", self.elapsed_s, limits.max_time_s, "seconds"),
            ("MaxTokens", "max_tokens", self.tokens, limits.max_tokens, "tokens"),
            ("MaxCost", "max_cost_usd", self.cost_usd, limits.max_cost_usd, "US dollars"),
        )
        for code, name, value, limit, unit in spent:
            if limit is not None and value >= limit:
                raise _reached(code, name, value, limit, unit)

    def out_of_time(self, limits: Limits) -> LimitReachedError:
        """The error of a run that was stopped because its time was up."""
        return _reached("MaxTime", "max_time_s", self.elapsed_s, limits.max_time_s or 0.0, "seconds")


def _left(limit: float | None, used: float) -> float | None:
    return None if limit is None else limit - used


def _reached(code: str, name: str, value: float, limit: float, unit: str) -> LimitReachedError:
    message = f"The limit of {limit:g} {unit} is reached ({round(value, 3):g} used). Raise {name} to go on."
    return LimitReachedError(message, code=code)
