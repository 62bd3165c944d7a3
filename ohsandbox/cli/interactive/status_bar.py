"""The bottom line of a session: model, place, mode, network and cost, and whose turn it is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.cli.rendering.text import safe_line, truncated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.conversation import Conversation
    from ohsandbox.events import SDKEvent

GAP = " · "
MAX_NAME_CHARS = 40
_LEAST_USD = 0.00005
"""Smaller amounts are not shown."""
WIDE = 100
"""Below this width the model's name is shown without its provider."""


class _BarPart(NamedTuple):
    """A part of the bottom line."""

    text: str
    rank: int
    """If the line is too long, the parts with the highest rank are dropped first."""


class StatusBar:
    """Counts events for the bottom line. Another thread may draw meanwhile, so each number is replaced as a whole."""

    def __init__(self) -> None:
        self.model = ""
        self.window: int | None = None
        """The model's context window in tokens."""
        self.place = ""
        """The name of the container, or the host."""
        self.mode = ""
        """The confirmation mode in a few words."""
        self.network = ""
        """The network in two words."""
        self.blocked = 0
        """Number of requests that the network refused."""
        self.waits_for = "starting"
        self.session_usd: Callable[[], float] = lambda: 0.0
        """Returns the cost of the session, which may include other conversations."""
        self._tokens = self._context = self._steps = 0
        self._cost_usd, self._is_priced = 0.0, True
        self._response = ""
        self._worked_s = 0.0
        self._since: float | None = None
        self._lock = threading.Lock()

    def open(self, conversation: Conversation, place: str) -> None:
        """Switch to another conversation and start from its cost so far."""
        spent = conversation.cost.total
        with self._lock:
            self._tokens, self._context, self._steps = spent.tokens, conversation.context.tokens, spent.requests
            self._cost_usd, self._worked_s, self._since, self._response = spent.cost_usd, 0.0, None, ""
            self._is_priced = not spent.unpriced
        self.show_model(conversation)
        self.place = safe_line(place, limit_chars=MAX_NAME_CHARS)

    def show_model(self, conversation: Conversation) -> None:
        """Show the model that the conversation uses now."""
        model = conversation.agent.llm
        if model is not None:
            self.model, self.window = safe_line(model.name), model.context_tokens

    def add(self, event: SDKEvent) -> None:
        """Count an event of the log."""
        data = event.data
        usage = data.get("usage") or {}
        prompt_tokens, answered = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        with self._lock:
            self._tokens += prompt_tokens + answered
            self._cost_usd += data.get("cost_usd") or 0.0
            self._is_priced = self._is_priced and (not usage or data.get("cost_usd") is not None)
            if event.type in {"assistant_message", "tool_call"} and prompt_tokens:
                self._context = prompt_tokens + answered
            elif event.type == "condensation":
                self._context = 0
            response = data.get("response_id")
            if response and response != self._response:
                self._response = response
                self._steps += 1
            if event.type == "status_update":
                self._count_time(is_running=data.get("status") == "RUNNING")

    def _count_time(self, *, is_running: bool) -> None:
        now = time.monotonic()
        if is_running and self._since is None:
            self._since = now
        elif not is_running and self._since is not None:
            self._worked_s, self._since = self._worked_s + now - self._since, None

    def line(self, columns: int, *, is_my_turn: bool = False) -> str:
        """Return the line for this width; the first and the last part are dropped last."""
        model = self.model if columns >= WIDE else self.model.rpartition("/")[2]
        parts = self._parts(truncated(model, MAX_NAME_CHARS), "your turn" if is_my_turn else self.waits_for)
        while len(parts) > 1 and len(_joined(parts)) > columns:
            parts.remove(max(parts, key=lambda part: part.rank))
        return _joined(parts)[:columns]

    def _parts(self, model: str, waits_for: str) -> list[_BarPart]:
        with self._lock:
            worked_s = self._worked_s + (0.0 if self._since is None else time.monotonic() - self._since)
            share = f" ({self._context / self.window:.0%} of {_short(self.window)})" if self.window else ""
            parts = [
                _BarPart(model, 2),
                _BarPart(f"{_short(self._tokens)} tokens", 5),
                _BarPart(f"context {_short(self._context)}{share}", 4),
                _BarPart(self._cost(), 3),
                _BarPart(_duration(worked_s), 6),
                _BarPart(f"step {self._steps}", 7),
                _BarPart(self.network + (f", {self.blocked} blocked" if self.blocked else ""), 8),
                _BarPart(self.place, 9),
                _BarPart(self.mode, 1),
                _BarPart(waits_for, 0),
            ]
        return [part for part in parts if part.text]

    def _cost(self) -> str:
        """Return the cost of the conversation and, if it is higher (after `/clear` or `/undo`), of the session."""
        cost, session_usd = self._own_cost(), self.session_usd()
        if session_usd <= self._cost_usd + _LEAST_USD:
            return cost
        return f"{cost or '$0'} (session {_dollars(session_usd)})"

    def _own_cost(self) -> str:
        """Return the conversation's cost; empty before there is one. A sum with unknown prices ends with `+`."""
        if not self._steps:
            return ""
        if not self._is_priced:
            return f"${self._cost_usd:.4f}+" if self._cost_usd else "price unknown"
        return _dollars(self._cost_usd)


def _dollars(amount: float) -> str:
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}"


def _joined(parts: list[_BarPart]) -> str:
    return GAP.join(part.text for part in parts)


def _short(count: int) -> str:
    """Shorten a number: `812`, `8.1k`, `1.2M`."""
    for limit, unit in ((1_000_000, "M"), (1000, "k")):
        if count >= limit:
            number = count / limit
            return f"{number:.1f}".removesuffix(".0") + unit if number < 100 else f"{number:.0f}{unit}"  # noqa: PLR2004
    return str(count)


def _duration(seconds: float) -> str:
    minutes, remaining_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {remaining_s} s" if minutes else f"{remaining_s} s"
