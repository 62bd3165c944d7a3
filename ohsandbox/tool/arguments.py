"""Converts a model's arguments to an action, or to an error with the remedy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from pydantic import ValidationError

from ohsandbox.errors import ToolArgumentsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import ErrorDetails

    from ohsandbox.schema import Action

SecurityRisk = Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"]
"""UNKNOWN is recorded if the model gives none; it is accepted from the model, but not offered."""

OFFERED_RISKS: tuple[SecurityRisk, ...] = ("LOW", "MEDIUM", "HIGH")

SECURITY_RISK = "security_risk"

SECURITY_RISK_SCHEMA: dict[str, Any] = {
    "type": "string",
    "enum": list(OFFERED_RISKS),
    "description": "How much harm this call could do. LOW: reads, or changes only files of the task. MEDIUM: changes "
    "the sandbox beyond the task (installs, services). HIGH: deletes what cannot be had back, or sends data out.",
}

MAX_QUOTED_CHARS = 200
"""The part of a wrong value quoted back: enough to recognise, short in the context."""

MAX_DEPTH = 100
"""Nesting depth of lists and objects; pydantic and the log support no more than some 200."""

MAX_FAULTS = 5
"""Limit of reported faults: the rest often follow from them."""

MAX_NAMED = 50
"""Limit of allowed arguments named in a message."""

_NEEDED = {
    "missing": "An item is missing",
    "list_type": "A list is needed",
    "tuple_type": "A list is needed",
    "set_type": "A list is needed",
    "dict_type": "An object is needed",
    "model_type": "An object is needed",
}
"""pydantic names Python's types; a model writes JSON."""

ActionT = TypeVar("ActionT", bound="Action")


def parse_action(
    tool: str, action_type: type[ActionT], arguments: Mapping[str, Any], *, also_allowed: tuple[str, ...] = ()
) -> ActionT:
    """Make the action from a tool's arguments; an error lists also_allowed with the action's fields.

    Numbers and booleans may come as strings ("5", "true"), lists and objects as JSON text: models send both.

    Raises:
        ToolArgumentsError: an argument is missing, unknown or wrong; names it, the given value and the allowed ones.
    """
    _refuse_what_cannot_be_kept(tool, arguments)
    try:
        return action_type.model_validate(dict(arguments))
    except ValidationError as error:
        decoded = _decoded_json(arguments, error)
        if decoded is None:
            raise ToolArgumentsError(_explain(tool, [*_names(action_type), *also_allowed], error)) from None
    _refuse_what_cannot_be_kept(tool, decoded)
    try:
        return action_type.model_validate(decoded)
    except ValidationError as error:
        raise ToolArgumentsError(_explain(tool, [*_names(action_type), *also_allowed], error)) from None


def take_security_risk(tool: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], SecurityRisk | None]:
    """Split off `security_risk`: the other arguments, and the risk; lower case is accepted, absent and null are None.

    Raises:
        ToolArgumentsError: it is none of LOW, MEDIUM, HIGH, UNKNOWN.
    """
    rest = dict(arguments)
    given = rest.pop(SECURITY_RISK, None)
    if given is None:
        return rest, None
    risk = given.strip().upper() if isinstance(given, str) else given
    if risk not in get_args(SecurityRisk):
        raise ToolArgumentsError(
            f"Invalid value for argument 'security_risk' in tool call {tool}: {_quoted(given)}. "
            f"Allowed are: {', '.join(OFFERED_RISKS)}."
        )
    return rest, cast("SecurityRisk", risk)


def _refuse_what_cannot_be_kept(tool: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        fault = _fault_in([name, value])
        if fault:
            raise ToolArgumentsError(f"Invalid value for argument {_quoted(name)} in tool call {tool}: {fault}")


def _fault_in(values: list[Any]) -> str:
    """Searches level by level, so that nesting past the interpreter's recursion limit is found, too."""
    for _ in range(MAX_DEPTH):
        if not all(_is_encodable(text) for text in values if isinstance(text, str)):
            return "it holds a lone surrogate, which is no character. Send the text without it."
        values = [part for value in values for part in _parts(value)]
        if not values:
            return ""
    return f"it nests more than {MAX_DEPTH} lists and objects. Send it in another form, as a text or a file."


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    return value if isinstance(value, list) else ()


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decoded_json(arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any] | None:
    """Decode each top-level JSON text that should have been a list or an object."""
    decoded = dict(arguments)
    for fault in error.errors(include_url=False):
        name = fault["loc"][0] if fault["loc"] else None
        if fault["type"] in _NEEDED and isinstance(decoded.get(str(name)), str):
            try:
                decoded[str(name)] = json.loads(decoded[str(name)])
            except (ValueError, RecursionError):
                return None
    return decoded if decoded != dict(arguments) else None


def _explain(tool: str, allowed: list[str], error: ValidationError) -> str:
    faults = " ".join(_explain_one(tool, fault) for fault in error.errors(include_url=False)[:MAX_FAULTS])
    more = f", and {len(allowed) - MAX_NAMED} more" if len(allowed) > MAX_NAMED else ""
    return f"{faults} Allowed arguments are: {', '.join(allowed[:MAX_NAMED]) or 'none'}{more}."


def _names(action_type: type[Action]) -> list[str]:
    return [field.alias or name for name, field in action_type.model_fields.items()]


def _explain_one(tool: str, fault: ErrorDetails) -> str:
    name = ".".join(str(part) for part in fault["loc"])[:MAX_QUOTED_CHARS]
    if fault["type"] == "missing" and isinstance(fault["loc"][-1], str):
        return f'Missing required argument "{name}" in tool call {tool}.'
    if fault["type"] == "extra_forbidden":
        return f"Unexpected argument {name!r} in tool call {tool}."
    where = f"argument {name!r}" if name else "the arguments"
    given = f": {_quoted(fault['input'])}" if name else ""
    return f"Invalid value for {where} in tool call {tool}{given}. {_needed(fault)}."


def _needed(fault: ErrorDetails) -> str:
    if fault["type"] in {"too_short", "too_long"}:
        bounds = fault["ctx"]
        least, most = bounds.get("min_length"), bounds.get("max_length")
        bound = f"At least {least}" if fault["type"] == "too_short" else f"At most {most}"
        return f"{bound} items are needed, not {bounds['actual_length']}"
    return _NEEDED.get(fault["type"], fault["msg"].removeprefix("Value error, ").removesuffix("."))


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}... ({len(text)} characters)"
