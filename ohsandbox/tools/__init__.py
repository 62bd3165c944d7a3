"""The tools that ship with the package; importing this registers them by name."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ohsandbox.state import ConversationState
from ohsandbox.tool import CallHint, Hint, ToolDefinition, register_tool
from ohsandbox.tools import (
    ask_human,
    browser,
    delegate,
    delegate_to_browsing_agent,
    edit_file,
    execute_bash,
    execute_ipython_cell,
    file_editor,
    file_read,
    file_write,
    finish,
    glob,
    grep,
    request_condensation,
    task_tracker,
    think,
    web_read,
)
from ohsandbox.tools.ask_human import AskHumanAction, AskHumanTool
from ohsandbox.tools.browser import BrowseInteractiveAction, BrowserTool
from ohsandbox.tools.delegate import AgentDelegateAction, DelegateTool
from ohsandbox.tools.delegate_to_browsing_agent import DelegateToBrowsingAgentTool
from ohsandbox.tools.edit_file import EditFileAction, EditFileTool
from ohsandbox.tools.execute_bash import CmdRunAction, ExecuteBashTool
from ohsandbox.tools.execute_ipython_cell import ExecuteIPythonCellTool, IPythonRunCellAction
from ohsandbox.tools.file_editor import FileEditAction, FileEditorTool
from ohsandbox.tools.file_read import FileReadAction, FileReadTool
from ohsandbox.tools.file_write import FileWriteAction, FileWriteTool
from ohsandbox.tools.finish import AgentFinishAction, make_finish_tool
from ohsandbox.tools.flags import ToolFlags
from ohsandbox.tools.glob import GlobAction, GlobTool
from ohsandbox.tools.grep import GrepAction, GrepTool
from ohsandbox.tools.request_condensation import CondensationRequestAction, RequestCondensationTool
from ohsandbox.tools.task_tracker import TaskTrackerTool, TaskTrackingAction
from ohsandbox.tools.think import AgentThinkAction, make_think_tool
from ohsandbox.tools.web_read import WebReadAction, WebReadTool

DEFAULT_TOOLS = ToolFlags().names()
"""The tools of an agent without a tools argument."""


HINTS: Mapping[str, Hint] = {
    "execute_bash": execute_bash.definition.hint,
    "terminal": execute_bash.definition.hint,
    "BashTool": execute_bash.definition.hint,
    "file_editor": file_editor.definition.hint,
    "str_replace_editor": file_editor.definition.hint,
    "file_write": file_write.definition.hint,
    "ask_human": ask_human.definition.hint,
    "browser": browser.definition.HINT,
    "BrowserTool": browser.definition.HINT,
    "delegate": delegate.definition.HINT,
    "delegate_to_browsing_agent": delegate_to_browsing_agent.definition.HINT,
    "edit_file": edit_file.definition.HINT,
    "execute_ipython_cell": execute_ipython_cell.definition.HINT,
    "file_read": file_read.definition.HINT,
    "finish": finish.definition.HINT,
    "glob": glob.definition.HINT,
    "grep": grep.definition.HINT,
    "request_condensation": request_condensation.definition.HINT,
    "task_tracker": task_tracker.definition.HINT,
    "think": think.definition.HINT,
    "web_read": web_read.definition.HINT,
}
"""Hints of the built-in tools, by the names that a log or a command line may use."""


def hint_of(name: str, call: Mapping[str, Any]) -> CallHint:
    """The hint in the data of a `tool_call` event; for an older event without hints, the built-in tool's."""
    try:
        return CallHint.model_validate(call["hint"])
    except (KeyError, ValidationError):
        hint = HINTS.get(name, CallHint())
        return hint(arguments_of(call)) if callable(hint) else hint


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the data of a `tool_call` event; a foreign log may have none."""
    try:
        found = json.loads(call.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _think(*, conv_state: ConversationState) -> ToolDefinition[Any, Any]:  # noqa: ARG001 - a factory's signature
    return make_think_tool()


def _finish(*, conv_state: ConversationState) -> ToolDefinition[Any, Any]:  # noqa: ARG001 - a factory's signature
    return make_finish_tool()


for _name in ("execute_bash", "terminal", "BashTool"):
    register_tool(_name, ExecuteBashTool)
for _name in ("file_editor", "str_replace_editor"):
    register_tool(_name, FileEditorTool)
register_tool("file_read", FileReadTool)
register_tool("file_write", FileWriteTool)
register_tool("glob", GlobTool)
register_tool("grep", GrepTool)
register_tool("execute_ipython_cell", ExecuteIPythonCellTool)
register_tool("edit_file", EditFileTool)
register_tool("web_read", WebReadTool)
for _name in ("browser", "BrowserTool"):
    register_tool(_name, BrowserTool)
register_tool("delegate_to_browsing_agent", DelegateToBrowsingAgentTool)
register_tool("delegate", DelegateTool)
register_tool("task_tracker", TaskTrackerTool)
register_tool("request_condensation", RequestCondensationTool)
register_tool("ask_human", AskHumanTool)
register_tool("think", _think)
register_tool("finish", _finish)

__all__ = [
    "DEFAULT_TOOLS",
    "HINTS",
    "AgentDelegateAction",
    "AgentFinishAction",
    "AgentThinkAction",
    "AskHumanAction",
    "AskHumanTool",
    "BrowseInteractiveAction",
    "BrowserTool",
    "CmdRunAction",
    "CondensationRequestAction",
    "DelegateToBrowsingAgentTool",
    "DelegateTool",
    "EditFileAction",
    "EditFileTool",
    "ExecuteBashTool",
    "ExecuteIPythonCellTool",
    "FileEditAction",
    "FileEditorTool",
    "FileReadAction",
    "FileReadTool",
    "FileWriteAction",
    "FileWriteTool",
    "GlobAction",
    "GlobTool",
    "GrepAction",
    "GrepTool",
    "IPythonRunCellAction",
    "RequestCondensationTool",
    "TaskTrackerTool",
    "TaskTrackingAction",
    "ToolFlags",
    "WebReadAction",
    "WebReadTool",
    "arguments_of",
    "hint_of",
    "make_finish_tool",
    "make_think_tool",
]
