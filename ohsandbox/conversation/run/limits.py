"""Limits of a conversation: `RunLimits`, what is used of them (`Spending`), and the time limit (`Deadline`)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from pydantic import Field

from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import LimitReachedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.events import SDKEvent
    from ohsandbox.llm import ChatModel

MAX_STUCK_AFTER = 20
"""Upper bound of both thresholds; `StuckDetector` keeps twice as many calls in memory."""

INTERRUPT_EVERY_S = 0.5
"""Seconds between interrupts: one may come before the command begins, so they are repeated until the run has ended."""


class RunLimits(ConfigModel):
    """Limits that are checked before each request to the model; None is no limit.

    The time limit also ends a running request or tool. Iterations and time count from the last message of the user that
    started a run; the time that a person takes to confirm does not count, and a resumed process counts time anew.
    Tokens and cost count over the whole conversation, also before a resume.
    """

    max_iterations: int | None = Field(default=500, gt=0)
    """Requests to the model, including those of sub-agents and tools."""
    max_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    """Prompt and completion tokens together."""
    max_cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A model with unknown price is refused; an answer of unknown cost ends the run."""
    stuck_detection: bool = True
    """Whether a model that repeats itself is told so, and then stopped; see `StuckDetector`."""
    nudge_after: int | None = Field(default=3, ge=2, le=MAX_STUCK_AFTER)
    """Number of repetitions after which the model is told what it repeats; None never tells it."""
    stuck_after: int = Field(default=4, ge=2, le=MAX_STUCK_AFTER)
    """Number of repetitions after which the run ends."""


def check_price(limits: RunLimits, model: ChatModel) -> None:
    """Check that the price of the model is known if the cost is limited.

    A foreign model without the attribute `has_price` is accepted; its answers tell their cost.

    Raises:
        UsageError: the price is unknown.
    """
    if limits.max_cost_usd is not None and not getattr(model, "has_price", True):
        raise UsageError(
            f"The price of model {model.name!r} is unknown, so max_cost_usd={limits.max_cost_usd:g} cannot be kept. "
            'Give its price by --price IN,OUT or "price" in the settings (US dollars for a million tokens), or leave '
            "max_cost_usd out."
        )


class Spending:
    """The requests, time, tokens and cost used so far."""

    def __init__(self) -> None:
        self.iterations = 0
        self.tokens = 0
        self.cost_usd = 0.0
        self._unpriced = False
        """Whether an answer in this process came without its cost."""
        self._run_started = time.monotonic()
        self._used_s = 0.0
        self._spoken_to = True

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, without the waits for a person."""
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
        self._unpriced = self._unpriced or ("usage" in event.data and event.data.get("cost_usd") is None)
        self._add(event)

    def _add(self, event: SDKEvent) -> None:
        usage = event.data.get("usage") or {}
        self.tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        self.cost_usd += event.data.get("cost_usd") or 0.0
        self.iterations += event.data.get("requests", 0)  # of sub-agents and tools, reported in notices
        self._spoken_to = self._spoken_to or event.type == "user_message"

    def replay(self, event: SDKEvent) -> None:
        """Add an event of an earlier process, whose requests are counted by their answers."""
        if event.type == "user_message":
            self.iterations = 0
        self._add(event)
        if "usage" in event.data and "requests" not in event.data:
            self.iterations += 1
            self._spoken_to = False

    def remaining(self, limits: RunLimits) -> RunLimits:
        """Return the rest of the limits, as limits for a sub-agent.

        Raises:
            LimitReachedError: a limit is reached.
        """
        self.check(limits)
        return limits.model_copy(
            update={
                name: limit - used for name, used, _ in self._used() if (limit := getattr(limits, name)) is not None
            }
        )

    def check(self, limits: RunLimits) -> None:
        """Check that one more request may be made.

        Raises:
            LimitReachedError: a limit is reached, or a limit on cost cannot be enforced; its code is MaxIterations,
                MaxTime, MaxTokens or MaxCost.
        """
        for name, used, unit in self._used():
            limit = getattr(limits, name)
            if limit is not None and used >= limit:
                raise _reached(name, used, limit, unit)
        if limits.max_cost_usd is not None and self._unpriced:
            raise LimitReachedError(
                f"The cost of an answer is unknown (no price, or its provider told no tokens), so the limit of "
                f"{limits.max_cost_usd:g} US dollars cannot be kept. Leave max_cost_usd out to go on.",
                code=_CODES["max_cost_usd"],
            )

    def out_of_time(self, limits: RunLimits) -> LimitReachedError:
        """Return the error of a run that was stopped by the time limit."""
        return _reached("max_time_s", self.elapsed_s, limits.max_time_s or 0.0, "seconds")

    def _used(self) -> tuple[tuple[str, float, str], ...]:
        """Return name, use and unit of each limit."""
        return (
            ("max_iterations", self.iterations, "requests to the model"),
            ("max_time_s", self.elapsed_s, "seconds"),
            ("max_tokens", self.tokens, "tokens"),
            ("max_cost_usd", self.cost_usd, "US dollars"),
        )


_CODES = {
    "max_iterations": "MaxIterations", "max_time_s": "MaxTime", "max_tokens": "MaxTokens", "max_cost_usd": "MaxCost",
}  # fmt: skip


def _reached(name: str, used: float, limit: float, unit: str) -> LimitReachedError:
    message = f"The limit of {limit:g} {unit} is reached ({round(used, 3):g} used). Raise {name} to go on."
    return LimitReachedError(message, code=_CODES[name])


class Deadline:
    """A block with a time limit: after it has passed, a function is called repeatedly until the block is left."""

    def __init__(self, seconds: float | None, cut: Callable[[], None]) -> None:
        """Call cut, which must return soon, in another thread after so many seconds; None never calls it."""
        self.passed = False
        self._seconds = seconds
        self._cut = cut
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="ohsandbox-deadline", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until no call of cut is running; none comes after this."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        wait_s = min(max(0.0, self._seconds or 0.0), threading.TIMEOUT_MAX)
        while not self._left.wait(wait_s):
            self.passed = True
            self._cut()
            wait_s = INTERRUPT_EVERY_S
