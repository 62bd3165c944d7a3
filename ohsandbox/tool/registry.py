"""The registry of tools by name, so that a plain spec can list an agent's tools."""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.tool.definition import ToolBase, ToolDefinition
from ohsandbox.tool.plugins import Origin, Plugins

if TYPE_CHECKING:
    from ohsandbox.state import ConversationState

AnyTool = ToolDefinition[Any, Any]
ToolFactory = Callable[..., AnyTool | Sequence[AnyTool]]
Registrable = AnyTool | type[ToolBase[Any, Any]] | ToolFactory

OWN = "ohsandbox"


class Tool(BaseModel):
    """A spec: a registered name and the parameters for its creation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    params: dict[str, Any] = Field(default_factory=dict)
    require_confirmation: bool = False
    """The user must approve each call of the created tools."""


class ToolRegistry:
    """Tools by name: instances as they are, classes through `create`, factories by call. Thread-safe.

    An unregistered name is looked up among the plugins; they cannot replace a registered one.
    """

    def __init__(self, plugins: Plugins | None = None) -> None:
        """Without plugins, it has only registered tools."""
        self._entries: dict[str, Registrable] = {}
        self._guard = threading.Lock()
        self._plugins = plugins

    def register(self, name: str, tool: Registrable) -> None:
        """Register the tool under a name; a second registration replaces the first.

        Raises:
            UsageError: name is empty, or tool is none of the three kinds, or an instance that cannot run.
        """
        if not name.strip():
            raise UsageError(f"A tool's name cannot be {name!r}. Name it with letters, digits and _.")
        check_kind(name, tool)
        with self._guard:
            self._entries[name] = tool

    def unregister(self, name: str) -> None:
        """Remove the name; an unknown one is no error."""
        with self._guard:
            self._entries.pop(name, None)

    def names(self, pattern: str = "*") -> list[str]:
        """The names that match the shell pattern, sorted: the registered ones, and those of plugins that load."""
        with self._guard:
            registered = set(self._entries)
        offered = self._plugins.names() if self._plugins is not None else []
        loaded = {name for name in fnmatch.filter(offered, pattern) if name not in registered and self._loads(name)}
        return sorted(loaded.union(fnmatch.filter(registered, pattern)))

    def knows(self, name: str) -> bool:
        """Whether the name is registered, or a plugin offers it; nothing is imported."""
        with self._guard:
            registered = name in self._entries
        return registered or (self._plugins is not None and name in self._plugins.names())

    def origin(self, name: str) -> Origin:
        """The source of the tool of that name.

        Raises:
            UsageError: there is none.
        """
        return self._find(name)[1]

    def resolve(self, spec: Tool, conv_state: ConversationState) -> list[AnyTool]:
        """Create the spec's tools for the conversation.

        Raises:
            UsageError: the name is not registered, or params are invalid, or a plugin's tool takes a registered name.
        """
        entry, origin = self._find(spec.name)
        if isinstance(entry, ToolDefinition):
            if spec.params:
                raise UsageError(
                    f"Tool {spec.name!r} is registered as an instance and takes no params. Leave them out."
                )
            return _confirmed(spec, [entry])
        made = _make(spec, entry, conv_state)
        tools = list(made) if isinstance(made, Sequence) else [made]
        if not all(isinstance(tool, ToolDefinition) for tool in tools):
            raise UsageError(f"Tool {spec.name!r} made something that is no ToolDefinition.")
        self._refuse_shadows(spec.name, tools, origin)
        return _confirmed(spec, tools)

    def _find(self, name: str) -> tuple[Registrable, Origin]:
        with self._guard:
            entry = self._entries.get(name)
        if entry is not None:
            return entry, _origin_of(entry)
        plugin = self._plugins.get(name) if self._plugins is not None else None
        if plugin is None:
            raise UsageError(f"Tool {name!r} is not registered. Registered are: {', '.join(self.names())}.")
        if plugin.fault:
            raise UsageError(f"Tool {name!r} cannot be used: {plugin.fault} Mend or remove {plugin.origin.name}.")
        return plugin.tool, plugin.origin

    def _loads(self, name: str) -> bool:
        plugin = self._plugins.get(name) if self._plugins is not None else None
        return plugin is not None and not plugin.fault

    def _refuse_shadows(self, name: str, tools: Sequence[AnyTool], origin: Origin) -> None:
        """Refuse a plugin's tool that has a registered tool's name, even if its entry point has another name."""
        with self._guard:
            names = () if name in self._entries else [one for tool in tools for one in (tool.name, *tool.aliases)]
            taken = next((one for one in names if one in self._entries), None)
        if taken is not None:
            raise UsageError(
                f"Tool {name!r} of {origin.name} calls itself {taken!r}, which is another tool's name. Do not use it."
            )


def check_kind(name: str, tool: Any) -> None:
    """Refuse an object that cannot be a tool.

    Raises:
        UsageError: it is neither an instance that can run, nor a subclass, nor a factory.
    """
    if isinstance(tool, ToolDefinition) and tool.executor is None:
        raise UsageError(f"Tool {name!r} has no executor. Give it one: ToolDefinition(..., executor=...).")
    if isinstance(tool, type) and not issubclass(tool, ToolBase):
        raise UsageError(f"Class {tool.__name__!r} is no ToolDefinition. Register a subclass, or a factory function.")
    if not isinstance(tool, ToolDefinition | type) and not callable(tool):
        raise UsageError(
            f"Tool {name!r} is a {type(tool).__name__}. Register a ToolDefinition, its class or a factory."
        )


def _confirmed(spec: Tool, tools: list[AnyTool]) -> list[AnyTool]:
    return [replace(tool, require_confirmation=True) for tool in tools] if spec.require_confirmation else tools


def _origin_of(entry: Registrable) -> Origin:
    made_in = type(entry.executor) if isinstance(entry, ToolDefinition) else entry
    module = getattr(made_in, "__module__", None) or "unknown"
    if module.partition(".")[0] != OWN:
        return Origin(module)
    from ohsandbox import __version__  # noqa: PLC0415 - the package's own name, once it is loaded

    return Origin(OWN, __version__)


def _make(spec: Tool, entry: type[ToolBase[Any, Any]] | ToolFactory, conv_state: ConversationState) -> Any:
    factory: Callable[..., Any] = entry.create if isinstance(entry, type) else entry  # type: ignore[attr-defined]
    try:
        return factory(**spec.params, conv_state=conv_state)
    except OhsandboxError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UsageError(f"Tool {spec.name!r} cannot be made with params {spec.params!r}: {reason}.") from error


_registry = ToolRegistry(Plugins(check=check_kind))


def register_tool(name: str, tool: Registrable) -> None:
    """Register an instance, a class or a factory with the process's registry."""
    _registry.register(name, tool)


def unregister_tool(name: str) -> None:
    """Remove a name from the process's registry."""
    _registry.unregister(name)


def resolve_tool(spec: Tool, conv_state: ConversationState) -> list[AnyTool]:
    """Create the spec's tools with the process's registry."""
    return _registry.resolve(spec, conv_state)


def is_registered(name: str) -> bool:
    """Whether the process's registry knows the name."""
    return _registry.knows(name)


def list_registered_tools(pattern: str = "*") -> list[str]:
    """The names that match the shell pattern, sorted; includes installed plugins."""
    return _registry.names(pattern)


def origin_of_tool(name: str) -> Origin:
    """The source of the tool of that name, by the process's registry.

    Raises:
        UsageError: there is none.
    """
    return _registry.origin(name)
