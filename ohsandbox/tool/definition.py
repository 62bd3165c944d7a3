"""`ToolDefinition`: a tool's name, its words for the model, its types and its executor."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self

from ohsandbox.errors import ToolError, UsageError
from ohsandbox.schema import Action, Observation
from ohsandbox.tool.annotations import CallHint
from ohsandbox.tool.arguments import SECURITY_RISK, parse_action, take_security_risk
from ohsandbox.tool.executor import ActionT, ObservationT, ToolExecutor
from ohsandbox.tool.schema import with_security_risk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ohsandbox.tool.annotations import Hint, ToolAnnotations


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolBase(ABC, Generic[ActionT, ObservationT]):
    """What can be created for a conversation as one or more tools."""

    @classmethod
    @abstractmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sequence[ToolDefinition[Any, Any]]:
        """The tools, ready to run in the conversation; called as `create(**params, conv_state=state)`.

        Raises:
            UsageError: params do not fit, or the conversation lacks what the tool needs.
        """


@dataclass(frozen=True, kw_only=True)
class ToolDefinition(ToolBase[ActionT, ObservationT]):
    """A tool. Make an instance where it needs no conversation; subclass it and fill `create` where it does."""

    name: str
    """What the model calls it by: letters, digits, `_` and `-`, at most 64 (the rule of every provider)."""
    description: str
    """Starts with a verb; says what the arguments are, what comes back, and the limits."""
    action_type: type[ActionT]
    observation_type: type[ObservationT] | None = None
    annotations: ToolAnnotations | None = None
    """None is the protocol's cautious default: not read-only, destructive."""
    executor: ToolExecutor[ActionT, ObservationT] | None = None
    """None is a tool that can be described and not called."""
    aliases: tuple[str, ...] = ()
    """Other names a model may call it by; they are not offered."""
    hint: Hint | None = None
    """How its calls are shown, and whether they write; None shows the arguments, and goes by the annotations."""
    require_confirmation: bool = False
    """A person must allow each call, whatever the conversation's policy says of others."""

    def __post_init__(self) -> None:
        """Check the name here, where it says whose it is: a provider refuses every request with a wrong one in it."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"A tool cannot be named {self.name!r}. Use 1 to 64 letters, digits, _ and -.")

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Sequence[ToolDefinition[Any, Any]]:  # noqa: ARG003 - a signature
        """Not for plain definitions: those are instances already.

        Raises:
            UsageError: always; a subclass that belongs to a conversation fills this.
        """
        raise UsageError(f"{cls.__name__} has no create() of its own. Register an instance, or write create().")

    @property
    def is_read_only(self) -> bool:
        """Whether the tool says that it changes nothing."""
        return self.annotations is not None and self.annotations.readOnlyHint

    def call_hint(self, arguments: Mapping[str, Any]) -> CallHint:
        """What the log says of a call with these arguments."""
        hint = self.hint(arguments) if callable(self.hint) else self.hint or CallHint()
        said = self.annotations
        destructive = said is not None and "destructiveHint" in said.model_fields_set and said.destructiveHint
        writes = hint.writes and not self.is_read_only
        return hint.model_copy(update={"writes": writes, "destructive": destructive and writes})

    @property
    def arguments_type(self) -> type[Action]:
        """What the arguments are checked against; the action, but where that only wraps them."""
        return self.action_type

    def action_from_arguments(self, arguments: Mapping[str, Any]) -> ActionT:
        """The action for a model's arguments; a `security_risk` among them is checked and dropped.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or wrong.
        """
        has_its_own = SECURITY_RISK in self.action_type.model_fields
        if not has_its_own:
            arguments, _ = take_security_risk(self.name, arguments)
        also_allowed = () if has_its_own or self.is_read_only else (SECURITY_RISK,)
        return parse_action(self.name, self.action_type, arguments, also_allowed=also_allowed)

    def __call__(self, action: ActionT) -> ObservationT:
        """Run it.

        Raises:
            ToolError: it could not be done; or it has no executor; or action or observation is of another type.
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
        """A copy that runs by executor."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return type(self)(**{**fields, "executor": executor})

    def interrupt(self) -> None:
        """End what its executor runs now; from any thread."""
        if self.executor is not None:
            self.executor.interrupt()

    def last_output(self) -> bytes:
        """The end of what its executor's running call has printed, not masked; from any thread."""
        return b"" if self.executor is None else self.executor.last_output()

    def close(self) -> None:
        """Let go of what the executor holds. Twice is fine."""
        if self.executor is not None:
            self.executor.close()

    def to_openai_tool(self) -> dict[str, Any]:
        """The function tool of the chat completions API."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self._parameters()},
        }

    def to_mcp_tool(self) -> dict[str, Any]:
        """The entry of an MCP `tools/list` answer."""
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
