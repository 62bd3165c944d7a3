"""`delegate_to_browsing_agent`: a task on the web, for an agent with a browser."""

from ohsandbox.tools.delegate_to_browsing_agent.definition import BROWSING_TOOLS, DelegateToBrowsingAgentTool

__all__ = ["BROWSING_TOOLS", "DelegateToBrowsingAgentTool"]
