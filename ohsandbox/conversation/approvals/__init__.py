"""Asking a person before the agent acts: which calls, what is known of their risk, and the answer."""

from ohsandbox.conversation.approvals.analysis import (
    ModelsWord,
    SecurityAnalyzer,
    default_analyzer,
)
from ohsandbox.conversation.approvals.decisions import ApprovalCallback, Approvals, Decision, pending_of
from ohsandbox.conversation.approvals.policy import (
    POLICIES,
    ConfirmationPolicy,
    ConfirmRisky,
    policy_given,
    policy_of,
)
from ohsandbox.conversation.approvals.scopes import (
    AnyCall,
    AnyScope,
    Approval,
    CallScope,
    EditsUnder,
    ExactCall,
    PendingCall,
    StartServers,
)

__all__ = [
    "POLICIES",
    "AnyCall",
    "AnyScope",
    "Approval",
    "ApprovalCallback",
    "Approvals",
    "CallScope",
    "ConfirmRisky",
    "ConfirmationPolicy",
    "Decision",
    "EditsUnder",
    "ExactCall",
    "ModelsWord",
    "PendingCall",
    "SecurityAnalyzer",
    "StartServers",
    "default_analyzer",
    "pending_of",
    "policy_given",
    "policy_of",
]
