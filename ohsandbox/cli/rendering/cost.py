"""The cost of a conversation as text and as JSON, for `/cost` and `ohsandbox cost`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from ohsandbox.cli.rendering.tables import aligned
from ohsandbox.cli.rendering.text import safe_line, truncated

if TYPE_CHECKING:
    from ohsandbox.conversation.cost import ConversationCost, Cost

MAX_TITLE_CHARS, MAX_MODEL_CHARS = 36, 36


def cost_table(cost: ConversationCost) -> Text:
    """Return the cost of a conversation by turn and in total; what has no known price is named."""
    if not cost.turns:
        return Text("Nothing was asked yet.")
    models = list(dict.fromkeys(model for turn in cost.turns for model in turn.models))
    rows: list[tuple[str, ...]] = [("TURN", "REQUESTS", "READ", "CACHED", "WRITTEN", "COST", "MODEL", "MESSAGE")]
    for turn in cost.turns:
        asked = ", ".join(safe_line(model, limit_chars=MAX_MODEL_CHARS) for model in turn.models)
        rows.append(
            (str(turn.number or ""), *_counts(turn.cost), asked, truncated(safe_line(turn.title), MAX_TITLE_CHARS))
        )
    rows.append(("all", *_counts(cost.total), "", ""))
    if len(models) <= 1:
        rows = [(*row[:6], row[7]) for row in rows]
    text = aligned(rows, right=(0, 1, 2, 3, 4, 5), heading=True)
    if len(models) == 1:
        text.append(f"\nAll by {safe_line(models[0])}.")
    if cost.total.unpriced:
        number = cost.total.unpriced
        unpriced = "1 request" if number == 1 else f"{number:,} requests"
        text.append(
            f"\nThe price of {unpriced} is not known. --price IN,OUT gives it, in dollars for a million tokens."
        )
    return text


def _counts(cost: Cost) -> tuple[str, str, str, str, str]:
    counts = cost.requests, cost.prompt_tokens, cost.cached_tokens, cost.completion_tokens
    requests, read, cached, written = (f"{count:,}" for count in counts)
    return requests, read, cached, written, price_words(cost, short=True)


def price_words(cost: Cost, *, short: bool = False) -> str:
    """Return the cost in dollars, and whether all of it has a price."""
    dollars = f"${cost.cost_usd:.4f}"
    if not cost.unpriced:
        return dollars
    if cost.unpriced == cost.requests:
        return "unknown" if short else "unknown: this model has no price (--price IN,OUT gives it)"
    return f">{dollars}" if short else f"{dollars}, and {cost.unpriced} requests whose price is not known"


def cost_fields(cost: ConversationCost) -> dict[str, Any]:
    """Return the cost for `--json`; `cost_usd` is null if a price is not known."""
    turns = [
        {"turn": turn.number, "title": turn.title, "began_at": turn.began_at.isoformat(), "models": [*turn.models]}
        | _fields(turn.cost)
        for turn in cost.turns
    ]
    return {"turns": turns, "total": _fields(cost.total)}


def _fields(cost: Cost) -> dict[str, Any]:
    return cost._asdict() | {"cost_usd": None if cost.unpriced else cost.cost_usd, "known_cost_usd": cost.cost_usd}
