"""The tool interface: arguments become an action, an executor turns it into an observation."""

from ohsandbox.schema.execution import FunctionExecutor, ToolExecutor
from ohsandbox.text import cut_middle
from ohsandbox.tool.annotations import (
    CallHint,
    Hint,
    ToolAnnotations,
    counted_lines,
    take_security_risk,
)
from ohsandbox.tool.definition import ToolBase, ToolDefinition
from ohsandbox.tool.functions import function_tool
from ohsandbox.tool.plugins import Origin, Plugins
from ohsandbox.tool.registry import (
    BuiltInTool,
    RuntimeTool,
    Tool,
    ToolRegistry,
    find_runtime_tool,
    is_pattern,
    is_registered,
    list_registered_tools,
    matching_tools,
    origin_of_tool,
    register_tool,
    resolve_tool,
    unregister_tool,
)

__all__ = [
    "BuiltInTool",
    "CallHint",
    "FunctionExecutor",
    "Hint",
    "Origin",
    "Plugins",
    "RuntimeTool",
    "Tool",
    "ToolAnnotations",
    "ToolBase",
    "ToolDefinition",
    "ToolExecutor",
    "ToolRegistry",
    "counted_lines",
    "cut_middle",
    "find_runtime_tool",
    "function_tool",
    "is_pattern",
    "is_registered",
    "list_registered_tools",
    "matching_tools",
    "origin_of_tool",
    "register_tool",
    "resolve_tool",
    "take_security_risk",
    "unregister_tool",
]
