"""Wrong arguments, refused on entry: one line with name, value and what is expected.

A value that may be secret is never quoted: of what is neither a number nor chosen from a few words, the type is told.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")

MAX_SHOWN_CHARS = 60
"""How much of a wrong value a message shows: enough to recognise it."""


def wrong(name: str, value: object, remedy: str = "", *, why: str = "") -> UsageError:
    """Return the error for an argument: its name, its value, why it is wrong, and what to give (a sentence)."""
    shown = repr(value)
    shown = shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[: MAX_SHOWN_CHARS - 1]}…"
    fact = f"Invalid {name} {shown}: {why}" if why else f"Invalid {name} {shown}"
    return UsageError(fact if fact.endswith((".", "?")) else f"{fact}.", remedy=remedy)


def wrong_type(name: str, value: object, expected: str, remedy: str = "", *, secret: bool = False) -> UsageError:
    """Return the error for an argument of another type; a value that may hold a key is not quoted."""
    is_plain = value is None or isinstance(value, str | bytes | int | float)
    shown_value = f"{value!r:.200}" if is_plain and not secret else "..."
    return UsageError(
        f"{name}={shown_value} is of type {type(value).__name__}; expected is {expected}. {remedy}".rstrip()
    )


def expect(
    name: str,
    value: object,
    kind: type | tuple[type, ...],
    remedy: str = "",
    *,
    optional: bool = True,
    secret: bool = False,
) -> None:
    """Refuse an argument of another type; None passes where it is optional.

    Raises:
        UsageError: with the argument's name, value, and what is expected.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise wrong_type(name, value, " or ".join(kind.__name__ for kind in kinds), remedy, secret=secret)


def expect_method(name: str, value: object, method: str, expected: str, remedy: str = "") -> None:
    """Refuse an argument that is neither None nor an object with that method; a class is refused, too.

    Raises:
        UsageError: as `expect`.
    """
    if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        raise wrong_type(name, value, expected, remedy)


def expect_texts(name: str, value: object) -> None:
    """Refuse an argument that is neither None nor a sequence of strings; a single string is refused, too.

    Raises:
        UsageError: as `expect`.
    """
    if value is None:
        return
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong_type(name, value, "a list of str")
    for number, text in enumerate(value):
        expect(f"{name}[{number}]", text, str, optional=False)


def expect_path(name: str, value: object) -> None:
    """Refuse an argument that is neither None, nor a string, nor a path object of a string.

    Raises:
        UsageError: as `expect`.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if text is not None and not isinstance(text, str):
        raise wrong(name, value, "Give a string, or a path object of strings.")


def expect_texts_by_name(name: str, value: object) -> None:
    """Refuse an argument that is neither None nor a mapping of strings to strings.

    Raises:
        UsageError: as `expect`.
    """
    if value is not None and not isinstance(value, Mapping):
        raise wrong_type(name, value, "a dict of names and values, such as {'job': '7'}")
    for key, text in (value or {}).items():
        expect(f"a name in {name}", key, str, optional=False)
        expect(f"{name}[{key!r}]", text, str, optional=False)


def check_wait(**values: float | None) -> None:
    """Raise UsageError for the first value that is neither None nor a number of 0 or more."""
    for name, value in values.items():
        if value is not None and not (is_number(value) and 0 <= value < float("inf")):
            raise wrong(name, value, "Give a number of seconds, 0 or more, or None to wait for as long as it takes.")


def is_number(value: object) -> bool:
    """Whether the value is a number; True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def unknown_argument(called: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an unknown keyword argument, in Python's words, with the name that was probably meant."""
    return TypeError(f"{called}() got an unexpected keyword argument {name!r}.{did_you_mean(name, known)}")


def suggests_names(function: Callable[P, R]) -> Callable[P, R]:
    """Make the error for a misspelt keyword argument suggest the right name, as Python does from 3.13 on.

    For constructors, and for functions that are called now and then: a call takes 0.3 microseconds longer.
    """
    parameters = frozenset(inspect.signature(function).parameters) - {"self"}
    called = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= parameters:
            raise unknown_argument(called, next(name for name in kwargs if name not in parameters), parameters)
        return function(*args, **kwargs)

    return call


class ConfigModel(BaseModel):
    """Base class of configuration models: frozen; unknown keys are refused, and a wrong value is a `UsageError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    by_position: ClassVar[tuple[str, ...]] = ()
    """The fields that may be passed by position."""

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, *given: Any, **values: Any) -> None:
            """Check the values.

            Raises:
                UsageError: a key is unknown or missing, or its value is wrong.
            """
            call_text, names = f"{type(self).__name__}(...)", self.by_position
            if len(given) > len(names):
                if names:
                    raise TypeError(f"{call_text} takes {' and '.join(names)} by position, not {len(given)} values.")
                example = next(iter(type(self).model_fields))
                raise TypeError(f"{call_text} takes its values by name: give {example}=... and so on.")
            try:
                super().__init__(**dict(zip(names, given, strict=False)), **values)
            except ValidationError as error:
                from ohsandbox.validation_errors import fault_of  # noqa: PLC0415 - only a wrong value needs it

                raise UsageError(f"{call_text}: {fault_of(error, type(self))}") from None

        __init__.__signature__ = inspect.signature(lambda self, **values: None)  # noqa: ARG005 - what `help` shows
