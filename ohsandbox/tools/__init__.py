"""The tools that ship with the package; importing this registers them by name."""

import contextlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from ohsandbox.strict_json import load_json
from ohsandbox.tool import BuiltInTool, CallHint, Hint, register_tool
from ohsandbox.tool.registry import serve_runtimes
from ohsandbox.tool_flags import ToolFlags as ToolFlags
from ohsandbox.tools.browser import BrowseInteractiveAction as BrowseInteractiveAction
from ohsandbox.tools.browser import BrowserTool as BrowserTool
from ohsandbox.tools.delegate import AgentDelegateAction as AgentDelegateAction
from ohsandbox.tools.execute_bash import CmdRunAction as CmdRunAction
from ohsandbox.tools.execute_ipython_cell import IPythonRunCellAction as IPythonRunCellAction
from ohsandbox.tools.file_editor import FileEditAction as FileEditAction
from ohsandbox.tools.file_read import FileReadAction as FileReadAction
from ohsandbox.tools.file_write import FileWriteAction as FileWriteAction
from ohsandbox.tools.finish import AgentFinishAction as AgentFinishAction
from ohsandbox.tools.request_condensation import CondensationRequestAction as CondensationRequestAction
from ohsandbox.tools.task_tracker import TaskTrackingAction as TaskTrackingAction
from ohsandbox.tools.think import AgentThinkAction as AgentThinkAction

DEFAULT_TOOLS = ToolFlags().names()
"""The tools of an agent without a tools argument."""

_MODULES = (
    "execute_bash",
    "file_editor",
    "file_read",
    "file_write",
    "glob",
    "grep",
    "execute_ipython_cell",
    "edit_file",
    "web_read",
    "browser",
    "delegate_to_browsing_agent",
    "delegate",
    "task_tracker",
    "request_condensation",
    "ask_human",
    "think",
    "finish",
)
"""The built-in tools, each defined by `BUILT_IN` of the module with its name."""

_BUILT_IN: dict[str, BuiltInTool] = {name: import_module(f"{__name__}.{name}").BUILT_IN for name in _MODULES}

ALIASES: Mapping[str, str] = {alias: name for name, built_in in _BUILT_IN.items() for alias in built_in.aliases}
"""The built-in tools' other names, and the tool of each."""

for _name, _built_in in _BUILT_IN.items():
    for _registered in (_name, *_built_in.aliases):
        register_tool(_registered, _built_in.tool, built_in=True)

HINTS: Mapping[str, Hint] = {
    tool_name: built_in.hint for name, built_in in _BUILT_IN.items() for tool_name in (name, *built_in.aliases)
}
"""Hints of the built-in tools, by the names that a log or a command line may use."""


def hint_of(name: str, call: Mapping[str, Any]) -> CallHint:
    """Return the hint in a `tool_call` event; fields that an older event lacks come from the built-in tool's hint."""
    stored = call.get("hint")
    hint = HINTS.get(name, CallHint())
    expected_hint = hint(arguments_of(call)) if callable(hint) else hint
    if isinstance(stored, dict) and "kind" in stored:
        with contextlib.suppress(ValidationError):
            stored_hint = CallHint.model_validate(stored)
            is_older = expected_hint.kind == "tasks" and stored_hint == expected_hint.model_copy(
                update={"kind": "", "needs_agent": False}
            )
            return expected_hint if is_older else stored_hint  # kind "tasks" came last: until then such a call had none
    if isinstance(stored, dict):
        with contextlib.suppress(ValidationError):
            return CallHint.model_validate({**stored, "kind": expected_hint.kind})
    return expected_hint


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the data of a `tool_call` event; a foreign log may have none."""
    try:
        parsed = load_json(call.get("arguments") or "{}")
    except (ValueError, TypeError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


NEED_AGENT = tuple(name for name in HINTS if hint_of(name, {}).needs_agent)
"""The built-in tools that only an agent has a use for."""
serve_runtimes(without={name for name in NEED_AGENT if not _BUILT_IN[name].serves_runtimes})
