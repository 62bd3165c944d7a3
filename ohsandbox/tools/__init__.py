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
from ohsandbox.tools.browser import BrowseInteractiveAction, BrowserTool
from ohsandbox.tools.delegate import AgentDelegateAction
from ohsandbox.tools.execute_bash import CmdRunAction
from ohsandbox.tools.execute_ipython_cell import IPythonRunCellAction
from ohsandbox.tools.file_editor import FileEditAction
from ohsandbox.tools.file_read import FileReadAction
from ohsandbox.tools.file_write import FileWriteAction
from ohsandbox.tools.finish import AgentFinishAction
from ohsandbox.tools.request_condensation import CondensationRequestAction
from ohsandbox.tools.task_tracker import TaskTrackingAction
from ohsandbox.tools.think import AgentThinkAction

DEFAULT_TOOLS = ToolFlags().names()
"""The tools of an agent without a tools argument."""


_BUILT_IN: tuple[tuple[tuple[str, ...], Registrable, Hint], ...] = (
    (("execute_bash", "terminal", "BashTool"), execute_bash.make_execute_bash_tool, execute_bash.hint),
    (("file_editor", "str_replace_editor"), file_editor.FileEditorTool, file_editor.definition.hint),
    (("file_read",), file_read.make_file_read_tool, file_read.HINT),
    (("file_write",), file_write.make_file_write_tool, file_write.hint),
    (("glob",), glob.make_glob_tool, glob.HINT),
    (("grep",), grep.make_grep_tool, grep.HINT),
    (("execute_ipython_cell",), execute_ipython_cell.make_execute_ipython_cell_tool, execute_ipython_cell.HINT),
    (("edit_file",), edit_file.make_edit_file_tool, edit_file.HINT),
    (("web_read",), web_read.make_web_read_tool, web_read.definition.HINT),
    (("browser", "BrowserTool"), BrowserTool, browser.definition.HINT),
    (
        ("delegate_to_browsing_agent",),
        delegate_to_browsing_agent.make_delegate_to_browsing_agent_tool,
        delegate_to_browsing_agent.HINT,
    ),
    (("delegate",), delegate.make_delegate_tool, delegate.HINT),
    (("task_tracker",), task_tracker.make_task_tracker_tool, task_tracker.HINT),
    (("request_condensation",), request_condensation.make_request_condensation_tool, request_condensation.HINT),
    (("ask_human",), ask_human.make_ask_human_tool, ask_human.hint),
    (("think",), think.make_think_tool(), think.HINT),
    (("finish",), finish.make_finish_tool(), finish.HINT),
)
"""Each tool's names, the object that creates it, and its hint."""

for _names, _tool, _ in _BUILT_IN:
    for _name in _names:
        register_tool(_name, _tool, built_in=True)

HINTS: Mapping[str, Hint] = {name: hint for names, _, hint in _BUILT_IN for name in names}
"""Hints of the built-in tools, by the names that a log or a command line may use."""


def hint_of(name: str, call: Mapping[str, Any]) -> CallHint:
    """Return the hint in a `tool_call` event; fields that an older event lacks come from the built-in tool's hint."""
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


NEED_AGENT = tuple(name for name in HINTS if hint_of(name, {}).needs_agent)
"""The built-in tools that only an agent has a use for. A runtime alone serves `task_tracker` all the same."""
serve_runtimes(without={*NEED_AGENT} - {task_tracker.TOOL_NAME})


__all__ = [
    "DEFAULT_TOOLS",
    "HINTS",
    "NEED_AGENT",
    "AgentDelegateAction",
    "AgentFinishAction",
    "AgentThinkAction",
    "BrowseInteractiveAction",
    "BrowserTool",
    "CmdRunAction",
    "CondensationRequestAction",
    "FileEditAction",
    "FileReadAction",
    "FileWriteAction",
    "IPythonRunCellAction",
    "TaskTrackingAction",
    "ToolFlags",
    "arguments_of",
    "hint_of",
]
