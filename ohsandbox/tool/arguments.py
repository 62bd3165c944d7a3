"""A model's arguments become an action, or an error that tells it what to mend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from pydantic import ValidationError

from ohsandbox.errors import ToolArgumentsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from ohsandbox.schema import Action

SecurityRisk = Literal["LOW", "MEDIUM", "HIGH"]

SECURITY_RISK = "security_risk"

SECURITY_RISK_SCHEMA: dict[str, Any] = {
    "type": "string",
    "enum": list(get_args(SecurityRisk)),
    "description": "How much harm this call could do. LOW: reads, or changes only files of the task. MEDIUM: changes "
    "the sandbox beyond the task (installs, services). HIGH: deletes what cannot be had back, or sends data out.",
}

MAX_QUOTED_CHARS = 200
"""Of a wrong value this much is quoted back: enough to recognise, short in the context."""

_JSON_TYPES = frozenset({"list_type", "tuple_type", "dict_type", "model_type", "set_type"})

ActionT = TypeVar("ActionT", bound="Action")


def parse_action(tool: str, action_type: type[ActionT], arguments: Mapping[str, Any]) -> ActionT:
    """The action for a tool's arguments.

    Numbers and booleans may come as strings ("5", "true"), lists and objects as JSON text: models send both.

    Raises:
        ToolArgumentsError: an argument is missing, unknown or wrong; names it, what was given and what is allowed.
    """
    _refuse_lone_surrogates(tool, arguments)
    try:
        return action_type.model_validate(dict(arguments))
    except ValidationError as error:
        decoded = _decoded_json(arguments, error)
        if decoded is None:
            raise ToolArgumentsError(_explain(tool, action_type, error)) from None
    try:
        return action_type.model_validate(decoded)
    except ValidationError as error:
        raise ToolArgumentsError(_explain(tool, action_type, error)) from None


def take_security_risk(tool: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], SecurityRisk | None]:
    """The arguments without `security_risk`, and the risk; lower case counts, absent and null are None.

    Raises:
        ToolArgumentsError: it is none of LOW, MEDIUM, HIGH.
    """
    rest = dict(arguments)
    given = rest.pop(SECURITY_RISK, None)
    if given is None:
        return rest, None
    risk = given.strip().upper() if isinstance(given, str) else given
    if risk not in get_args(SecurityRisk):
        raise ToolArgumentsError(
            f"Invalid value for argument 'security_risk' in tool call {tool}: {_quoted(given)}. "
            "Allowed are: LOW, MEDIUM, HIGH."
        )
    return rest, cast("SecurityRisk", risk)


def _refuse_lone_surrogates(tool: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if isinstance(value, str) and not _is_encodable(value):
            raise ToolArgumentsError(
                f"Invalid value for argument {name!r} in tool call {tool}: it holds a lone surrogate, "
                "which is no character. Send the text without it."
            )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decoded_json(arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any] | None:
    """The arguments with each top-level JSON text decoded that should have been a list or an object."""
    decoded = dict(arguments)
    for fault in error.errors(include_url=False):
        name = fault["loc"][0] if fault["loc"] else None
        if fault["type"] in _JSON_TYPES and isinstance(decoded.get(str(name)), str):
            try:
                decoded[str(name)] = json.loads(decoded[str(name)])
            except (ValueError, RecursionError):
                return None
    return decoded if decoded != dict(arguments) else None


def _explain(tool: str, action_type: type[Action], error: ValidationError) -> str:
    faults = error.errors(include_url=False)
    allowed = ", ".join(action_type.model_fields) or "none"
    return " ".join(_explain_one(tool, fault) for fault in faults[:5]) + f" Allowed arguments are: {allowed}."


def _explain_one(tool: str, fault: ErrorDetails) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f'Missing required argument "{name}" in tool call {tool}.'
    if fault["type"] == "extra_forbidden":
        return f"Unexpected argument {name!r} in tool call {tool}."
    where = f"argument {name!r}" if name else "the arguments"
    given = f": {_quoted(fault['input'])}" if name else ""
    return f"Invalid value for {where} in tool call {tool}{given}. {fault['msg']}."


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}... ({len(text)} characters)"
