"""`ConversationState`: what a tool's `create(conv_state=...)` receives, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


@dataclass(frozen=True, kw_only=True)
class ConversationState:
    """The conversation as its tools see it."""

    conversation_id: str
    runtime: Runtime | None = None
    """Where the hands are; None in a conversation without a sandbox."""
    user_id: str | None = None

    def require_runtime(self) -> Runtime:
        """The runtime.

        Raises:
            UsageError: the conversation has none.
        """
        if self.runtime is None:
            raise UsageError(
                f"Conversation {self.conversation_id!r} has no runtime. Give it one: Conversation(runtime=...)."
            )
        return self.runtime
