"""`ToolDefinition`: a tool's name, its description for the model, its types and its executor."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self

from ohsandbox.arguments import expect, wrong
from ohsandbox.content import DEFAULT_LIMITS, OutputLimits
from ohsandbox.errors import ToolError, UsageError
from ohsandbox.schema import Action, Observation
from ohsandbox.schema.execution import ActionT, ObservationT, ToolExecutor, parse_action
from ohsandbox.tool.annotations import SECURITY_RISK, CallHint, ToolAnnotations, take_security_risk, with_security_risk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.tool.annotations import Hint


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolBase(ABC, Generic[ActionT, ObservationT]):
    """Base of classes that create one or more tools for a conversation."""

    @classmethod
    @abstractmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sequence[ToolDefinition[Any, Any]]:
        """Create the tools for the conversation; called as `create(**params, conv_state=state)`.

        Raises:
            UsageError: params are invalid, or the conversation lacks something that the tool needs.
        """


@dataclass(frozen=True, kw_only=True)
class ToolDefinition(ToolBase[ActionT, ObservationT]):
    """A tool. Create an instance if it needs no conversation; otherwise subclass it and implement `create`."""

    name: str
    """The tool's name for the model: 1 to 64 letters, digits, `_` and `-`, as all providers require."""
    description: str
    """Starts with a verb; describes the arguments, the result and the limits."""
    action_type: type[ActionT]
    observation_type: type[ObservationT] | None = None
    short_description: str | None = None
    """A shorter description for models that take at most 1024 characters; without one, the description is cut."""
    annotations: ToolAnnotations | None = None
    """The effects; None means the protocol's cautious defaults: not read-only, destructive."""
    executor: ToolExecutor[ActionT, ObservationT] | None = None
    """Runs the tool; a tool without one can be described but not called."""
    aliases: tuple[str, ...] = ()
    """Other names that a model may use; it is not told them."""
    hint: Hint | None = None
    """How calls are shown, and whether they write; None shows the arguments and uses the annotations."""
    require_confirmation: bool = False
    """The user must approve each call, regardless of the conversation's policy."""
    limits: OutputLimits = DEFAULT_LIMITS
    """Limits of a result for the model."""

    def __post_init__(self) -> None:
        """Check the fields: providers would refuse every request with an invalid name.

        Raises:
            UsageError: a field has a wrong type, or providers refuse the name.
        """
        expect("name", self.name, str, optional=False)
        expect("description", self.description, str, optional=False)
        if not isinstance(self.action_type, type) or not issubclass(self.action_type, Action):
            raise wrong("action_type", self.action_type, "Give a subclass of Action.")
        expect("annotations", self.annotations, ToolAnnotations)
        expect("executor", self.executor, ToolExecutor, "Subclass it, or register_tool(name, function).")
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"A tool cannot be named {self.name!r}. Use 1 to 64 letters, digits, _ and -.")

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sequence[ToolDefinition[Any, Any]]:  # noqa: ARG003 - a signature
        """Raise an error: a plain definition is an instance already.

        Raises:
            UsageError: always; a subclass that needs a conversation overrides this.
        """
        raise UsageError(f"{cls.__name__} has no create() of its own. Register an instance, or write create().")

    @property
    def is_read_only(self) -> bool:
        """Whether the tool declares that it changes nothing."""
        return self.annotations is not None and self.annotations.readOnlyHint

    def call_hint(self, arguments: Mapping[str, Any]) -> CallHint:
        """Return the hint for a call with these arguments."""
        hint = self.hint(arguments) if callable(self.hint) else self.hint or CallHint()
        annotations = self.annotations
        destructive = (
            annotations is not None
            and "destructiveHint" in annotations.model_fields_set
            and annotations.destructiveHint
        )
        writes = hint.writes and not self.is_read_only
        kind = self.action_type.call_kind or hint.kind
        return hint.model_copy(update={"kind": kind, "writes": writes, "destructive": destructive and writes})

    @property
    def arguments_type(self) -> type[Action]:
        """The type that validates the arguments: the action type, unless that wraps another one."""
        return self.action_type

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> ActionT:
        """Return the action for a model's arguments; a `security_risk` among them is checked and dropped.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or wrong.
        """
        has_its_own = SECURITY_RISK in self.action_type.model_fields
        if not has_its_own:
            arguments, _ = take_security_risk(self.name, arguments)
        also_allowed = () if has_its_own or self.is_read_only else (SECURITY_RISK,)
        return parse_action(self.name, self.action_type, arguments, also_allowed=also_allowed)

    def __call__(self, action: ActionT) -> ObservationT:
        """Run the tool.

        Raises:
            ToolError: the tool failed or has no executor, or action or observation has a wrong type.
        """
        if self.executor is None:
            raise ToolError(f"Tool {self.name!r} cannot be called: it has no executor.")
        if not isinstance(action, self.action_type):
            raise ToolError(f"Tool {self.name!r} takes a {self.action_type.__name__}, not a {type(action).__name__}.")
        observation = self.executor(action)
        expected: type[Observation] = self.observation_type or Observation
        if not isinstance(observation, expected):
            raise ToolError(
                f"Tool {self.name!r} returned a {type(observation).__name__} where a {expected.__name__} belongs."
            )
        return observation

    def with_executor(self, executor: ToolExecutor[ActionT, ObservationT]) -> Self:
        """Return a copy with another executor."""
        return replace(self, executor=executor)

    def shortened(self) -> Self:
        """Return a copy with the short description; the tool itself if it has none."""
        return self if self.short_description is None else replace(self, description=self.short_description)

    def interrupt(self) -> None:
        """End the executor's running call. Thread-safe."""
        if self.executor is not None:
            self.executor.interrupt()

    def last_output(self) -> bytes:
        """Return the end of the running call's output, not masked. Thread-safe."""
        return b"" if self.executor is None else self.executor.last_output()

    def close(self) -> None:
        """Release the executor's resources; idempotent."""
        if self.executor is not None:
            self.executor.close()

    def to_openai_tool(self) -> dict[str, Any]:
        """Return the tool in the form of the chat completions API."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self._parameters()},
        }

    def to_mcp_tool(self) -> dict[str, Any]:
        """Return the tool as an entry of an MCP `tools/list` answer."""
        tool: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.action_type.to_mcp_schema(),
        }
        if self.observation_type is not None:
            tool["outputSchema"] = self.observation_type.to_mcp_schema()
        if self.annotations is not None:
            tool["annotations"] = self.annotations.model_dump(exclude_none=True)
        return tool

    def _parameters(self) -> dict[str, Any]:
        schema = self.action_type.to_mcp_schema()
        return schema if self.is_read_only else with_security_risk(schema)
