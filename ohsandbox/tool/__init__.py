"""The tool interface: arguments become an action, an executor turns it into an observation."""

from ohsandbox.tool.annotations import CallHint, Hint, ToolAnnotations, counted_lines
from ohsandbox.tool.arguments import SecurityRisk, take_security_risk
from ohsandbox.tool.definition import ToolBase, ToolDefinition
from ohsandbox.tool.executor import ToolExecutor
from ohsandbox.tool.plugins import Origin, Plugins
from ohsandbox.tool.registry import (
    Tool,
    ToolRegistry,
    is_registered,
    list_registered_tools,
    origin_of_tool,
    register_tool,
    resolve_tool,
    unregister_tool,
)
from ohsandbox.tool.runtime_tool import RuntimeTool, find_runtime_tool
from ohsandbox.tool.text import cut_middle

__all__ = [
    "CallHint",
    "Hint",
    "Origin",
    "Plugins",
    "RuntimeTool",
    "SecurityRisk",
    "Tool",
    "ToolAnnotations",
    "ToolBase",
    "ToolDefinition",
    "ToolExecutor",
    "ToolRegistry",
    "counted_lines",
    "cut_middle",
    "find_runtime_tool",
    "is_registered",
    "list_registered_tools",
    "origin_of_tool",
    "register_tool",
    "resolve_tool",
    "take_security_risk",
    "unregister_tool",
]
