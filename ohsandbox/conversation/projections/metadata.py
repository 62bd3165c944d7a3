"""`MetadataProjection`: `ConversationMetadata` from the events of a log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ohsandbox.conversation.storage.metadata import ConversationMetadata, title_of
from ohsandbox.events import KNOWN_TYPES, ConversationStatus

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent


class MetadataProjection:
    """The fields of `ConversationMetadata`, updated by each event."""

    def __init__(self) -> None:
        self._title: str | None = None
        self._began: datetime | None = None
        self._last: datetime | None = None
        self._model: str | None = None
        self._user_id: str | None = None
        self._status = ConversationStatus.IDLE
        self._response: str | None = None
        self._events = self._calls = self._steps = 0
        self._prompt_tokens = self._completion_tokens = 0
        self._cost_usd: float | None = None

    def add(self, event: SDKEvent) -> None:
        """Follow the next event."""
        data = event.data
        self._began = self._began or event.ts
        self._last = event.ts
        self._events += 1
        self._calls += event.type == "tool_call"
        if event.type == "user_message":
            self._title = self._title or title_of(data["content"])
        elif event.type == "status_update":
            self._status = ConversationStatus(data["status"])
            self._model = data.get("model", self._model)
            self._user_id = data.get("user_id", self._user_id)
        if event.type not in KNOWN_TYPES:
            return
        response = data.get("response_id")
        if response is not None and response != self._response:  # the calls of one response stand together
            self._response = response
            self._steps += 1
        usage = data.get("usage") or {}
        self._prompt_tokens += usage.get("prompt_tokens") or 0
        self._completion_tokens += usage.get("completion_tokens") or 0
        if data.get("cost_usd") is not None:
            self._cost_usd = (self._cost_usd or 0.0) + data["cost_usd"]

    def metadata(self, conversation_id: str, *, log_bytes: int) -> ConversationMetadata:
        """The metadata after the events so far; log_bytes is the log's length in bytes after the last of them."""
        now = datetime.now(UTC)
        return ConversationMetadata(
            conversation_id=conversation_id,
            title=self._title,
            created_at=self._began or now,
            updated_at=self._last or now,
            user_id=self._user_id,
            model=self._model,
            status=self._status,
            steps=self._steps,
            calls=self._calls,
            events=self._events,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cost_usd=self._cost_usd,
            log_bytes=log_bytes,
        )
