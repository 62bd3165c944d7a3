"""`ModelNews`: what the model's client tells while it works."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.conversation.delivery import Delivery
from ohsandbox.llm.chat import DeltaEvent

if TYPE_CHECKING:
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.secrets import TextStreamMasker

_ENDS_TEXT = frozenset({"assistant_message", "tool_call", "error", "status_update"})
"""Events that stand in the trail once the model's answer is whole."""


class ModelNews:
    """Retries and warnings go into the trail; all of it goes, masked, to those who look on, pieces of text as well."""

    def __init__(self, trail: Trail) -> None:
        self.delivery: Delivery[LLMEvent] = Delivery()
        self._trail = trail
        self._guard = threading.Lock()
        self._text: TextStreamMasker | None = None
        trail.delivery.register(self._end_text)

    def __call__(self, event: LLMEvent) -> None:
        """Hear of something; in the thread that asks the model."""
        mask = self._trail.masker.mask_cut
        if event.type == "delta":
            with self._guard:
                self._text = self._text or self._trail.masker.text_stream()
                self._put_text(self._text.feed(event.text))
        elif event.type == "retry":
            with self._guard:
                self._text = None  # what was streamed is void
            facts: dict[str, Any] = {"attempt": event.attempt, "wait_s": event.wait_s}
            self._trail.emit(events.retry(code="ModelRetry", message=event.reason, **facts))
            self.delivery.put(event.model_copy(update={"reason": mask(event.reason)}))
        else:
            self._trail.emit(events.notice(code="ModelWarning", message=event.text))
            self.delivery.put(event.model_copy(update={"text": mask(event.text)}))
        self.delivery.flush()

    def _end_text(self, event: SDKEvent) -> None:
        """Give out what was held back as the possible beginning of a secret."""
        if event.type not in _ENDS_TEXT:
            return
        with self._guard:
            text, self._text = self._text, None
            if text is not None:
                self._put_text(text.flush())
        self.delivery.flush()

    def _put_text(self, text: str) -> None:
        if text:
            self.delivery.put(DeltaEvent(text=text))
