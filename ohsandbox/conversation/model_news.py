"""`ModelNews`: what the model's client tells while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.conversation.delivery import Delivery

if TYPE_CHECKING:
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.llm.events import LLMEvent


class ModelNews:
    """Retries and warnings go into the trail; all of it goes to those who look on, pieces of text as well."""

    def __init__(self, trail: Trail) -> None:
        self.delivery: Delivery[LLMEvent] = Delivery()
        self._trail = trail

    def __call__(self, event: LLMEvent) -> None:
        """Hear of something; in the thread that asks the model."""
        if event.type == "retry":
            facts: dict[str, Any] = {"attempt": event.attempt, "wait_s": event.wait_s}
            self._trail.emit(events.retry(code="ModelRetry", message=event.reason, **facts))
        elif event.type == "warning":
            self._trail.emit(events.notice(code="ModelWarning", message=event.text))
        self.delivery.put(event)
        self.delivery.flush()
