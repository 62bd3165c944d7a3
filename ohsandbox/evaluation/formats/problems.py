"""What is wrong with a task's files, with file and line; and the line at which a key of a TOML file stands."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path  # noqa: TC003 - NamedTuple's annotation
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel, ValidationError

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")


class Problem(NamedTuple):
    """One thing that must be mended before a task can run."""

    file: Path
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.message}"


class InvalidTask(Exception):  # noqa: N818 - becomes a list of problems, never an error of its own
    """A task that cannot be read."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def toml_line(text: str, location: Sequence[int | str]) -> int | None:
    """Return the line of a key, by pydantic's location of it; of its nearest parent where it has none itself."""
    lines, seen = dict[tuple[str, ...], int](), dict[str, int]()
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            name = _unquoted(header[1])
            if line.lstrip().startswith("[["):
                seen[name] = seen.get(name, -1) + 1
                section = (*name.split("."), str(seen[name]))
            else:
                section = tuple(name.split("."))
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault((*section, *_unquoted(key[1]).split(".")), number)
    path = tuple(map(str, location))
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _unquoted(key: str) -> str:
    return key.replace('"', "").replace("'", "").replace(" ", "")


def explain(error: ValidationError, schema: type[BaseModel]) -> list[tuple[Sequence[int | str], str]]:
    """Return pydantic's findings as (location, sentence); an unknown key with the one that it may have meant."""
    return [(one["loc"], _sentence(one, schema)) for one in error.errors(include_url=False, include_context=True)]


def _sentence(found: Any, schema: type[BaseModel]) -> str:
    name = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        near = get_close_matches(str(found["loc"][-1]), sorted(_keys(schema)), n=1)
        return f"unknown key {name!r}{f': did you mean {near[0]!r}?' if near else ''}"
    if found["type"] == "missing":
        return f"{name!r} is missing"
    said = found["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{name} = {_short(found['input'])}: expected {said}" if not said[:1].isupper() else f"{name}: {said}"


def _short(value: object) -> str:
    return shorten(repr(value), 80, placeholder="...")


def _keys(schema: type[BaseModel]) -> set[str]:
    return {key for one in (schema, *schema.__subclasses__()) for key in one.model_fields}
