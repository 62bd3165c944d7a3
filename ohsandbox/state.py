"""`ConversationState`: the part of a conversation that a tool's `create(conv_state=...)` receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ohsandbox.runtime.base import Runtime


class AskModel(Protocol):
    """Asks the conversation's model one question outside the conversation; its cost counts there."""

    def __call__(self, prompt: str, *, system: str = "") -> str:
        """Return the answer's text.

        Raises:
            ModelError: no answer; the subclass says why.
        """


class Delegation(NamedTuple):
    """A task for a sub-agent."""

    task: str
    name: str
    """The agent's name in the log: letters, digits, `_` and `-`."""
    tools: tuple[str, ...] | None = None
    """Registered names; None is those of the agent that delegates, without delegation."""
    max_iterations: int | None = None
    """None leaves it to the conversation's limits."""
    agent: object | None = None
    """The `Agent` that does it, with its own tools, prompt and model; None is one like the agent that delegates."""
    on_step: Callable[[str], object] | None = None
    """Receives a line about each step of the agent, in a separate thread."""


class Delegate(Protocol):
    """Delegates a task to a sub-agent in the same sandbox, with a log of its own."""

    def __call__(self, delegation: Delegation) -> str:
        """Return the sub-agent's answer.

        Raises:
            ToolError: it came to no answer: a limit, a failure, stopped; says which, and what it had.
        """


@dataclass(frozen=True, kw_only=True)
class ConversationState:
    """The part of a conversation that its tools see.

    A tool's `create` only takes what it needs from here: it starts nothing, reads nothing and asks nothing before the
    first call, so that tools can be listed without a sandbox.
    """

    conversation_id: str
    runtime: Runtime | None = None
    """The sandbox; None in a conversation without a sandbox."""
    user_id: str | None = None
    directory: Path | None = None
    """On the host, for what a tool must keep when the conversation is resumed (undo, tasks); a tool makes a directory
    of its own name in it. None keeps nothing."""
    ask_model: AskModel | None = None
    delegate: Delegate | None = None
    output: OutputLimits = DEFAULT_LIMITS
    """The limits on how much of a result is shown."""
    mask: Callable[[str], str] = str
    """Masks secrets; for the model's text that a tool keeps in `directory`."""

    def require_runtime(self) -> Runtime:
        """Return the runtime.

        Raises:
            UsageError: the conversation has none.
        """
        if self.runtime is None:
            raise UsageError(
                f"Conversation {self.conversation_id!r} has no runtime. Give it one: Conversation(runtime=...)."
            )
        return self.runtime
