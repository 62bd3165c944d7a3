"""Limits of a conversation: `RunLimits`, what is spent of them (`Spending`), and a model that repeats itself."""

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
"""The code of the notice that tells the model that it repeats itself."""

_MAX_STUCK_AFTER = 20
"""Bound of both thresholds: so many repetitions are kept in memory, twice."""


class RunLimits(ConfigModel):
    """Checked before each request to the model; None: no limit. The time limit also ends a running request or tool.

    Iterations and time count from the user's last message that started a run, without the time that a person takes to
    confirm, and time anew in a resumed process; tokens and cost over the whole conversation, with what a resumed log
    already spent.
    """

    max_iterations: int | None = Field(default=500, gt=0)
    """Requests to the model."""
    max_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    """Prompt and completion tokens together."""
    max_cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Refused with a model whose price is unknown; an answer of unknown cost ends the run."""
    stuck_detection: bool = True
    """Whether a model that repeats itself is told so, then stopped; see `StuckDetector`."""
    nudge_after: int | None = Field(default=3, ge=2, le=_MAX_STUCK_AFTER)
    """Repetitions after which the model is told, with its next request, what it repeats; None never tells it."""
    stuck_after: int = Field(default=4, ge=2, le=_MAX_STUCK_AFTER)
    """Repetitions after which the run ends."""


Limits = RunLimits
"""The name of before: `SandboxLimits`, `OutputLimits` and `TransferLimits` are limits, too."""


def check_price(limits: RunLimits, model: ChatModel) -> None:
    """Check that the cost of the model's answers can be known where it is limited.

    A model that is none of ours, and does not say whether it has a price, is taken at its answers.

    Raises:
        UsageError: its price is unknown.
    """
    if limits.max_cost_usd is not None and not getattr(model, "has_price", True):
        raise UsageError(
            f"The price of model {model.name!r} is unknown, so max_cost_usd={limits.max_cost_usd:g} cannot be kept. "
            'Give its price by --price IN,OUT or "price" in the settings (US dollars for a million tokens), or leave '
            "max_cost_usd out."
        )


class Spending:
    """Requests, time, tokens and cost used so far."""

    def __init__(self) -> None:
        self.iterations = 0
        self.tokens = 0
        self.cost_usd = 0.0
        self._unpriced = False
        """An answer of this process came without its cost."""
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
        self._unpriced = self._unpriced or ("usage" in event.data and event.data.get("cost_usd") is None)
        self._add(event)

    def _add(self, event: SDKEvent) -> None:
        usage = event.data.get("usage") or {}
        self.tokens += usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        self.cost_usd += event.data.get("cost_usd") or 0.0
        self.iterations += event.data.get("requests", 0)  # of sub-agents and of tools, each told in a notice
        self._spoken_to = self._spoken_to or event.type == "user_message"

    def recall(self, event: SDKEvent) -> None:
        """`add` for an event of an earlier process: its requests are counted by their answers."""
        if event.type == "user_message":
            self.iterations = 0
        self._add(event)
        if "usage" in event.data and "requests" not in event.data:
            self.iterations += 1
            self._spoken_to = False

    def remaining(self, limits: RunLimits) -> RunLimits:
        """The rest of limits, as the limits of a sub-agent's conversation.

        Raises:
            LimitReachedError: nothing is left of one.
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
            LimitReachedError: a limit is reached, or one on cost cannot be kept; code is MaxIterations, MaxTime,
                MaxTokens or MaxCost.
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
        """The error of a run that was stopped because its time was up."""
        return _reached("max_time_s", self.elapsed_s, limits.max_time_s or 0.0, "seconds")

    def _used(self) -> tuple[tuple[str, float, str], ...]:
        """Each limit's name, what is used of it, and its unit."""
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
    """A call and its result; digests are made when they are first looked at, since most turns never are."""

    def __init__(self, call: SDKEvent | None, result: SDKEvent) -> None:
        called = {} if call is None else call.data
        self.name: str = result.data["name"]
        self.is_thought = hint_of(self.name, called).kind == "thought"
        self.response_id: str = called.get("response_id", "")
        self._arguments: str = called.get("arguments", "{}")
        self._result: dict[str, Any] = result.data["result"]

    @cached_property
    def call(self) -> bytes:
        """Of name, result and arguments, whatever the order of these, their blanks and the risk that the model says."""
        arguments = json.loads(self._arguments)
        arguments.pop("security_risk", None)
        return _digest(self.name, arguments, self._result)

    @cached_property
    def error(self) -> bytes | None:
        """Of name and error, where it failed."""
        return _digest(self.name, self._result) if self._result["status"] == "error" else None

    def repeats(self, other: _Turn) -> bool:
        """Whether other is of the same response and says the same: the model saw neither when it wrote the other."""
        if not self.response_id or self.response_id != other.response_id:
            return False
        return self.call == other.call or (self.error is not None and self.error == other.error)


class StuckDetector:
    """Follows every event; a user message resets it. A poll of a command that is still running does not count.

    n repetitions are: n times in a row the same call with the same result, or the same error of the same tool, whatever
    its arguments; n - 1 times (2 at least) two calls in turn, each with the result it had before; 2 n thoughts.
    """

    def __init__(self) -> None:
        self._calls: dict[str, SDKEvent] = {}
        self._turns: deque[_Turn] = deque(maxlen=2 * _MAX_STUCK_AFTER)
        self._since_nudge = 0
        """Number of turns since the model was told: it is told of them once."""

    def add(self, event: SDKEvent) -> None:
        """Follow the next event."""
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
        """Check that the last calls do not repeat each other.

        Raises:
            LimitReachedError: they do, `stuck_after` times; code is Stuck.
        """
        if why := _repetition([*self._turns], limits.stuck_after):
            raise LimitReachedError(
                f"The model goes round in circles: {why}. Tell it what to do otherwise.", code="Stuck"
            )

    def nudge(self, limits: RunLimits) -> EventBody | None:
        """The notice to the model where its calls since the last one repeat each other `nudge_after` times."""
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
    """What the last turns repeat so many times; None where they do not."""
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
