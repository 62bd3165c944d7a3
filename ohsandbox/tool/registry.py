"""Names for tools, so that a plain spec can say which ones an agent has."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.errors import UsageError
from ohsandbox.tool.definition import ToolBase, ToolDefinition

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

AnyTool = ToolDefinition[Any, Any]
ToolFactory = Callable[..., AnyTool | Sequence[AnyTool]]
Registrable = AnyTool | type[ToolBase[Any, Any]] | ToolFactory


class Tool(BaseModel):
    """A spec: a registered name and the parameters its tool is created with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    params: dict[str, Any] = Field(default_factory=dict)


class ToolRegistry:
    """Tools by name: instances as they are, classes through `create`, factories by call. Thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Registrable] = {}
        self._guard = threading.Lock()

    def register(self, name: str, tool: Registrable) -> None:
        """Give the tool a name; a second registration replaces the first.

        Raises:
            UsageError: name is empty, or tool is none of the three kinds, or an instance that cannot run.
        """
        if not name.strip():
            raise UsageError(f"A tool's name cannot be {name!r}. Name it with letters, digits and _.")
        if isinstance(tool, ToolDefinition) and tool.executor is None:
            raise UsageError(f"Tool {name!r} has no executor. Give it one: ToolDefinition(..., executor=...).")
        if isinstance(tool, type) and not issubclass(tool, ToolBase):
            raise UsageError(
                f"Class {tool.__name__!r} is no ToolDefinition. Register a subclass, or a factory function."
            )
        if not isinstance(tool, ToolDefinition | type) and not callable(tool):
            raise UsageError(
                f"Tool {name!r} is a {type(tool).__name__}. Register a ToolDefinition, its class or a factory."
            )
        with self._guard:
            self._entries[name] = tool

    def unregister(self, name: str) -> None:
        """Take the name away; an unknown one is no error."""
        with self._guard:
            self._entries.pop(name, None)

    def names(self, pattern: str = "*") -> list[str]:
        """The registered names that match the shell pattern, sorted."""
        with self._guard:
            return sorted(fnmatch.filter(self._entries, pattern))

    def resolve(self, spec: Tool, conv_state: ConversationState) -> list[AnyTool]:
        """The tools that spec stands for, made for the conversation.

        Raises:
            UsageError: the name is not registered, or params do not fit.
        """
        with self._guard:
            entry = self._entries.get(spec.name)
        if entry is None:
            raise UsageError(f"Tool {spec.name!r} is not registered. Registered are: {', '.join(self.names())}.")
        if isinstance(entry, ToolDefinition):
            if spec.params:
                raise UsageError(
                    f"Tool {spec.name!r} is registered as an instance and takes no params. Leave them out."
                )
            return [entry]
        made = _make(spec, entry, conv_state)
        tools = [made] if isinstance(made, ToolDefinition) else list(made)
        if not all(isinstance(tool, ToolDefinition) for tool in tools):
            raise UsageError(f"Tool {spec.name!r} made something that is no ToolDefinition.")
        return tools


def _make(spec: Tool, entry: type[ToolBase[Any, Any]] | ToolFactory, conv_state: ConversationState) -> Any:
    factory: Callable[..., Any] = entry.create if isinstance(entry, type) else entry  # type: ignore[attr-defined]
    try:
        return factory(**spec.params, conv_state=conv_state)
    except TypeError as error:
        raise UsageError(f"Tool {spec.name!r} cannot be made with params {spec.params!r}: {error}.") from error


_registry = ToolRegistry()


def register_tool(name: str, tool: Registrable) -> None:
    """Register an instance, a class or a factory with the process's registry."""
    _registry.register(name, tool)


def unregister_tool(name: str) -> None:
    """Take a name out of the process's registry."""
    _registry.unregister(name)


def resolve_tool(spec: Tool, conv_state: ConversationState) -> list[AnyTool]:
    """The tools that spec stands for, by the process's registry."""
    return _registry.resolve(spec, conv_state)


def list_registered_tools(pattern: str = "*") -> list[str]:
    """The registered names that match the shell pattern, sorted."""
    return _registry.names(pattern)
