"""`StreamRelay`: what the model's client tells while it works."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.conversation.listeners import Listeners
from ohsandbox.llm.chat import DeltaEvent

if TYPE_CHECKING:
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.events import SDKEvent
    from ohsandbox.llm.chat import LLMEvent
    from ohsandbox.secrets import TextStreamMasker

_ENDS_TEXT = frozenset({"assistant_message", "tool_call", "error", "status_update"})
"""Events that stand in the log once the model's answer is whole."""


class StreamRelay:
    """Retries and warnings go into the log; all of it goes, masked, to those who look on, pieces of text as well."""

    def __init__(self, log: ConversationLog) -> None:
        self.listeners: Listeners[LLMEvent] = Listeners()
        self._log = log
        self._guard = threading.Lock()
        self._text: TextStreamMasker | None = None
        log.listeners.register(self._end_text)

    def __call__(self, event: LLMEvent) -> None:
        """Hear of something; in the thread that asks the model."""
        mask = self._log.masker.mask_cut
        if event.type == "delta":
            with self._guard:
                self._text = self._text or self._log.masker.text_stream()
                self._put_text(self._text.feed(event.text))
        elif event.type == "retry":
            with self._guard:
                self._text = None  # what was streamed is void
            facts: dict[str, Any] = {"attempt": event.attempt, "wait_s": event.wait_s}
            self._log.emit(events.retry(code="ModelRetry", message=event.reason, **facts))
            self.listeners.put(event.model_copy(update={"reason": mask(event.reason)}))
        else:
            self._log.emit(events.notice(code="ModelWarning", message=event.text))
            self.listeners.put(event.model_copy(update={"text": mask(event.text)}))
        self.listeners.flush()

    def _end_text(self, event: SDKEvent) -> None:
        """Give out what was held back as the possible beginning of a secret."""
        if event.type not in _ENDS_TEXT:
            return
        with self._guard:
            text, self._text = self._text, None
            if text is not None:
                self._put_text(text.flush())
        self.listeners.flush()

    def _put_text(self, text: str) -> None:
        if text:
            self.listeners.put(DeltaEvent(text=text))
