"""ohsandbox: an agent loop on the host, its hands in a container.

The names below are the public surface. Each is imported when it is first used, so that `import ohsandbox` loads no
model client, no Docker client and no validation library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.lazy_names import lazy_names

if TYPE_CHECKING:
    from ohsandbox.agent import Agent
    from ohsandbox.conversation import Conversation, FileConversationStore, RunLimits, RunResult
    from ohsandbox.errors import (
        ConversationOpenError,
        ModelError,
        OhsandboxError,
        SandboxUnavailable,
        ToolError,
        UsageError,
    )
    from ohsandbox.events import ConversationStatus, SDKEvent, ToolResult
    from ohsandbox.llm import LLM, ChatModel, LLMConfig, ReplayLLM, ScriptedLLM, open_model
    from ohsandbox.mcp import MCPClient
    from ohsandbox.price import ModelPrice
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.runtime.docker import (
        Build,
        BuiltImage,
        DockerRuntime,
        Mount,
        SandboxLimits,
        Service,
        abuild_image,
        build_image,
    )
    from ohsandbox.runtime.inventory import SandboxInfo
    from ohsandbox.runtime.local import CLIRuntime
    from ohsandbox.runtime.pool import SandboxPool
    from ohsandbox.runtime.results import CommandObservation, ExecResult
    from ohsandbox.runtime.sandboxes import (
        afind_sandbox,
        alist_sandboxes,
        aremove_sandbox,
        find_sandbox,
        list_sandboxes,
        remove_sandbox,
    )
    from ohsandbox.schema import Action, ErrorObservation, Observation, TextObservation
    from ohsandbox.secrets import Secrets
    from ohsandbox.settings import Settings
    from ohsandbox.state import ConversationState
    from ohsandbox.tool import Tool, ToolAnnotations, ToolDefinition, ToolExecutor, ToolRegistry, register_tool
    from ohsandbox.tool_flags import ToolFlags
    from ohsandbox.tools.glob import GlobObservation
    from ohsandbox.tools.grep import GrepObservation

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Action",
    "Agent",
    "Build",
    "BuiltImage",
    "CLIRuntime",
    "ChatModel",
    "CommandObservation",
    "Conversation",
    "ConversationOpenError",
    "ConversationState",
    "ConversationStatus",
    "DockerRuntime",
    "ErrorObservation",
    "ExecResult",
    "FileConversationStore",
    "GlobObservation",
    "GrepObservation",
    "LLMConfig",
    "MCPClient",
    "ModelError",
    "ModelPrice",
    "Mount",
    "Observation",
    "OhsandboxError",
    "ReplayLLM",
    "RunLimits",
    "RunResult",
    "Runtime",
    "SDKEvent",
    "SandboxInfo",
    "SandboxLimits",
    "SandboxPool",
    "SandboxUnavailable",
    "ScriptedLLM",
    "Secrets",
    "Service",
    "Settings",
    "TextObservation",
    "Tool",
    "ToolAnnotations",
    "ToolDefinition",
    "ToolError",
    "ToolExecutor",
    "ToolFlags",
    "ToolRegistry",
    "ToolResult",
    "UsageError",
    "__version__",
    "abuild_image",
    "afind_sandbox",
    "alist_sandboxes",
    "aremove_sandbox",
    "build_image",
    "find_sandbox",
    "list_sandboxes",
    "open_model",
    "register_tool",
    "remove_sandbox",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".agent": "Agent",
            ".conversation": "Conversation FileConversationStore RunLimits RunResult",
            ".errors": "ConversationOpenError ModelError OhsandboxError SandboxUnavailable ToolError UsageError",
            ".events": "ConversationStatus SDKEvent ToolResult",
            ".llm": "LLM ChatModel LLMConfig ReplayLLM ScriptedLLM open_model",
            ".mcp": "MCPClient",
            ".price": "ModelPrice",
            ".runtime.base": "Runtime",
            ".runtime.docker": "Build BuiltImage DockerRuntime Mount SandboxLimits Service abuild_image build_image",
            ".runtime.local": "CLIRuntime",
            ".runtime.inventory": "SandboxInfo",
            ".runtime.pool": "SandboxPool",
            ".runtime.results": "CommandObservation ExecResult",
            ".runtime.sandboxes": "afind_sandbox alist_sandboxes aremove_sandbox find_sandbox list_sandboxes "
            "remove_sandbox",
            ".schema": "Action ErrorObservation Observation TextObservation",
            ".secrets": "Secrets",
            ".settings": "Settings",
            ".state": "ConversationState",
            ".tool": "Tool ToolAnnotations ToolDefinition ToolExecutor ToolRegistry register_tool",
            ".tools.glob": "GlobObservation",
            ".tools.grep": "GrepObservation",
            ".tool_flags": "ToolFlags",
        },
    )
