"""`think`: a place for reasoning; nothing happens."""

from ohsandbox.tools.think.definition import AgentThinkAction, make_think_tool

__all__ = ["AgentThinkAction", "make_think_tool"]
