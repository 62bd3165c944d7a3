"""YAML, read strictly: no key twice, no tags of Python, bounded depth and size, and the line of every key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 64
"""Deepest nesting that is parsed: libyaml's parser crashes the whole process at some thousand levels."""
MAX_NODES = 5_000_000
"""Most nodes after aliases are expanded: a list of 10,000 tasks has 500,000; a "billion laughs" file of one kilobyte
10^9.
"""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING, _CLOSING = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class _YamlFault(NamedTuple):
    """One fault of a YAML text."""

    line: int | None
    message: str


class InvalidYaml(ValueError):  # noqa: N818 - a ValueError, as that of strict_json
    """The text is not a single YAML document, or is a hostile one."""

    def __init__(self, faults: Sequence[_YamlFault]) -> None:
        super().__init__(
            "; ".join(f"line {fault.line}: {fault.message}" if fault.line else fault.message for fault in faults)
        )
        self.faults = tuple(faults)


class YamlFile(NamedTuple):
    """The one document of a file."""

    value: Any
    node: Any

    def at(self, number: int) -> YamlFile:
        """Return an item of the document, which is a list."""
        return YamlFile(self.value[number], self.node.value[number])

    def line(self, location: Sequence[int | str]) -> int:
        """Return the line of a key or item; of its nearest parent where it has none itself."""
        node, line = self.node, 1 if self.node is None else int(self.node.start_mark.line) + 1
        for part in location:
            child = _child(node, part)
            if child is None:
                break
            mark, node = child
            line = int(mark.line) + 1
        return line


def parse_yaml(text: str) -> YamlFile:
    """Parse a text.

    Raises:
        InvalidYaml: it is not one YAML document, or a hostile one.
    """
    text = text.removeprefix("\ufeff")
    try:
        _bound_depth(text)
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            _check(node)
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except InvalidYaml:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not YAML: {error.problem or error.context}"
        raise InvalidYaml([_YamlFault(mark.line + 1 if mark else None, message)]) from None
    except (yaml.YAMLError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1 if hasattr(error, "position") else None
        raise InvalidYaml([_YamlFault(line, f"not YAML: {str(error).splitlines()[0]}")]) from None
    return YamlFile(value, node)


def _bound_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > MAX_DEPTH:
            message = f"is nested more than {MAX_DEPTH} levels deep"
            raise InvalidYaml([_YamlFault(event.start_mark.line + 1, message)])


def _check(node: Any) -> None:
    sizes, problems = dict[int, int](), list[_YamlFault]()

    def size(node: Any) -> int:
        if (known_size := sizes.get(id(node))) is not None:
            if not known_size:
                raise InvalidYaml([_YamlFault(node.start_mark.line + 1, "refers to itself by an alias")])
            return known_size
        sizes[id(node)] = 0
        total = 1
        if isinstance(node, yaml.SequenceNode):
            total += sum(map(size, node.value))
        elif isinstance(node, yaml.MappingNode):
            problems.extend(_repeated(node))
            total += sum(size(key) + size(value) for key, value in node.value)
        sizes[id(node)] = total
        return total

    if node is not None and size(node) > MAX_NODES:
        problems.append(_YamlFault(1, f"has more than {MAX_NODES:,} values once its aliases are put in"))
    if problems:
        raise InvalidYaml(problems)


def _repeated(node: Any) -> list[_YamlFault]:
    faults, first_lines = list[_YamlFault](), dict[tuple[str, str], int]()
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        line, name = key.start_mark.line + 1, (key.tag, key.value)
        if name in first_lines:
            faults.append(_YamlFault(line, f"key {key.value!r} is there twice, first in line {first_lines[name]}"))
        first_lines.setdefault(name, line)
    return faults


def _child(node: Any, part: int | str) -> tuple[Any, Any] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark, value
    return None


def mapping_or_empty(value: object) -> dict[str, Any]:
    """Return a copy of a mapping; {} for any other value."""
    return dict(value) if isinstance(value, dict) else {}


def amount(value: object) -> float | None:
    """Return a finite, non-negative number, which may be written as text; None for any other value."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
