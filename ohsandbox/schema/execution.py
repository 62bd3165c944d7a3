"""A tool's call: its arguments become an action (`parse_action`), and an executor makes an observation of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from ohsandbox.errors import ToolArgumentsError
from ohsandbox.schema.models import Action, Observation
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import ErrorDetails

ActionT = TypeVar("ActionT", bound=Action)
ObservationT = TypeVar("ObservationT", bound=Observation)

MAX_QUOTED_CHARS = 200
"""The part of a wrong value quoted back: enough to recognise, short in the context."""

MAX_DEPTH = 100
"""Nesting depth of lists and objects; pydantic and the log support no more than some 200."""

MAX_FAULTS = 5
"""Limit of reported faults: the rest often follow from them."""

LAST_OUTPUT_BYTES = 16 * 1024
"""Limit of `last_output`: some 200 lines, several screens of a command that a user watches."""

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
"""The JSON names of types: pydantic's messages name Python's types, but a model writes JSON."""


class ToolExecutor(ABC, Generic[ActionT, ObservationT]):
    """Turns an action into an observation."""

    @abstractmethod
    def __call__(self, action: ActionT) -> ObservationT:
        """Run the action.

        Raises:
            ToolError: it failed; the model gets the message and the run continues.
            SandboxUnavailable: the sandbox is gone; the run ends.
        """

    def close(self) -> None:
        """Release the executor's resources. Safe to call twice."""

    def interrupt(self) -> None:
        """End the running call soon; called from another thread when the user stops the run. Default: does nothing."""

    def last_output(self) -> bytes:
        """The end of the running call's output, not masked; called from another thread. Default: empty.

        At most LAST_OUTPUT_BYTES; if it has that length, it may begin in the middle of a character or sequence.
        """
        return b""


class FunctionExecutor(ToolExecutor[ActionT, ObservationT]):
    """Runs a function, for a tool that keeps no state between its calls and needs no interrupt."""

    def __init__(self, function: Callable[[ActionT], ObservationT]) -> None:
        self.function = function

    def __call__(self, action: ActionT) -> ObservationT:
        """Call the function."""
        return self.function(action)


def parse_action(
    tool: str, action_type: type[ActionT], arguments: Mapping[str, Any], *, also_allowed: tuple[str, ...] = ()
) -> ActionT:
    """Make the action from a tool's arguments; an error lists also_allowed with the action's fields.

    Numbers and booleans may come as strings ("5", "true"), lists and objects as JSON text: models send both.

    Raises:
        ToolArgumentsError: an argument is missing, unknown or wrong; names it, the given value and the allowed ones.
    """
    values = dict(arguments)
    for is_decoded in (False, True):
        for name, value in values.items():
            if fault := _fault_in([name, value]):
                raise ToolArgumentsError(f"Invalid value for argument {quoted(name)} in tool call {tool}: {fault}")
        try:
            return action_type.model_validate(values)
        except ValidationError as error:
            failure = error
        if is_decoded or not _decode_json(values, failure):
            break
    faults = " ".join(_explained(tool, fault) for fault in failure.errors(include_url=False)[:MAX_FAULTS])
    allowed = [*(field.alias or name for name, field in action_type.model_fields.items()), *also_allowed]
    more = f", and {len(allowed) - MAX_NAMED} more" if len(allowed) > MAX_NAMED else ""
    raise ToolArgumentsError(f"{faults} Allowed arguments are: {', '.join(allowed[:MAX_NAMED]) or 'none'}{more}.")


def quoted(value: Any) -> str:
    """A value for a message, cut to MAX_QUOTED_CHARS."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}... ({len(text)} characters)"


def _fault_in(values: list[Any]) -> str:
    """Return why the values cannot be accepted, or "". Iterative: finds nesting past Python's recursion limit."""
    for _ in range(MAX_DEPTH):
        try:
            for text in values:
                if isinstance(text, str):
                    text.encode()
        except UnicodeEncodeError:
            return "it holds a lone surrogate, which is not a character. Send the text without it."
        values = [part for value in values for part in _parts(value)]
        if not values:
            return ""
    return f"it nests more than {MAX_DEPTH} lists and objects. Send it in another form, as a text or a file."


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _decode_json(arguments: dict[str, Any], error: ValidationError) -> bool:
    """Decode each JSON text that should have been a list or an object; False if none can be."""
    texts = {
        str(fault["loc"][0])
        for fault in error.errors(include_url=False)
        if fault["loc"] and fault["type"] in _NEEDED and isinstance(arguments.get(str(fault["loc"][0])), str)
    }
    try:
        arguments |= {name: load_json(arguments[name]) for name in texts}
    except ValueError:
        return False
    return bool(texts)


def _explained(tool: str, fault: ErrorDetails) -> str:
    name = ".".join(str(part) for part in fault["loc"])[:MAX_QUOTED_CHARS]
    if fault["type"] == "missing" and isinstance(fault["loc"][-1], str):
        return f'Missing required argument "{name}" in tool call {tool}.'
    if fault["type"] == "extra_forbidden":
        return f"Unexpected argument {name!r} in tool call {tool}."
    subject, value_text = (f"argument {name!r}", f": {quoted(fault['input'])}") if name else ("the arguments", "")
    if fault["type"] in {"too_short", "too_long"}:
        bounds = fault["ctx"]
        bound = f"At most {bounds['max_length']}" if "max_length" in bounds else f"At least {bounds['min_length']}"
        needed = f"{bound} items are needed, not {bounds['actual_length']}"
    else:
        needed = _NEEDED.get(fault["type"], fault["msg"].removeprefix("Value error, ").removesuffix("."))
    return f"Invalid value for {subject} in tool call {tool}{value_text}. {needed}."
