"""`function_tool`: makes a tool of a Python function, with a schema from its signature."""

from __future__ import annotations

import asyncio
import inspect
import typing
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ohsandbox.errors import UsageError
from ohsandbox.schema import Action, Observation, TextObservation
from ohsandbox.schema.execution import FunctionExecutor
from ohsandbox.tool.definition import ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox.tool.annotations import ToolAnnotations

BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def function_tool(
    function: Callable[..., Any], *, name: str | None = None, annotations: ToolAnnotations | None = None
) -> ToolDefinition[Action, Observation]:
    """Return a tool that calls the function. The function runs on the host with your rights, outside any sandbox.

    Its docstring is the tool's description, and its parameters are the tool's arguments. pydantic checks them by their
    annotations (`Annotated[int, Field(ge=0, description="...")]` adds a limit and a description); without one, any JSON
    value is accepted. The model sees a returned text or `Observation` as it is, anything else as JSON. A coroutine
    function is awaited in the call's thread.

    Args:
        function: a function or method.
        name: the tool's name for the model; None means the function's name.
        annotations: the tool's effects; None means the cautious defaults, for which a confirmation policy asks.

    Raises:
        UsageError: the function has no docstring, a parameter that cannot be passed by name, one with a type that JSON
            cannot represent, or a parameter `conv_state`, which makes it a factory of tools.
    """
    named: str = name or function.__name__
    subject = f"Function {named!r}"
    description = inspect.getdoc(function)
    if not description:
        raise UsageError(f"{subject} has no docstring, by which a model would know what it does. Write one.")
    parameters = inspect.signature(function).parameters
    if "conv_state" in parameters:
        raise UsageError(f"{subject} makes tools (it takes conv_state). Register it with register_tool, and name it.")
    if wrong := [parameter.name for parameter in parameters.values() if parameter.kind not in BY_NAME]:
        raise UsageError(f"{subject} takes {', '.join(wrong)}, which a model cannot name. Give each parameter a name.")
    attributes = {name: f"arg_{name}" if name.startswith("_") or hasattr(Action, name) else name for name in parameters}
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {
            attributes[name]: (hints.get(name, Any), _field(parameter, is_renamed=attributes[name] != name))
            for name, parameter in parameters.items()
        }
        action_type: type[Action] = create_model(named, __base__=Action, __doc__=description, **fields)
        action_type.to_mcp_schema()
    except (NameError, TypeError, PydanticUserError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(
            f"{subject} has a parameter that JSON cannot describe: {reason} Annotate it otherwise."
        ) from None

    def call(action: Action) -> Observation:
        result = function(**{name: getattr(action, attribute) for name, attribute in attributes.items()})
        return _observation(asyncio.run(result) if inspect.iscoroutine(result) else result)

    call.__module__ = function.__module__  # for the tool's origin
    return ToolDefinition(
        name=named,
        description=description,
        action_type=action_type,
        annotations=annotations,
        executor=FunctionExecutor(call),
    )


def _field(parameter: inspect.Parameter, *, is_renamed: bool) -> Any:
    """Return the field for a parameter; a default that JSON cannot represent is not in the schema."""
    default, alias = parameter.default, parameter.name if is_renamed else None
    if isinstance(default, FieldInfo):
        return default
    if default is inspect.Parameter.empty:
        return Field(alias=alias)
    if default is None or isinstance(default, str | int | float):
        return Field(default, alias=alias)
    return Field(default_factory=lambda: default, alias=alias)


def _observation(result: Any) -> Observation:
    if isinstance(result, Observation):
        return result
    if result is None:
        return TextObservation(text="Done. It returned nothing.")
    return TextObservation(text=result if isinstance(result, str) else to_json(result, fallback=str).decode())
