"""A boolean where a number is asked for: Python calls True a 1, and JSON does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Iterator

Place = tuple[str | int, ...]


def refuse_booleans_for_numbers(given: Any, made: BaseModel) -> None:
    """Compare what was given with what pydantic made of it.

    Raises:
        ValidationError: a boolean became a number, in whatever depth; says where.
    """
    faults = [
        InitErrorDetails(type=PydanticCustomError("number_needed", "A number is needed"), loc=place, input=value)
        for place, value in _found(given, made, ())
    ]
    if faults:
        raise ValidationError.from_exception_data(type(made).__name__, faults)


def _found(given: Any, made: Any, place: Place) -> Iterator[tuple[Place, bool]]:
    if isinstance(given, bool):
        if isinstance(made, int | float) and not isinstance(made, bool):
            yield place, given
    elif isinstance(given, dict):
        for name, part in _parts(made):
            if name in given:
                yield from _found(given[name], part, (*place, name))
    elif isinstance(given, list | tuple) and isinstance(made, list | tuple) and len(given) == len(made):
        for number, (value, part) in enumerate(zip(given, made, strict=True)):
            yield from _found(value, part, (*place, number))


def _parts(made: Any) -> Iterator[tuple[str, Any]]:
    """What was made, by the names it was given by."""
    if isinstance(made, BaseModel):
        for name, field in type(made).model_fields.items():
            yield field.alias or name, getattr(made, name)
    elif isinstance(made, dict):
        yield from made.items()
