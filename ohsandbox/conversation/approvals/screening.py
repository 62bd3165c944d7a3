"""`Screening`: which calls of a conversation a person is asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.conversation.approvals.policy import ConfirmationPolicy, policy_of, screen_of

if TYPE_CHECKING:
    from ohsandbox.agent.held import Screen
    from ohsandbox.conversation.approvals.analysis import SecurityAnalyzer
    from ohsandbox.conversation.approvals.approvals import Approvals
    from ohsandbox.conversation.config import ConversationConfig
    from ohsandbox.runtime.base import Runtime


class Screening:
    """A policy, and the analyzer that it goes by."""

    def __init__(
        self, policy: ConfirmationPolicy | str | None, analyzer: SecurityAnalyzer | None, *, config: ConversationConfig
    ) -> None:
        """None takes the policy of the settings that are known, else "never"; no analyzer is the default one.

        Raises:
            UsageError: there is no policy of that name.
        """
        self.asked_for = policy_of(policy) if isinstance(policy, str) else policy
        """May be replaced at any time, for the next run."""
        self.analyzer = analyzer
        self._config = config

    @property
    def policy(self) -> ConfirmationPolicy:
        """The one that counts."""
        settings = self._config.settings
        named = settings.confirm if settings is not None else None
        return self.asked_for or policy_of(named or "never")

    def screen(self, runtime: Runtime | None, approvals: Approvals) -> Screen | None:
        """What looks at the calls of each response in the next run; None looks at none."""
        return screen_of(
            self.policy,
            self.analyzer,
            workdir=None if runtime is None else runtime.workdir,
            approval_for=lambda call: approvals.approval_for(call, runtime),
        )
