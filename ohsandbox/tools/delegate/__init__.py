"""`delegate`: a task for an agent of its own, in the same sandbox."""

from ohsandbox.tools.delegate.definition import AgentDelegateAction, DelegateAction, DelegateTool

__all__ = ["AgentDelegateAction", "DelegateAction", "DelegateTool"]
