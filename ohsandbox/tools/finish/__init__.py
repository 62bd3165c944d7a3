"""`finish`: the model reports that the task is done."""

from ohsandbox.tools.finish.definition import AgentFinishAction, make_finish_tool

__all__ = ["AgentFinishAction", "make_finish_tool"]
