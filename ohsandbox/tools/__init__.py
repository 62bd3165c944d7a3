"""The tools that ship with the package; importing this registers them by name."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ohsandbox.tool import CallHint, Hint, register_tool
from ohsandbox.tool.registry import Registrable, serve_runtimes
from ohsandbox.tool_flags import ToolFlags
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
from ohsandbox.tools.glob import GlobAction, GlobTool
from ohsandbox.tools.grep import GrepAction, GrepTool
from ohsandbox.tools.request_condensation import CondensationRequestAction, RequestCondensationTool
from ohsandbox.tools.task_tracker import TaskTrackerTool, TaskTrackingAction
from ohsandbox.tools.think import AgentThinkAction, make_think_tool
from ohsandbox.tools.web_read import WebReadAction, WebReadTool

DEFAULT_TOOLS = ToolFlags().names()
"""The tools of an agent without a tools argument."""


_BUILT_IN: tuple[tuple[tuple[str, ...], Registrable, Hint], ...] = (
    (("execute_bash", "terminal", "BashTool"), ExecuteBashTool, execute_bash.hint),
    (("file_editor", "str_replace_editor"), FileEditorTool, file_editor.definition.hint),
    (("file_read",), FileReadTool, file_read.HINT),
    (("file_write",), FileWriteTool, file_write.hint),
    (("glob",), GlobTool, glob.HINT),
    (("grep",), GrepTool, grep.HINT),
    (("execute_ipython_cell",), ExecuteIPythonCellTool, execute_ipython_cell.HINT),
    (("edit_file",), EditFileTool, edit_file.HINT),
    (("web_read",), WebReadTool, web_read.definition.HINT),
    (("browser", "BrowserTool"), BrowserTool, browser.definition.HINT),
    (("delegate_to_browsing_agent",), DelegateToBrowsingAgentTool, delegate_to_browsing_agent.HINT),
    (("delegate",), DelegateTool, delegate.HINT),
    (("task_tracker",), TaskTrackerTool, task_tracker.HINT),
    (("request_condensation",), RequestCondensationTool, request_condensation.HINT),
    (("ask_human",), AskHumanTool, ask_human.hint),
    (("think",), make_think_tool(), think.HINT),
    (("finish",), make_finish_tool(), finish.HINT),
)
"""Each tool's names, what creates it, and its hint."""

for _names, _tool, _ in _BUILT_IN:
    for _name in _names:
        register_tool(_name, _tool, built_in=True)

_OF_A_CONVERSATION = (
    "ask_human", "delegate", "delegate_to_browsing_agent", "edit_file", "finish", "request_condensation", "think",
)  # fmt: skip
"""They need a model, a person or an agent."""
serve_runtimes(without=_OF_A_CONVERSATION)

HINTS: Mapping[str, Hint] = {name: hint for names, _, hint in _BUILT_IN for name in names}
"""Hints of the built-in tools, by the names that a log or a command line may use."""


def hint_of(name: str, call: Mapping[str, Any]) -> CallHint:
    """The hint in the data of a `tool_call` event; what an older event lacks is the built-in tool's of that name."""
    stored = call.get("hint")
    if isinstance(stored, dict) and "kind" in stored:
        with contextlib.suppress(ValidationError):
            return CallHint.model_validate(stored)
    hint = HINTS.get(name, CallHint())
    known = hint(arguments_of(call)) if callable(hint) else hint
    if isinstance(stored, dict):
        with contextlib.suppress(ValidationError):
            return CallHint.model_validate({**stored, "kind": known.kind})
    return known


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the data of a `tool_call` event; a foreign log may have none."""
    try:
        found = json.loads(call.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


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
