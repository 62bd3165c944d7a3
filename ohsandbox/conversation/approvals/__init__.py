"""Asking a person before the agent acts: which calls, what is known of their risk, and the answer."""

from ohsandbox.conversation.approvals.analysis import (
    AnnotationRules,
    CommandRules,
    Highest,
    ModelsWord,
    RaisedByModel,
    SecurityAnalyzer,
    default_analyzer,
)
from ohsandbox.conversation.approvals.decisions import ApprovalCallback, Approvals, Decision, pending_of
from ohsandbox.conversation.approvals.policy import (
    POLICIES,
    AlwaysConfirm,
    ConfirmationPolicy,
    ConfirmRisky,
    NeverConfirm,
    PlanMode,
    approval_filter_of,
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
    "AlwaysConfirm",
    "AnnotationRules",
    "AnyCall",
    "AnyScope",
    "Approval",
    "ApprovalCallback",
    "Approvals",
    "CallScope",
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
    "PlanMode",
    "RaisedByModel",
    "SecurityAnalyzer",
    "StartServers",
    "approval_filter_of",
    "default_analyzer",
    "pending_of",
    "policy_given",
    "policy_of",
]
