"""`think`: records reasoning; has no effect."""

from ohsandbox.tools.think.definition import AgentThinkAction, make_think_tool

__all__ = ["AgentThinkAction", "make_think_tool"]
