"""`Answering`: the part of a conversation's public face by which a person allows or refuses what waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from ohsandbox.conversation.confirmation.approvals import Approvals, Ask, Decision, PendingCall
from ohsandbox.conversation.confirmation.policy import ConfirmationPolicy, policy_of, screen_of
from ohsandbox.events import ConversationStatus

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from ohsandbox.agent.held import Screen
    from ohsandbox.conversation.confirmation.analysis import SecurityAnalyzer
    from ohsandbox.conversation.trail import Trail
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.settings import Settings


class Answering(ABC):
    """What waits for a person, and the ways to answer it."""

    confirmation: ConfirmationPolicy | None
    """Which calls ask; may be replaced at any time, for the next run. None is that of the settings, else never."""
    _trail: Trail
    _thread: threading.Thread | None
    _approvals: Approvals
    _analyzer: SecurityAnalyzer | None
    _settings: Settings | None
    runtime: Runtime | None

    @property
    def pending(self) -> list[PendingCall]:
        """The calls that wait for a person, in order; empty where none do, or before `start`."""
        return self._approvals.pending

    def confirm(self, tool_call_ids: Sequence[str] | None = None, *, by: str = "user", run: bool = True) -> None:
        """Let calls that wait run. The run goes on once each that waits has its answer.

        Args:
            tool_call_ids: which; None is all.
            by: kept in the log.
            run: False only stores the answer; the next run acts on it.

        Raises:
            UsageError: nothing waits, or one that is named does not.
            Everything that `start` raises.
        """
        self._decide(Decision(approved=True, tool_call_ids=_as_tuple(tool_call_ids)), by=by, run=run)

    def reject(
        self, reason: str = "", tool_call_ids: Sequence[str] | None = None, *, by: str = "user", run: bool = True
    ) -> None:
        """Refuse calls that wait; the model is told, with the reason, and goes on.

        A refusal of all also stops the calls of the same reply that would not have asked. Arguments and errors are
        those of `confirm`.
        """
        self._decide(Decision(approved=False, reason=reason, tool_call_ids=_as_tuple(tool_call_ids)), by=by, run=run)

    def go_on(self) -> bool:
        """Begin the run that acts on answers which were stored without one; False where there are none to act on.

        Raises:
            Everything that `start` raises.
        """
        self.start()
        with self._trail.guard:
            begins = self._thread is None and self._trail.history.held.is_decided
            if begins:
                self._begin_run()
        self._trail.flush()
        return begins

    @abstractmethod
    def start(self) -> Self:
        """Open the log."""

    @abstractmethod
    def _begin_run(self) -> None: ...

    @abstractmethod
    def _set_status(self, status: ConversationStatus) -> None: ...

    def _decide(self, decision: Decision, *, by: str, run: bool) -> None:
        self.start()
        with self._trail.guard:
            self._approvals.decide(decision, by=by)
            if run and self._thread is None and not self.pending:
                self._begin_run()
        self._trail.flush()

    def _ask_person(self) -> None:
        """Ask the callback, if there is one, in the run's thread; the log says meanwhile that an answer is awaited."""
        if self._approvals.can_ask:
            with self._trail.guard:
                self._set_status(ConversationStatus.WAITING_FOR_CONFIRMATION)
            self._trail.flush()
            self._approvals.ask()

    def _expect_answers(
        self, policy: ConfirmationPolicy | str | None, analyzer: SecurityAnalyzer | None, ask: Ask | None
    ) -> None:
        self.confirmation = policy_of(policy) if isinstance(policy, str) else policy
        self._analyzer = analyzer
        self._approvals = Approvals(self._trail, ask=ask)

    def _screen(self) -> Screen | None:
        """What looks at the calls of each response in the next run."""
        workdir = self.runtime.workdir if self.runtime is not None else None
        return screen_of(self._policy, self._analyzer, workdir=workdir)

    @property
    def _policy(self) -> ConfirmationPolicy:
        named = self._settings.confirm if self._settings is not None else None
        return self.confirmation or policy_of(named or "never")

    def _for_sub_agents(self) -> dict[str, Any]:
        """What a sub-agent's conversation is given so that it asks as this one does."""
        return {
            "confirmation": self._policy,
            "security_analyzer": self._analyzer,
            "confirm": self._approvals.ask_for_sub_agent,
        }


def _as_tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
