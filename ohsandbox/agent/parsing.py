"""Parses the arguments in a model's tool call, if they are unambiguous."""

from __future__ import annotations

import json
import re
from typing import Any

from ohsandbox.errors import ToolArgumentsError
from ohsandbox.strict_json import finite, refuse_constant

MAX_ARGUMENTS_CHARS = 2 * 1024 * 1024
"""Room for a file of 1 MiB with all characters escaped; later requests would repeat more."""

MAX_QUOTED_CHARS = 500
"""Number of characters of malformed arguments that are quoted to the model."""

_FENCE = "```"

_DEBRIS = re.compile(r"(?:[\s}\]`;]|</?[\w|]+>)*")
"""Text that may follow a complete object: superfluous brackets, a fence, a template token."""


def parse_arguments(raw: str) -> dict[str, Any]:
    """Return the arguments in a model's tool call, if they are unambiguous.

    These are accepted: raw control characters in strings; an object in a JSON string, in chunks or in a Markdown fence;
    the same object twice; brackets and template tokens after it.

    Raises:
        ToolArgumentsError: it has no JSON object or two different ones, a number is not finite, or it is too long.
    """
    if len(raw) > MAX_ARGUMENTS_CHARS:
        raise ToolArgumentsError(
            f"Failed to parse tool call arguments: they are {len(raw)} characters long, at most {MAX_ARGUMENTS_CHARS} "
            "are taken. Nothing ran. Send less at once: write a large file in parts."
        )
    try:
        arguments = _unwrapped(_loads(raw))
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ToolArgumentsError(_malformed(why, raw)) from None
    if not isinstance(arguments, dict):
        raise ToolArgumentsError(_malformed(f"a JSON object is needed, not {type(arguments).__name__}", raw))
    return arguments


def _loads(text: str) -> Any:
    """Return the JSON value in a text, ignoring what models add around it.

    Raises:
        ValueError: there is none, or more than one.
    """
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.partition("\n")[2].removesuffix(_FENCE).strip()
    value, end = _DECODER.raw_decode(text)
    rest = text[end:]
    if not rest.strip() or (isinstance(value, dict) and _DEBRIS.fullmatch(rest)):
        return value
    try:
        again = _DECODER.decode(rest.strip())
    except ValueError:
        again = None
    if isinstance(value, dict) and isinstance(again, dict) and (not value or value == again):
        return again  # some servers send "{}" first, or the whole twice
    raise json.JSONDecodeError("more follows after the end of the object", text, end)


def _unwrapped(value: Any) -> Any:
    """Return the object in a JSON string, or in a list of chunks of one; other values as they are."""
    if isinstance(value, list) and value and all(isinstance(chunk, str) for chunk in value):
        value = "".join(value)
    if isinstance(value, str) and value.lstrip().startswith(("{", '"{')):
        return _unwrapped(_loads(value))
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            raise ValueError(f"the key {key!r} stands in it twice, with different values")
        values[key] = value
    return values


_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=_unique)


def _malformed(reason: str, raw: str) -> str:
    return (
        f"Failed to parse tool call arguments: {reason}. Nothing ran. You sent: {raw[:MAX_QUOTED_CHARS]!r}"
        f"{'...' if len(raw) > MAX_QUOTED_CHARS else ''}. Send the call again with one valid JSON object."
    )
