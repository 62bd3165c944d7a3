"""The registered tools in one runtime. Their layer is above this one, and passes in a resolver of names."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ohsandbox.errors import OhsandboxError, ToolError
from ohsandbox.runtime.process.cancellation import once_cancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.runtime.base import Runtime
    from ohsandbox.schema import Action, Observation

_BUILT_IN_TOOLS = "ohsandbox.tools"
"""Imported at the first call of a tool that is not the runtime's own; it calls `RegisteredTools.resolve_by`. It is in a
layer above: one of the two exceptions that `tests/test_imports.py` names."""


class CreatedTool(Protocol):
    """A tool that was created for one runtime; it keeps its state from call to call until `close`."""

    @property
    def name(self) -> str:
        """The tool's name for the model."""

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> Action:
        """Check the arguments; return them as an action."""

    def __call__(self, action: Any) -> Observation:
        """Run the tool."""

    def interrupt(self) -> None:
        """End the running call. Thread-safe."""

    def close(self) -> None:
        """End everything that the tool has started."""


class ToolResolver(Protocol):
    """Creates tools, by name, that need only a runtime."""

    def names(self) -> list[str]:
        """Return the names of all tools."""

    def hint(self, name: str) -> str:
        """Return the end of a message about an unknown name; may be ""."""

    def create(self, name: str, runtime: Runtime) -> Sequence[CreatedTool]:
        """Create the tools of that name.

        Raises:
            UsageError: there is none, or it needs more than a runtime.
        """


class RegisteredTools:
    """The registered tools in one runtime; each is created at its first call, and closed with the runtime."""

    _resolver: ToolResolver | None = None

    @classmethod
    def resolve_by(cls, resolver: ToolResolver) -> None:
        """Use this resolver for all runtimes."""
        cls._resolver = resolver

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._created: dict[str, CreatedTool] = {}
        self._lock = threading.Lock()

    def execute(self, name: str, arguments: Mapping[str, Any], *, cancel: threading.Event | None) -> Observation:
        """Run the tool of that name; once cancel is set, interrupt it until it ends.

        Raises:
            ToolError, UsageError: the tool failed, or there is none of that name.
        """
        tool = self._tool(name)
        action = tool.action_from_arguments(arguments)
        if cancel is not None and cancel.is_set():
            raise ToolError("Cancelled before it began.")

        def interrupt() -> None:
            with contextlib.suppress(OhsandboxError):  # a dead sandbox needs no interrupt
                tool.interrupt()

        with once_cancelled(cancel, interrupt):
            return tool(action)

    def names(self) -> list[str]:
        """Return the names of the tools that `Runtime.execute_tool` knows besides the runtime's own, sorted."""
        return self._resolve().names()

    def _resolve(self) -> ToolResolver:
        if self._resolver is None:
            import_module(_BUILT_IN_TOOLS)
        assert self._resolver is not None  # noqa: S101 - that module sets it
        return self._resolver

    def _tool(self, name: str) -> CreatedTool:
        resolver = self._resolve()
        with self._lock:
            if name not in self._created:
                if name not in resolver.names():
                    raise ToolError(f"Unknown tool: {name}{resolver.hint(name)}")
                for tool in resolver.create(name, self._runtime):  # an alias stands for the same tool
                    self._created[name] = self._created.setdefault(tool.name, tool)
            return self._created[name]

    def close(self) -> None:
        """End everything that the tools have started; idempotent."""
        with self._lock:
            created, self._created = [*self._created.values()], {}
        for tool in created:
            with contextlib.suppress(OhsandboxError):
                tool.close()
