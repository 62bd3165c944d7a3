"""`Schema` and its two subclasses: `Action`, a tool's input, and `Observation`, its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads annotations at run time
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from rich.text import Text

from ohsandbox.content import Content, TextContent
from ohsandbox.schema.provider_schema import plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterator


class Schema(BaseModel):
    """Root of both: frozen, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_mcp_schema(
        cls,
        name: str,
        json_schema: Mapping[str, Any] | bool,  # noqa: FBT001 - a schema
        *,
        description: str = "",
    ) -> type[Self]:
        """A subclass whose fields are the properties of a JSON Schema (draft 4 to 2020-12), as MCP servers send them.

        It checks types, enum, const, limits, patterns, formats' base type, nested objects and arrays, references
        within the schema, anyOf, oneOf (as anyOf) and allOf. A part that cannot be checked, is malformed, or exceeds
        the bounds of `schema.provider_schema` accepts any value. Nothing is ever fetched. A property whose name cannot
        be an attribute has another attribute and keeps its name in `model_validate` and `to_arguments`. description, or
        else the schema's own, becomes the docstring. The same schema gives the same class while it is among the last
        128 requested.

        Never raises: accepts any JSON value, however malformed or large.
        """
        from ohsandbox.schema.foreign import model_from_json  # noqa: PLC0415 - only tools of others need it

        return model_from_json(cls, name, json_schema, description=description)

    @classmethod
    def to_mcp_schema(cls) -> dict[str, Any]:
        """The JSON Schema without references and titles. Shared by all callers: do not modify."""
        return plain_schema(cls)

    def to_arguments(self) -> dict[str, Any]:
        """Return only the fields that were given, by their original names."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class Action(Schema):
    """What a tool is asked to do; its fields are the tool's arguments.

    Numbers may be given as text, as models send them, but not as booleans (`timeout: true`).
    """

    call_kind: ClassVar[str] = ""
    """`CallHint.kind` of every call with this action; "" leaves it to the tool's hint."""

    @model_validator(mode="wrap")
    @classmethod
    def _no_boolean_is_a_number(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(given)
        if faults := [*_booleans_made_numbers(given, made)]:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return made

    @cached_property
    def tool_call_metadata(self) -> Any:
        """The `ohsandbox.agent.ToolCallMetadata` of an action that a model requested; else None. Not a field."""
        return None

    @property
    def visualize(self) -> Text:
        """Return the action as a person sees it: one line per argument."""
        return lines_of(self.model_dump(by_alias=True, exclude_defaults=True))


def lines_of(arguments: Mapping[str, Any]) -> Text:
    """Format arguments for a person: one line each."""
    text = Text()
    for name, value in arguments.items():
        text.append(f"{name}: ", style="bold")
        text.append(f"{value}\n")
    text.rstrip()
    return text


class Observation(Schema):
    """The result of an action."""

    @property
    def is_error(self) -> bool:
        """Whether the tool failed; a command's non-zero exit code is not a failure of the tool."""
        return False

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the content that the model is shown."""
        return [TextContent(text=self.model_dump_json())]

    @property
    def visualize(self) -> Text:
        """Return the observation as a person sees it."""
        parts = [
            part.text if isinstance(part, TextContent) else f"[{len(part.image_urls)} image(s)]"
            for part in self.to_llm_content
        ]
        return Text("\n".join(parts))


class TextObservation(Observation):
    """Plain text."""

    text: str

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the text unchanged."""
        return [TextContent(text=self.text)]


class ErrorObservation(Observation):
    """A tool failed; the model reads why."""

    message: str

    @property
    def is_error(self) -> bool:
        """Return True."""
        return True

    @property
    def to_llm_content(self) -> Sequence[Content]:
        """Return the message."""
        return [TextContent(text=self.message)]


def text_of(observation: Observation) -> str:
    """All text parts of an observation, joined."""
    return "\n".join(part.text for part in observation.to_llm_content if isinstance(part, TextContent))


def _booleans_made_numbers(given: Any, made: Any, place: tuple[str | int, ...] = ()) -> Iterator[InitErrorDetails]:
    """The places, at any depth, where a given boolean became a number."""
    if isinstance(given, bool):
        if isinstance(made, int | float) and not isinstance(made, bool):
            error = PydanticCustomError("number_needed", "A number is needed")
            yield InitErrorDetails(type=error, loc=place, input=given)
    elif isinstance(given, dict):
        if isinstance(made, BaseModel):
            made = {field.alias or name: getattr(made, name) for name, field in type(made).model_fields.items()}
        for name in [name for name in made if name in given] if isinstance(made, dict) else ():
            yield from _booleans_made_numbers(given[name], made[name], (*place, name))
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple) and len(given) == len(made):
        for number, (value, part) in enumerate(zip(given, made, strict=True)):
            yield from _booleans_made_numbers(value, part, (*place, number))
