"""A runtime's own tools: the entries of its `get_tools`, in MCP form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ohsandbox.schema import Action, Observation
from ohsandbox.tool.annotations import ToolAnnotations  # noqa: TC001 - pydantic reads annotations at run time
from ohsandbox.tool.definition import ToolDefinition
from ohsandbox.tool.executor import ToolExecutor

if TYPE_CHECKING:
    from ohsandbox.runtime.base import Runtime


class RuntimeTool(BaseModel):
    """One entry of `Runtime.get_tools()`. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    description: str | None = None
    inputSchema: dict[str, Any] = Field(default_factory=dict)  # noqa: N815 - the protocol's spelling
    outputSchema: dict[str, Any] | None = None  # noqa: N815 - the protocol's spelling
    annotations: ToolAnnotations | None = None

    def to_param(self) -> dict[str, Any]:
        """The function tool of the chat completions API, with the schema simplified for providers."""
        return self.definition().to_openai_tool()

    def definition(self, runtime: Runtime | None = None) -> ToolDefinition[Action, Observation]:
        """The tool's definition; without a runtime it can be described but not called.

        Raises:
            UsageError: providers refuse its name.
        """
        return ToolDefinition(
            name=self.name,
            description=self.description or f"Call {self.name}.",
            action_type=Action.from_mcp_schema(self.name, self.inputSchema),
            annotations=self.annotations,
            executor=None if runtime is None else RuntimeToolExecutor(runtime, self.name),
        )


class RuntimeToolExecutor(ToolExecutor[Action, Observation]):
    """Runs the tool in a runtime."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name

    def __call__(self, action: Action) -> Observation:
        """Call `Runtime.execute_tool`; a failure comes back as an ErrorObservation.

        Raises:
            SandboxUnavailable: the sandbox is gone.
        """
        return self._runtime.execute_tool(self._name, action.to_arguments())


def find_runtime_tool(runtime: Runtime, name: str) -> ToolDefinition[Action, Observation] | None:
    """Find the tool of that name among the runtime's tools."""
    found = next((entry for entry in runtime.get_tools() if entry["name"] == name), None)
    return None if found is None else RuntimeTool.model_validate(found).definition(runtime)
