"""Asking a person before the agent acts: which calls, what is known of their risk, and the answer."""

from ohsandbox.conversation.confirmation.analysis import (
    AnnotationRules,
    CommandRules,
    Highest,
    ModelsWord,
    SecurityAnalyzer,
    default_analyzer,
)
from ohsandbox.conversation.confirmation.answering import Answering
from ohsandbox.conversation.confirmation.approvals import Approvals, Ask, Decision, PendingCall, pending_of
from ohsandbox.conversation.confirmation.policy import (
    POLICIES,
    AlwaysConfirm,
    ConfirmationPolicy,
    ConfirmRisky,
    NeverConfirm,
    policy_of,
    screen_of,
)

__all__ = [
    "POLICIES",
    "AlwaysConfirm",
    "AnnotationRules",
    "Answering",
    "Approvals",
    "Ask",
    "CommandRules",
    "ConfirmRisky",
    "ConfirmationPolicy",
    "Decision",
    "Highest",
    "ModelsWord",
    "NeverConfirm",
    "PendingCall",
    "SecurityAnalyzer",
    "default_analyzer",
    "pending_of",
    "policy_of",
    "screen_of",
]
