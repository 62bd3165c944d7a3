"""`StuckDetector`: recognizes a model that repeats itself."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ohsandbox.errors import LimitReachedError

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent

SAME_CALL = 4
"""Number of times that the same call has the same result in a row."""

SAME_ERROR = 4
"""Number of times that the same tool fails with the same message in a row, whatever its arguments."""

ALTERNATING = 6
"""Two calls in turn, A B A B A B, each with the result it had before."""

THOUGHTS = 8
"""Number of `think` calls in a row."""

_THINKING = "think"


class _Turn:
    """A call and its result; digests are made when they are first looked at, since most turns never are."""

    def __init__(self, name: str, arguments: str, result: dict[str, Any], *, response_id: str) -> None:
        self.name = name
        self.response_id = response_id
        self._arguments = arguments
        self._result = result

    @cached_property
    def call(self) -> bytes:
        """Of name, arguments and result."""
        return _digest(self.name, _canonical(self._arguments), self._result)

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
    """Follows every event; a user message resets it. A poll of a command that is still running does not count."""

    def __init__(self) -> None:
        self._arguments: dict[str, tuple[str, str]] = {}
        self._turns: deque[_Turn] = deque(maxlen=max(SAME_CALL, SAME_ERROR, ALTERNATING, THOUGHTS))

    def add(self, event: SDKEvent) -> None:
        """Follow the next event."""
        data = event.data
        if event.type == "user_message":
            self._turns.clear()
            self._arguments.clear()
        elif event.type == "tool_call":
            self._arguments[data["tool_call_id"]] = (data["arguments"], data["response_id"])
        elif event.type == "tool_result" and not data["details"].get("running"):
            arguments, response_id = self._arguments.pop(data["tool_call_id"], ("{}", ""))
            turn = _Turn(data["name"], arguments, data["result"], response_id=response_id)
            if not any(turn.repeats(other) for other in self._turns):
                self._turns.append(turn)

    def check(self) -> None:
        """Check that the last calls do not repeat each other.

        Raises:
            LimitReachedError: they do; code is Stuck.
        """
        if why := self._why():
            raise LimitReachedError(
                f"The model goes round in circles: {why}. Tell it what to do otherwise.", code="Stuck"
            )

    def _why(self) -> str | None:
        turns = [*self._turns]
        names = [turn.name for turn in turns]
        if _same(turn.call for turn in turns[-SAME_CALL:]) and len(turns) >= SAME_CALL:
            return f"{SAME_CALL} times the same call of {names[-1]} with the same result"
        errors = [turn.error for turn in turns[-SAME_ERROR:]]
        if len(turns) >= SAME_ERROR and errors[0] is not None and _same(errors):
            return f"{SAME_ERROR} times the same error of {names[-1]}"
        pairs = [turn.call for turn in turns[-ALTERNATING:]]
        if len(turns) >= ALTERNATING and _same(pairs[::2]) and _same(pairs[1::2]):
            return f"{names[-2]} and {names[-1]} in turn, {ALTERNATING // 2} times with the same results"
        if len(turns) >= THOUGHTS and set(names[-THOUGHTS:]) == {_THINKING}:
            return f"{THOUGHTS} thoughts in a row and no action"
        return None


def _digest(*parts: Any) -> bytes:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).digest()


def _canonical(arguments: str) -> str:
    """The same for arguments that differ in order and blanks only, or in how risky the model calls them."""
    given = json.loads(arguments)
    given.pop("security_risk", None)
    return json.dumps(given, sort_keys=True)


def _same(values: Any) -> bool:
    return len(set(values)) == 1
