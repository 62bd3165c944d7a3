"""The first fault that pydantic finds in a model's values, as one line: the key, the value, and what to give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox.errors import UsageError
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

_MAX_WORD_CHARS = 15
"""The longest wrong word that a message quotes where one of a few words is expected. A real key is longer."""
_BRANCHES = {"str", "int", "float", "bool"}
"""What pydantic adds to a key whose value may have one of several types."""
_SIZES = ("memory", "disk", "_bytes")
"""Ends of keys whose values are numbers of bytes."""
_EXPECTED = {
    "a valid string": "a string",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "names with values",
}
"""What a value should be, as people who write JSON, TOML or Python call it, by pydantic's words."""


def fault_of(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the first fault in a model's values in one line."""
    faults = error.errors(include_url=False)
    fault = next((item for item in faults if item["type"] == "extra_forbidden"), faults[0])  # it explains a missing one
    key = ".".join(str(part) for part in fault["loc"] if part not in _BRANCHES)
    inner = (fault.get("ctx") or {}).get("error")
    if isinstance(inner, UsageError) and "(...): " in str(inner):  # of a ConfigModel in this one
        return str(inner).partition("(...): ")[2].replace("key '", f"key '{key}.", 1)
    if fault["type"] == "extra_forbidden":
        known_keys = list(model.model_fields)
        return f"unknown key {key!r}. Known keys: {', '.join(known_keys)}.{did_you_mean(key, known_keys)}"
    if fault["type"] == "missing":
        return f"key {key!r} is missing. Give it."
    text = fault_text(fault)
    if not key:
        return text
    start, shown_value = f"key {key!r} is wrong", _shown(fault, model)
    return f"{start}: {shown_value}{text}" if shown_value or not text.startswith("Give ") else f"{start}. {text}"


def fault_text(fault: ErrorDetails) -> str:
    """Say in a sentence what to give in place of a wrong value: `Give a number above 0.`, not pydantic's words."""
    context = fault.get("ctx") or {}
    if isinstance(error := context.get("error"), UsageError):
        return str(error)
    message = fault["msg"].removeprefix("Value error, ").rstrip(".")
    if not message.startswith("Input should be "):
        return f"{message}. Correct it."
    expected = message.removeprefix("Input should be ").partition(", unable to ")[0].partition(" or instance of ")[0]
    prefix = "a number " if expected.startswith(("greater ", "less ")) else ""
    is_size = bool(fault["loc"]) and str(fault["loc"][-1]).endswith(_SIZES)
    least = context.get("ge", 0) if is_size else 0
    size = f" ({least >> 20}m)" if least else ""
    return f"Give {prefix}{_EXPECTED.get(expected, expected)}{size}."


def _shown(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """The wrong value as a message shows it, where it cannot be a key or password: a number, or a short word."""
    value, location = fault["input"], fault["loc"]
    is_word = fault["type"] == "literal_error" and isinstance(value, str) and len(value) <= _MAX_WORD_CHARS
    is_plain = value is None or is_word or isinstance(value, int | float)
    if not is_plain or len(location) > 1 or "Secret" in str(model.model_fields[str(location[0])].annotation):
        return ""
    return f"{value!r}. "
