"""Asking a person before the agent acts: which calls, what is known of their risk, and the answer."""

from ohsandbox.conversation.confirmation.analysis import (
    AnnotationRules,
    CommandRules,
    Highest,
    ModelsWord,
    RaisedByModel,
    SecurityAnalyzer,
    default_analyzer,
)
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
from ohsandbox.conversation.confirmation.scopes import AnyCall, Approval, EditsUnder, ExactCall
from ohsandbox.conversation.confirmation.screening import Screening

__all__ = [
    "POLICIES",
    "AlwaysConfirm",
    "AnnotationRules",
    "AnyCall",
    "Approval",
    "Approvals",
    "Ask",
    "CommandRules",
    "ConfirmRisky",
    "ConfirmationPolicy",
    "Decision",
    "EditsUnder",
    "ExactCall",
    "Highest",
    "ModelsWord",
    "NeverConfirm",
    "PendingCall",
    "RaisedByModel",
    "Screening",
    "SecurityAnalyzer",
    "default_analyzer",
    "pending_of",
    "policy_of",
    "screen_of",
]
