"""`SubagentContext`: a conversation, as those who work beside it need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ohsandbox.errors import LimitReachedError, ToolError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ohsandbox.agent import Agent
    from ohsandbox.conversation.limits import Limits
    from ohsandbox.conversation.log import ConversationLog
    from ohsandbox.runtime.base import Runtime


@dataclass(frozen=True, kw_only=True)
class SubagentContext:
    """Its agent and sandbox, where things are told, and what is left of its limits."""

    agent: Agent
    runtime: Runtime
    log: ConversationLog
    user_id: str | None
    depth: int
    """How many agents stand above it."""
    canceled: threading.Event
    """Set while it is being stopped."""
    budget: Callable[[], Limits]
    """What is left of its limits; raises LimitReachedError where nothing is."""

    def remaining(self) -> Limits:
        """What is left of its limits.

        Raises:
            ToolError: nothing. The call is answered so, and then the conversation's own next request ends it.
        """
        try:
            return self.budget()
        except LimitReachedError as error:
            raise ToolError(f"{error} Nothing was done.") from error
