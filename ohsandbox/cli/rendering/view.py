"""What a person sees of a conversation: `View`, with its two forms `terminal.RichView` and `plain.PlainView`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from ohsandbox.cli.rendering.events import Form

if TYPE_CHECKING:
    from datetime import datetime

    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent

MODEL_WORKS = "the model works"
"""The status while an answer is awaited."""


class View(Protocol):
    """Shows what happens."""

    wants_stream: bool
    """Pieces of an answer are of use to it."""

    def info(self, text: str) -> None:
        """A line of our own."""

    def warn(self, text: str) -> None:
        """A line of our own that should not be overlooked."""

    def show(self, event: SDKEvent) -> None:
        """An event of the log."""

    def stream(self, event: LLMEvent) -> None:
        """What the model's client tells while an answer is written; the event that holds the answer comes after."""

    def status(self, text: str) -> None:
        """What is going on now, until the next call; an empty text for nothing."""

    def tick(self) -> None:
        """Time passes; called some times a second while the view has nothing to show."""


def open_view(*, no_tui: bool, stored: bool = False) -> View:
    """Colors at a terminal, else lines; stored: for a conversation that is read from disk."""
    also = Form.STORED if stored else Form.NOWHERE
    if no_tui or not sys.stdout.isatty():
        from ohsandbox.cli.rendering.plain import PlainView  # noqa: PLC0415 - one of the two

        return PlainView(forms=Form.PLAIN | also)
    from ohsandbox.cli.rendering.terminal import RichView  # noqa: PLC0415 - rich's Markdown is slow to import

    return RichView(forms=Form.TERMINAL | also)


class RunTotals:
    """What a run came to."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._responses: set[str] = set()
        self.tokens = 0
        self.cost_usd: float | None = None

    def add(self, event: SDKEvent) -> None:
        """Take in what the event says was used."""
        usage, cost = event.data.get("usage"), event.data.get("cost_usd")
        if usage:
            self.tokens += int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
        if cost:
            self.cost_usd = (self.cost_usd or 0.0) + float(cost)
        if event.data.get("response_id"):
            self._responses.add(str(event.data["response_id"]))

    @property
    def steps(self) -> int:
        """Answers of the model."""
        return len(self._responses)

    def __str__(self) -> str:
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        parts = [f"{time.monotonic() - self._began:.1f} s", steps]
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.cost_usd is not None:
            parts.append(f"${self.cost_usd:.4f}")
        return " · ".join(parts)


class Stopwatch:
    """How long each tool call took, by the events' own times."""

    def __init__(self) -> None:
        self._called_at: dict[str, datetime] = {}

    def seconds(self, event: SDKEvent) -> float | None:
        """Of a `tool_result`, the seconds since its `tool_call`."""
        call_id = str(event.data.get("tool_call_id", ""))
        if event.type == "tool_call":
            self._called_at[call_id] = event.ts
            return None
        began = self._called_at.pop(call_id, None)
        return None if began is None else max(0.0, (event.ts - began).total_seconds())
