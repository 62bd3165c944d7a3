"""`delegate`: a task for a sub-agent in the same sandbox."""

from ohsandbox.tools.delegate.definition import AgentDelegateAction, DelegateAction, DelegateTool

__all__ = ["AgentDelegateAction", "DelegateAction", "DelegateTool"]
