"""Problems of a task's files, with file and line; finds the line of a key in a TOML file."""

from __future__ import annotations

import re
import typing
from difflib import get_close_matches
from pathlib import Path  # noqa: TC003 - NamedTuple's annotation
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

_MAX_PROBLEMS_OF_A_TASK = 50
"""Most problems reported for one task: a file of another kind with the right name would fill the terminal."""
_NEAR = 0.75
"""Similarity from which an unknown key is taken for a misspelt one: `timeout` for `timeout_sec`, not `name` for
`env_name`."""
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_UNPRINTABLE = re.compile("[\0\ud800-\udfff]")
_SCALARS = {"str": "a string", "int": "an integer", "float": "a number", "bool": "true or false"}


class Section(BaseModel):
    """Base class of a part of a task's file: unknown keys and non-finite numbers are problems."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Problem(NamedTuple):
    """One thing that must be fixed before a task can run."""

    file: Path
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.message}"


class InvalidTask(Exception):  # noqa: N818 - becomes a list of problems, never an error of its own
    """The task cannot be read."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def toml_line(text: str, location: Sequence[int | str]) -> int | None:
    """Return the line of a key, given pydantic's location of it; where it has none, that of its nearest parent."""
    lines, section_counts = dict[tuple[str, ...], int](), dict[str, int]()
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            name = _unquoted(header[1])
            if line.lstrip().startswith("[["):
                section_counts[name] = section_counts.get(name, -1) + 1
                section = (*name.split("."), str(section_counts[name]))
            else:
                section = tuple(name.split("."))
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault((*section, *_unquoted(key[1]).split(".")), number)
    path = tuple(map(str, location))
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def _unquoted(key: str) -> str:
    return key.replace('"', "").replace("'", "").replace(" ", "")


def problems_of(
    error: ValidationError, schema: type[BaseModel], file: Path, line_of: Callable[[Sequence[int | str]], int | None]
) -> list[Problem]:
    """Return pydantic's findings as sentences; for an unknown key with the key that was probably meant."""
    findings: dict[tuple[Sequence[int | str], str], None] = {}
    for detail in error.errors(include_url=False, include_context=True):
        location, sentence = _sentence(detail, schema)
        findings.setdefault((location, sentence))
    problems = [Problem(file, line_of(location), sentence) for location, sentence in findings]
    if len(problems) > _MAX_PROBLEMS_OF_A_TASK:
        left_out = len(problems) - _MAX_PROBLEMS_OF_A_TASK
        problems[_MAX_PROBLEMS_OF_A_TASK:] = [Problem(file, None, f"and {left_out} more problems")]
    return problems


def _sentence(detail: Any, schema: type[BaseModel]) -> tuple[tuple[int | str, ...], str]:
    location = tuple(detail["loc"])
    if location and location[-1] in _SCALARS and location[-1] not in _fields_at(schema, location):
        location = location[:-1]  # the member of a union
        expected = " or ".join(_SCALARS[kind] for kind in _scalars_of(schema, location))
        return location, f"{_name(location)} = {_short(detail['input'])}: expected {expected}"
    if detail["type"] == "extra_forbidden":
        return location, f"unknown key {_name(location)!r}{_hint(schema, location)}"
    if detail["type"] == "missing":
        return location, f"{_name(location)!r} is missing"
    return location, _value_sentence(detail, _name(location))


def _value_sentence(detail: Any, name: str) -> str:
    expectation = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "model_type":
        expectation = "keys with values"
        name = name or "the file"
    if not name:
        return str(expectation)
    if detail["type"] == "value_error":
        return f"{name}: {expectation}"
    if expectation[:1].isupper():
        return f"{name}: {expectation[0].lower()}{expectation[1:]}"
    return f"{name} = {_short(detail['input'])}: expected {expectation}"


def _name(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location))


def _hint(schema: type[BaseModel], location: Sequence[int | str]) -> str:
    key = str(location[-1])
    if near := get_close_matches(key, sorted(_fields_at(schema, location)), n=1, cutoff=_NEAR):
        return f": did you mean {near[0]!r}?"
    places = [_name(section) or "the top of the file" for section, keys in _sections(schema, ()) if key in keys]
    if places:
        return f": it belongs in {' or '.join(places[:3])}"
    return ": what only describes belongs in [metadata]" if "metadata" in schema.model_fields else ""


def _short(value: object) -> str:
    return shorten(repr(value), 80, placeholder="...")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _sections(schema: type[BaseModel], section: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    yield section, set(schema.model_fields)
    for name, field in schema.model_fields.items():
        for model in _models_in(field.annotation):
            yield from _sections(model, (*section, name))


def _fields_at(schema: type[BaseModel], location: Sequence[int | str]) -> dict[str, FieldInfo]:
    """The fields of the model that contains the key at location."""
    model = schema
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        model = next(_models_in(field.annotation), model) if field else model
    return model.model_fields


def _scalars_of(schema: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    field = _fields_at(schema, location).get(str(location[-1])) if location else None
    members = [getattr(member, "__name__", "") for member in typing.get_args(field.annotation)] if field else []
    return [name for name in members if name in _SCALARS] or ["str"]


def unusable_texts(value: Any) -> list[tuple[str, ...]]:
    """Return the places in nested dicts and lists whose text (or key) no file, argument or variable can hold.

    That is one with a NUL character, or with half of a surrogate pair.
    """
    locations, pending = list[tuple[str, ...]](), list[tuple[tuple[str, ...], Any]]([((), value)])
    while pending:
        location, item = pending.pop()
        if isinstance(item, str) and _UNPRINTABLE.search(item):
            locations.append(location)
        elif isinstance(item, dict):
            locations += [(*location, repr(key)) for key in item if isinstance(key, str) and _UNPRINTABLE.search(key)]
            pending += [((*location, str(key)), item) for key, item in item.items()]
        elif isinstance(item, list | tuple):
            pending += [((*location, str(number)), item) for number, item in enumerate(item)]
    return sorted(locations)
