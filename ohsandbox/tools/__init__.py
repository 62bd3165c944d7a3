"""The tools that ship with the package; importing this registers them by name."""

from typing import Any

from ohsandbox.state import ConversationState
from ohsandbox.tool import ToolDefinition, register_tool
from ohsandbox.tools.execute_bash import CmdRunAction, ExecuteBashTool
from ohsandbox.tools.file_read import FileReadAction, FileReadTool
from ohsandbox.tools.file_write import FileWriteAction, FileWriteTool
from ohsandbox.tools.finish import AgentFinishAction, make_finish_tool
from ohsandbox.tools.think import AgentThinkAction, make_think_tool

DEFAULT_TOOLS = ("execute_bash", "file_read", "file_write", "think", "finish")
"""What an agent has when nothing is said."""


def _think(*, conv_state: ConversationState) -> ToolDefinition[Any, Any]:  # noqa: ARG001 - a factory's signature
    return make_think_tool()


def _finish(*, conv_state: ConversationState) -> ToolDefinition[Any, Any]:  # noqa: ARG001 - a factory's signature
    return make_finish_tool()


for _name in ("execute_bash", "terminal", "BashTool"):
    register_tool(_name, ExecuteBashTool)
register_tool("file_read", FileReadTool)
register_tool("file_write", FileWriteTool)
register_tool("think", _think)
register_tool("finish", _finish)

__all__ = [
    "DEFAULT_TOOLS",
    "AgentFinishAction",
    "AgentThinkAction",
    "CmdRunAction",
    "ExecuteBashTool",
    "FileReadAction",
    "FileReadTool",
    "FileWriteAction",
    "FileWriteTool",
    "make_finish_tool",
    "make_think_tool",
]
