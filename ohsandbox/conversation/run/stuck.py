"""`StuckDetector`: a model that repeats itself is told so, and then stopped."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.conversation.run.limits import MAX_STUCK_AFTER
from ohsandbox.errors import LimitReachedError
from ohsandbox.tools import arguments_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ohsandbox.conversation.run.limits import RunLimits
    from ohsandbox.events import EventBody, SDKEvent

_NUDGED = "Repetition"
"""Code of the notice that tells the model that it repeats itself."""


class _Turn:
    """A call and its result; their digests are computed at first use, which is rare."""

    def __init__(self, call: SDKEvent | None, result: SDKEvent) -> None:
        called = {} if call is None else call.data
        self.name: str = result.data["name"]
        self.is_thought = hint_of(self.name, called).kind == "thought"
        self.response_id: str = called.get("response_id", "")
        self._called = called
        self._result: dict[str, Any] = result.data["result"]

    @cached_property
    def call(self) -> bytes:
        """Digest of name, result and arguments; key order, whitespace and `security_risk` do not count."""
        arguments = arguments_of(self._called)
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
        self._turns: deque[_Turn] = deque(maxlen=2 * MAX_STUCK_AFTER)
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
