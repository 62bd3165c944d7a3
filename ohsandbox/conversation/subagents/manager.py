"""`SubagentManager`: runs the sub-agents of a conversation, each in a conversation of its own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from ohsandbox import events
from ohsandbox.conversation.subagents.agent import make_subagent
from ohsandbox.conversation.subagents.shared_runtime import SharedRuntime
from ohsandbox.errors import SandboxUnavailable, ToolError
from ohsandbox.events import ConversationStatus, EventBody, SDKEvent
from ohsandbox.persistence import LOG_NAME
from ohsandbox.persistence.layout import AGENTS_NAME
from ohsandbox.private_files import make_private_dir
from ohsandbox.tool import cut_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ohsandbox.conversation.config import Limits
    from ohsandbox.conversation.conversation import Conversation
    from ohsandbox.conversation.subagents.context import Converse, SubagentContext
    from ohsandbox.state import Delegation

MAX_DEPTH = 2
"""Sub-agents may have sub-agents where they are given the tool; deeper trees cannot be followed by a person."""

MAX_SUB_AGENTS = 50
"""Maximum in one conversation; more is a model that delegates instead of working."""

MAX_ANSWER_CHARS = 30_000
"""As for a command's output: about 8,000 tokens. The whole answer is in the sub-agent's log."""

MAX_LAST_WORDS_CHARS = 2_000

_LOOK_EVERY_S = 0.5
"""How often a waiting parent looks whether it was stopped; `interrupt` ends the wait sooner."""


class SubagentManager:
    """The sub-agents of one conversation; satisfies `Delegate`.

    Each works in the parent's sandbox with shells of its own, within what is left of the parent's limits; what it used
    is told in a notice event, so that it counts for the parent. Its log lies in `agents/` of the parent's directory.
    """

    def __init__(self, parent: SubagentContext, *, converse: Converse) -> None:
        """Make nothing yet. converse makes the conversation of each."""
        self._parent = parent
        self._converse = converse
        self._lock = threading.Lock()
        self._working: set[Conversation] = set()

    def __call__(self, delegation: Delegation) -> str:
        """Run a sub-agent on a task and wait for its answer.

        Raises:
            ToolError: there is none: a limit is reached, it failed or was stopped, or a tool cannot be given.
            SandboxUnavailable: the sandbox is gone.
        """
        parent = self._parent
        agent = make_subagent(parent.agent, delegation.tools, may_delegate=parent.depth + 1 < MAX_DEPTH)
        limits = _narrowed(parent.remaining(), delegation.max_iterations)
        runtime = SharedRuntime(parent.runtime)
        child = self._converse(agent, runtime, conversation_id=self._new_id(delegation.name), limits=limits)
        account = _Account(str(child.directory / LOG_NAME))
        child.register_callback(account.take_in)
        parent.log.emit(
            events.notice(code=events.AGENT_STARTED, message=f"Sub-agent {child.id!r} began.", trail=account.log_path)
        )
        try:
            with self._at_work(child):
                status = self._outcome(child, delegation.task)
        finally:
            child.close()
            runtime.close()
            parent.log.emit(account.ended(child.id))
        return account.answer_of(child, status)

    def interrupt(self) -> None:
        """Cancel the running sub-agents without waiting, from any thread. Call it before the model's `cancel`."""
        with self._lock:
            working = list(self._working)
        for child in working:
            child.stop(timeout_s=0)

    def _outcome(self, child: Conversation, task: str) -> ConversationStatus:
        child.send_message(task)
        while (status := child.wait(_LOOK_EVERY_S)) is ConversationStatus.RUNNING:
            if self._parent.canceled.is_set():
                child.stop(timeout_s=0)
        child.wait()
        return status

    @contextlib.contextmanager
    def _at_work(self, child: Conversation) -> Iterator[None]:
        with self._lock:
            self._working.add(child)
        try:
            yield
        finally:
            with self._lock:
                self._working.discard(child)

    def _new_id(self, name: str) -> str:
        """The next id that no sub-agent of this conversation has had, also before a resume; its directory exists."""
        directory = self._parent.log.directory / AGENTS_NAME
        with self._lock:
            make_private_dir(directory)
            names = [path.name for path in directory.iterdir()]
            if len(names) >= MAX_SUB_AGENTS:
                raise ToolError(
                    f"This conversation has had {len(names)} sub-agents, and more than {MAX_SUB_AGENTS} are not made. "
                    "Do the rest yourself."
                )
            numbers = [int(last) for last in (name.rpartition("-")[2] for name in names) if last.isdecimal()]
            new = f"{name}-{max(numbers, default=0) + 1}"
            make_private_dir(directory / new)
        return new


class _Account:
    """Answer and usage of a sub-agent, by its events."""

    def __init__(self, log: str) -> None:
        self.log_path = log
        self._answer: str | None = None
        self._last_words = ""
        self._requests = 0
        self._usage: dict[str, int] = {}
        self._cost_usd = 0.0

    def take_in(self, event: SDKEvent) -> None:
        """The next event."""
        data = event.data
        usage = data.get("usage") or {}
        self._requests += data.get("requests", 1 if usage else 0)
        for name, value in usage.items():
            self._usage[name] = self._usage.get(name, 0) + value
        self._cost_usd += data.get("cost_usd") or 0.0
        self._last_words = data.get("thought") or self._last_words
        if event.type == "assistant_message":
            self._answer = self._last_words = data["content"]
        elif event.type == "tool_result" and data["name"] == "finish" and data["result"]["status"] == "ok":
            self._answer = str(data["result"]["output"])

    def ended(self, name: str) -> EventBody:
        """The notice with the usage, for the parent's log."""
        return events.notice(
            code="AgentEnded",
            message=f"Sub-agent {name!r} ended after {self._requests} requests to the model.",
            trail=self.log_path,
            requests=self._requests,
            usage=self._usage,
            cost_usd=self._cost_usd,
        )

    def answer_of(self, child: Conversation, status: ConversationStatus) -> str:
        """The answer, and the path of the log.

        Raises:
            ToolError: there is none.
            SandboxUnavailable: that is why.
        """
        if isinstance(child.error, SandboxUnavailable):
            raise child.error
        done = status in {ConversationStatus.FINISHED, ConversationStatus.IDLE}
        if done and self._answer is not None and self._answer.strip():
            answer = cut_middle(self._answer, limit_chars=MAX_ANSWER_CHARS)
            return f"{answer}\n[Sub-agent {child.id!r}, {self._requests} requests; its log: {self.log_path}]"
        if child.error is not None:
            reason = " ".join(str(child.error).split()) or type(child.error).__name__
        elif status is ConversationStatus.CANCELED:
            reason = "It was stopped."
        else:
            reason = "It ended without a word."
        words = cut_middle(self._last_words.strip(), limit_chars=MAX_LAST_WORDS_CHARS)
        said = f" It had said last: {words!r}." if words else ""
        raise ToolError(f"Sub-agent {child.id!r} came to no answer. {reason}{said} Its log: {self.log_path}")


def _narrowed(limits: Limits, max_iterations: int | None) -> Limits:
    """The limits, with no more iterations than asked for."""
    if max_iterations is None:
        return limits
    fewest: Any = min(max_iterations, limits.max_iterations or max_iterations)
    return limits.model_copy(update={"max_iterations": fewest})
