"""The cost of a conversation: `cost_of` reads it from the log, by turn."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

from ohsandbox.conversation.storage.metadata import title_of_message
from ohsandbox.persistence import stream_events
from ohsandbox.timetravel.turns import Turns

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from ohsandbox.events import SDKEvent


class Cost(NamedTuple):
    """Requests to a model, their tokens and their cost, including those of sub-agents and of tools."""

    requests: int = 0
    prompt_tokens: int = 0
    """Tokens of all prompts, `cached_tokens` included."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    """Cost in US dollars of the requests that have a price."""
    unpriced: int = 0
    """Number of requests without a known price; `cost_usd` does not include them."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both."""
        return Cost(*map(operator.add, self, other))


class ContextUse(NamedTuple):
    """How much of a model's context window a conversation takes."""

    tokens: int
    """Prompt tokens of the last request, as the provider counts them; 0 before the first and after a condensation."""
    window: int | None
    """Maximum tokens of a request; None if it is not known."""

    @property
    def share(self) -> float | None:
        """The used share of the window, from 0 to 1; None if the window is not known."""
        return self.tokens / self.window if self.window else None


class _TurnCost(NamedTuple):
    """The cost of one message of the user."""

    number: int
    """Number of the turn, from 1, as `undo` counts them; 0 for everything before the first message."""
    title: str
    """The beginning of the message."""
    began_at: datetime
    models: tuple[str, ...]
    """Names of the models that answered, in order."""
    cost: Cost


class ConversationCost(NamedTuple):
    """The cost of a conversation, by turn."""

    turns: tuple[_TurnCost, ...]

    @property
    def total(self) -> Cost:
        """The cost of all turns."""
        total = Cost()
        for turn in self.turns:
            total = total.plus(turn.cost)
        return total


def cost_of(directory: Path) -> ConversationCost:
    """Return the cost so far of the conversation in this directory; a process may have it open.

    Raises:
        UsageError: there is no log, or it cannot be read.
        LogCorruptError: it is damaged.
    """
    turns: list[_TurnCost] = []
    counted = Turns()
    model = ""

    def on_event(event: SDKEvent) -> None:
        nonlocal model
        if (turn := counted.begun_by(event)) is not None:
            number = sum(1 for turn in turns if turn.number) + 1
            turns.append(_TurnCost(number, title_of_message(turn.data["content"]) or "", turn.ts, (), Cost()))
        if event.type == "status_update":
            model = event.data.get("model") or model
        if (cost := _cost_in(event)) is not None:
            if not turns:
                turns.append(_TurnCost(0, "", event.ts, (), Cost()))
            last = turns[-1]
            models = last.models if model in {"", *last.models} else (*last.models, model)
            turns[-1] = last._replace(models=models, cost=last.cost.plus(cost))

    stream_events(directory, on_event)
    return ConversationCost(tuple(turns))


def _cost_in(event: SDKEvent) -> Cost | None:
    """Return the cost of the requests that an event reports; None if it reports none."""
    usage = event.data.get("usage")
    requests = event.data.get("requests", 1 if usage else 0)
    if not requests:
        return None
    price = event.data.get("cost_usd")
    names = "prompt_tokens", "completion_tokens", "cached_tokens"
    prompt, completion, cached = (int((usage or {}).get(name) or 0) for name in names)
    return Cost(requests, prompt, completion, cached, price or 0.0, requests if price is None else 0)
