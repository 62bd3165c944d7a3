"""The sources of an agent's tools: the registry of tools by name, and a runtime's own (`Runtime.get_tools`)."""

from __future__ import annotations

import fnmatch
import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox import __version__
from ohsandbox.arguments import ConfigModel, expect, suggests_names
from ohsandbox.errors import OhsandboxError, UsageError
from ohsandbox.runtime.registered_tools import RegisteredTools
from ohsandbox.schema import Action, Observation
from ohsandbox.schema.execution import FunctionExecutor
from ohsandbox.state import ConversationState
from ohsandbox.text import did_you_mean
from ohsandbox.tool.annotations import ToolAnnotations  # noqa: TC001 - pydantic reads annotations at run time
from ohsandbox.tool.definition import ToolBase, ToolDefinition
from ohsandbox.tool.functions import BY_NAME, function_tool
from ohsandbox.tool.plugins import Origin, Plugins

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime
    from ohsandbox.tool.annotations import Hint

AnyTool = ToolDefinition[Any, Any]
_ToolFactory = Callable[..., AnyTool | Sequence[AnyTool]]
Registrable = AnyTool | type[ToolBase[Any, Any]] | Callable[..., Any]
"""An instance, a class, a `_ToolFactory`, or a function, which becomes a tool."""


OWN = "ohsandbox"
_STATE_PARAMETER = "conv_state"
"""Parameter that makes a function a factory of tools."""


class BuiltInTool(NamedTuple):
    """A tool of this package: the constant `BUILT_IN` of the module that has the tool's name."""

    tool: Registrable
    """The object that creates it."""
    hint: Hint
    """The hint of its definition, for readers of the log that do not create the tool."""
    aliases: tuple[str, ...] = ()
    """Other names under which it is registered."""
    serves_runtimes: bool = False
    """`Runtime.execute_tool` knows it although it needs an agent (`CallHint.needs_agent`)."""


class Tool(ConfigModel):
    """A spec: a registered name and the parameters for its creation."""

    name: str = Field(min_length=1)
    """A registered name, or a shell pattern such as `file_*`, which selects all registered tools that match."""
    params: dict[str, Any] = Field(default_factory=dict)
    require_confirmation: bool = False
    """The user must approve each call of the created tools."""

    by_position = ("name", "params")

    if TYPE_CHECKING:

        def __init__(self, name: str, params: dict[str, Any] = ..., *, require_confirmation: bool = ...) -> None: ...


class ToolRegistry:
    """Tools by name: instances, classes (called by `create`) and factories. Thread-safe.

    A name that is not registered is looked up among the plugins, which cannot replace registered ones.
    """

    def __init__(self, plugins: Plugins | None = None) -> None:
        """Create a registry; without plugins it has only registered tools."""
        self._entries: dict[str, Registrable] = {}
        self._built_in: set[str] = set()
        self._guard = threading.Lock()
        expect("plugins", plugins, Plugins)
        self._plugins = plugins or Plugins("", check=usable)

    def register(self, name: str, tool: Registrable, *, replace: bool = False, built_in: bool = False) -> None:
        """Register the tool under a name; a second registration replaces the first.

        Args:
            name: the name.
            tool: an instance, a class, a factory, or a plain function, which becomes a tool (`function_tool`).
            replace: whether the tool may replace a built-in tool.
            built_in: whether the tool is built in.

        Raises:
            UsageError: the name is empty, or is a built-in tool's and replace is False; or the object cannot be a tool.
        """
        expect("name", name, str, optional=False)
        if not name.strip():
            raise UsageError(f"A tool's name cannot be {name!r}. Name it with letters, digits and _.")
        tool = usable(name, tool)
        with self._guard:
            if name in self._built_in and not (replace or built_in):
                raise UsageError(
                    f"Tool {name!r} is built in. Name yours otherwise, or replace it: register_tool({name!r}, ..., "
                    "replace=True)."
                )
            self._built_in |= {name} if built_in else set()
            self._entries[name] = tool

    def unregister(self, name: str) -> None:
        """Remove the name; an unknown one is not an error."""
        with self._guard:
            self._entries.pop(name, None)

    def names(self, pattern: str = "*") -> list[str]:
        """Return the names that match a shell pattern, sorted: registered ones, and those of plugins that load."""
        with self._guard:
            registered = set(self._entries)
        offered = [name for name in fnmatch.filter(self._plugins.names(), pattern) if name not in registered]
        loaded = {name for name in offered if (plugin := self._plugins.get(name)) and not plugin.fault}
        return sorted(loaded.union(fnmatch.filter(registered, pattern)))

    def matching(self, pattern: str) -> list[str]:
        """Return the names as `names` does, but only one for each tool, in the order of registration."""
        names = self.names(pattern)
        with self._guard:
            entries = dict(self._entries)
        distinct: dict[int, str] = {}
        for name, entry in entries.items():
            if name in names:
                distinct.setdefault(id(entry), name)
        return [*distinct.values(), *(name for name in names if name not in entries)]

    def knows(self, name: str) -> bool:
        """Whether the name is registered, or a plugin offers it; nothing is imported."""
        with self._guard:
            registered = name in self._entries
        return registered or name in self._plugins.names()

    def origin(self, name: str) -> Origin:
        """Return the source of the tool of that name.

        Raises:
            UsageError: there is no such tool.
        """
        return self._find(name)[1]

    def resolve(self, spec: Tool, conv_state: ConversationState) -> list[AnyTool]:
        """Create the spec's tools for the conversation.

        Raises:
            UsageError: the name is unknown, params are invalid, or a plugin's tool has the name of a registered one.
        """
        if is_pattern(spec.name):
            specs = [spec.model_copy(update={"name": name}) for name in self.matching(spec.name)]
            resolved = [tool for one_spec in specs for tool in self.resolve(one_spec, conv_state)]
            if not resolved:
                names = ", ".join(self.names())
                raise UsageError(f"No registered tool matches {spec.name!r}. Registered are: {names}.")
            return resolved
        entry, origin = self._find(spec.name)
        if isinstance(entry, ToolDefinition):
            if spec.params:
                raise UsageError(
                    f"Tool {spec.name!r} is registered as an instance and takes no params. Leave them out."
                )
            tools = [entry]
        else:
            made_tools = _make(spec, entry, conv_state)
            tools = list(made_tools) if isinstance(made_tools, Sequence) else [made_tools]
            if not all(isinstance(tool, ToolDefinition) for tool in tools):
                raise UsageError(
                    f"Tool {spec.name!r} made something that is not a ToolDefinition. Correct its factory."
                )
            self._refuse_shadows(spec.name, tools, origin)
        return [replace(tool, require_confirmation=True) for tool in tools] if spec.require_confirmation else tools

    def _find(self, name: str) -> tuple[Registrable, Origin]:
        with self._guard:
            entry = self._entries.get(name)
        if entry is not None:
            return entry, _origin_of(entry)
        plugin = self._plugins.get(name)
        if plugin is None:
            names = self.names()
            message = f"Tool {name!r} is not registered. Registered are: {', '.join(names)}."
            raise UsageError(message + did_you_mean(name, names))
        if plugin.fault:
            raise UsageError(f"Tool {name!r} cannot be used: {plugin.fault} Fix or remove {plugin.origin.name}.")
        return plugin.tool, plugin.origin

    def _refuse_shadows(self, name: str, tools: Sequence[AnyTool], origin: Origin) -> None:
        """Raise UsageError if a plugin's tool has the name of a registered tool; its entry point may have another."""
        with self._guard:
            names = (
                ()
                if name in self._entries
                else [tool_name for tool in tools for tool_name in (tool.name, *tool.aliases)]
            )
            taken = next((taken_name for taken_name in names if taken_name in self._entries), None)
        if taken is not None:
            raise UsageError(
                f"Tool {name!r} of {origin.name} calls itself {taken!r}, which is another tool's name. Do not use it."
            )


def is_pattern(name: str) -> bool:
    """Whether the name is a shell pattern; names of tools are not."""
    return any(character in name for character in "*?[")


def usable(name: str, tool: Any) -> Registrable:
    """Return the object to register: a plain function becomes a tool of that name, other objects stay as they are.

    Raises:
        UsageError: the object is not an instance with an executor, a subclass, a factory, or a function that can be a
            tool.
    """
    if isinstance(tool, ToolDefinition) and tool.executor is None:
        raise UsageError(f"Tool {name!r} has no executor. Give it one: ToolDefinition(..., executor=...).")
    if isinstance(tool, type) and not issubclass(tool, ToolBase):
        raise UsageError(
            f"Class {tool.__name__!r} is not a ToolDefinition. Register a subclass, or a factory function."
        )
    if not isinstance(tool, ToolDefinition | type) and not callable(tool):
        raise UsageError(
            f"Tool {name!r} is a {type(tool).__name__}. Register a ToolDefinition, its class, a factory or a function."
        )
    if isinstance(tool, ToolDefinition | type) or _accepts(tool, _STATE_PARAMETER, any_name=True):
        registrable: Registrable = tool
        return registrable
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return function_tool(tool, name=name)
    raise UsageError(f"Tool {name!r} is a callable without a parameter conv_state, so no factory. Register a function.")


def _origin_of(entry: Registrable) -> Origin:
    executor = entry.executor if isinstance(entry, ToolDefinition) else None
    made_in = executor.function if isinstance(executor, FunctionExecutor) else type(executor) if executor else entry
    module = getattr(made_in, "__module__", None) or "unknown"
    if module.partition(".")[0] != OWN:
        return Origin(module)
    return Origin(OWN, __version__)


def _make(spec: Tool, entry: type[ToolBase[Any, Any]] | _ToolFactory, conv_state: ConversationState) -> Any:
    factory: Callable[..., Any] = entry.create if isinstance(entry, type) else entry  # type: ignore[attr-defined]
    if unknown := [name for name in spec.params if not _accepts(factory, name)]:
        parameters = (
            ", ".join(name for name in inspect.signature(factory).parameters if _accepts(factory, name)) or "none"
        )
        raise UsageError(f"Tool {spec.name!r} has no params {', '.join(map(repr, unknown))}. It has: {parameters}.")
    try:
        return factory(**spec.params, conv_state=conv_state)
    except OhsandboxError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UsageError(
            f"Tool {spec.name!r} cannot be made with params {spec.params!r}: {reason}. "
            "Correct its params or its factory."
        ) from error


def _accepts(factory: Callable[..., Any], name: str, *, any_name: bool = False) -> bool:
    """Whether the factory takes a param of that name, also by `**`, or has no readable signature.

    conv_state counts as a param only if any_name is set.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # a builtin has no readable signature
        return True
    if name in parameters:
        return (any_name or name != _STATE_PARAMETER) and parameters[name].kind in BY_NAME
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


class RuntimeTool(BaseModel):
    """An entry of `Runtime.get_tools()`, in MCP's form; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    description: str | None = None
    inputSchema: dict[str, Any] = Field(default_factory=dict)  # noqa: N815 - the protocol's spelling
    outputSchema: dict[str, Any] | None = None  # noqa: N815 - the protocol's spelling
    annotations: ToolAnnotations | None = None

    def to_param(self) -> dict[str, Any]:
        """Return the tool in the form of the chat completions API, with a schema that providers accept."""
        return self.definition().to_openai_tool()

    def definition(self, runtime: Runtime | None = None) -> ToolDefinition[Action, Observation]:
        """Return a definition that calls `Runtime.execute_tool`; without a runtime it cannot be called.

        Raises:
            UsageError: providers refuse its name.
        """

        def run(action: Action) -> Observation:
            assert runtime is not None  # noqa: S101 - else there is no executor
            return runtime.execute_tool(self.name, action.to_arguments())

        description = self.description or f"Call {self.name}."
        return ToolDefinition(
            name=self.name,
            description=description,
            action_type=Action.from_mcp_schema(self.name, self.inputSchema, description=description),
            annotations=self.annotations,
            executor=FunctionExecutor(run) if runtime else None,
        )


def find_runtime_tool(runtime: Runtime, name: str) -> ToolDefinition[Action, Observation] | None:
    """Return the tool of that name among the runtime's tools; None if there is none."""
    entry = next((entry for entry in runtime.get_tools() if entry["name"] == name), None)
    return None if entry is None else RuntimeTool.model_validate(entry).definition(runtime)


class _RuntimeResolver:
    """The registered tools that need only a runtime, for `Runtime.execute_tool`."""

    def __init__(self, registry: ToolRegistry, *, without: Collection[str]) -> None:
        """Create it without the tools of these names, which need a conversation."""
        self._registry, self._without = registry, frozenset(without)

    def names(self) -> list[str]:
        """Return the names, sorted."""
        return [name for name in self._registry.names() if name not in self._without]

    def hint(self, name: str) -> str:
        """Return text about an unknown name: that the tool needs a conversation, or a similar name; "" for neither."""
        names = self.names()
        if self._registry.knows(name):
            return f". It needs a conversation; a runtime alone has: {', '.join(names)}."
        near = did_you_mean(name, names)
        return near and f".{near}"

    def create(self, name: str, runtime: Runtime) -> list[AnyTool]:
        """Create the tools of that name; raise the errors of `ToolRegistry.resolve`."""
        return self._registry.resolve(Tool(name=name), ConversationState(conversation_id="runtime", runtime=runtime))


_registry = ToolRegistry(Plugins(check=usable))


@suggests_names
def register_tool(name: str, tool: Registrable, *, replace: bool = False, built_in: bool = False) -> None:
    """Register an instance, a class, a factory or a plain function in the registry of this process.

    A function with a parameter `conv_state` is a factory of tools. Any other function becomes a tool itself: it runs on
    the host, and its docstring and annotations describe it.

    Args:
        name: the name in an agent's `tools`; a second registration replaces the first.
        tool: the object.
        replace: whether it may replace a built-in tool.
        built_in: for the tools of this package.

    Raises:
        UsageError: the name is empty or a built-in tool's, or the tool cannot be one.
    """
    _registry.register(name, tool, replace=replace, built_in=built_in)


unregister_tool = _registry.unregister
resolve_tool = _registry.resolve
is_registered = _registry.knows
list_registered_tools = _registry.names
matching_tools = _registry.matching
origin_of_tool = _registry.origin


def serve_runtimes(*, without: Collection[str]) -> None:
    """Make registered tools available to `Runtime.execute_tool`, without the tools of these names."""
    RegisteredTools.resolve_by(_RuntimeResolver(_registry, without=without))
