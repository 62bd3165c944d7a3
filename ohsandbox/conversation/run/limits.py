"""Limits of a conversation: `RunLimits`, what is used of them (`Spending`), and a model that repeats itself."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ohsandbox import events
from ohsandbox.arguments import ConfigModel
from ohsandbox.errors import LimitReachedError, UsageError
from ohsandbox.tools import hint_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.events import EventBody, SDKEvent
    from ohsandbox.llm import ChatModel

_NUDGED = "Repetition"
"""Code of the notice that tells the model that it repeats itself."""

_MAX_STUCK_AFTER = 20
"""Upper bound of both thresholds; twice as many calls are kept in memory."""


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
    nudge_after: int | None = Field(default=3, ge=2, le=_MAX_STUCK_AFTER)
    """Number of repetitions after which the model is told what it repeats; None never tells it."""
    stuck_after: int = Field(default=4, ge=2, le=_MAX_STUCK_AFTER)
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

    def recall(self, event: SDKEvent) -> None:
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


class _Turn:
    """A call and its result; their digests are computed at first use, which is rare."""

    def __init__(self, call: SDKEvent | None, result: SDKEvent) -> None:
        called = {} if call is None else call.data
        self.name: str = result.data["name"]
        self.is_thought = hint_of(self.name, called).kind == "thought"
        self.response_id: str = called.get("response_id", "")
        self._arguments: str = called.get("arguments", "{}")
        self._result: dict[str, Any] = result.data["result"]

    @cached_property
    def call(self) -> bytes:
        """Digest of name, result and arguments; key order, whitespace and `security_risk` do not count."""
        arguments = json.loads(self._arguments)
        arguments.pop("security_risk", None)
        return _digest(self.name, arguments, self._result)

    @cached_property
    def error(self) -> bytes | None:
        """Digest of name and error; None if the call succeeded."""
        return _digest(self.name, self._result) if self._result["status"] == "error" else None

    def repeats(self, other: _Turn) -> bool:
        """Whether other is the same call of the same response: the model wrote both before it saw a result."""
        if not self.response_id or self.response_id != other.response_id:
            return False
        return self.call == other.call or (self.error is not None and self.error == other.error)


class StuckDetector:
    """Detects repetitions, from the events. A user message resets it; polls of a running command do not count.

    n repetitions are one of these: n times in a row the same call with the same result; n times in a row the same error
    of the same tool, with any arguments; n - 1 times (at least 2) two alternating calls with the same results; 2 n
    thoughts in a row.
    """

    def __init__(self) -> None:
        self._calls: dict[str, SDKEvent] = {}
        self._turns: deque[_Turn] = deque(maxlen=2 * _MAX_STUCK_AFTER)
        self._since_nudge = 0
        """Number of turns since the model was last told: it is told of each once."""

    def add(self, event: SDKEvent) -> None:
        """Handle the next event."""
        if event.type == "user_message":
            self._turns.clear()
            self._calls.clear()
            self._since_nudge = 0
        elif event.type == "tool_call":
            self._calls[event.data["tool_call_id"]] = event
        elif event.type == "notice" and event.data.get("code") == _NUDGED:
            self._since_nudge = 0
        elif event.type == "tool_result" and not (event.data.get("details") or {}).get("running"):
            turn = _Turn(self._calls.pop(event.data["tool_call_id"], None), event)
            if not any(turn.repeats(other) for other in self._turns):
                self._turns.append(turn)
                self._since_nudge += 1

    def check(self, limits: RunLimits) -> None:
        """Check that the last calls are not repetitions.

        Raises:
            LimitReachedError: there were `stuck_after` repetitions; its code is Stuck.
        """
        if why := _repetition([*self._turns], limits.stuck_after):
            raise LimitReachedError(
                f"The model goes round in circles: {why}. Tell it what to do otherwise.", code="Stuck"
            )

    def nudge(self, limits: RunLimits) -> EventBody | None:
        """Return the notice for the model if there were `nudge_after` repetitions since the last one, else None."""
        if limits.nudge_after is None:
            return None
        why = _repetition([*self._turns][max(0, len(self._turns) - self._since_nudge) :], limits.nudge_after)
        if why is None:
            return None
        message = (
            f"You repeat yourself: {why}. The same again will change nothing. Try another way, or tell the user what "
            "stops you; if you go on like this, the run is ended."
        )
        return events.notice(code=_NUDGED, message=message, to_model=True)


def _repetition(turns: list[_Turn], times: int) -> str | None:
    """Return what the last turns repeat so many times; None if they do not."""
    last = turns[-times:]
    if len(last) == times:
        if _same(turn.call for turn in last):
            return f"{times} times the same call of {last[-1].name} with the same result"
        errors = [turn.error for turn in last]
        if errors[0] is not None and _same(errors):
            return f"{times} times the same error of {last[-1].name}"
    rounds = max(times - 1, 2)
    pairs = turns[-2 * rounds :]
    if len(pairs) == 2 * rounds and all(_same(turn.call for turn in half) for half in (pairs[::2], pairs[1::2])):
        return f"{pairs[-2].name} and {pairs[-1].name} in turn, {rounds} times with the same results"
    thoughts = turns[-2 * times :]
    if len(thoughts) == 2 * times and all(turn.is_thought for turn in thoughts):
        return f"{2 * times} thoughts in a row and no action"
    return None


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()


def _same(values: Iterable[Any]) -> bool:
    return len(set(values)) == 1
