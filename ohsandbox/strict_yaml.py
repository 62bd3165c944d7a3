"""YAML, read strictly: no key twice, no tag but YAML's own scalars', bounded depth and size, and the line of every key.

Numbers and booleans are those of YAML 1.2's core schema, as Compose reads them: `1:30`, `2026-11-28`, `yes` and `off`
are texts. Base 60 of YAML 1.1 takes time quadratic in the text. A text that Compose takes for a number or a time all
the same, such as `08` and `2026-11-28`, is a ComposeText.
"""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from ohsandbox.strict_json import MAX_DEPTH, bounded_integer, finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_ALIASED_NODES, MAX_ALIASED_RATIO = 100_000, 10
"""Most nodes that aliases add: so many, and so many times those that are written. A list of 10,000 tasks that share
20 keys has 200,000 and 100,000; a "billion laughs" file of one kilobyte 10^9 and 100.
"""
_MAX_FAULTS = 20
_MAX_TAG_DIRECTIVES = 100
"""libyaml compares each with all before it."""
_TAG_DIRECTIVE = re.compile("^%TAG", re.MULTILINE)
_OPENING, _CLOSING = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({f"{_TAG}str", f"{_TAG}merge"})
_INTEGER = re.compile(r"\A[-+]?(?:0[xX][0-9a-fA-F_]++|0[oO]?[0-7_]++|0[bB][01_]++|0|[1-9][0-9_]*+)\Z")
_FLOAT = re.compile(
    r"\A[-+]?(?:(?:\.[0-9]++|[0-9]++\.[0-9]*+)(?:[eE][-+]?[0-9]++)?|[0-9]++[eE][-+]?[0-9]++"
    r"|\.(?:inf|Inf|INF|nan|NaN|NAN))\Z"
)
_BOOLEAN = re.compile(r"\A(?:true|True|TRUE|false|False|FALSE)\Z")
_COMPOSE_NUMBER = re.compile(r"\A[-+]?(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?|\.[0-9][0-9_]*+)(?:[eE][-+]?[0-9_]++)?\Z")
"""Decimal numbers that go-yaml v3 reads: it drops each `_`, and takes `08` for 8.0."""
_COMPOSE_TIME = re.compile(
    r"\A([0-9]{4}-[0-9]{1,2}-[0-9]{1,2})"
    r"(?:([Tt ])([0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})(?:\.([0-9]{1,9}))?(Z|[-+][0-9]{2}:[0-9]{2})?)?\Z"
)
"""Times that go-yaml v3 reads; with a `T` they have a zone, with a blank none."""
YES, NO = (True, "yes", "on", "y"), (False, "no", "off", "n")
"""What Compose takes for a boolean where it needs one."""
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedLoader(_Base):  # type: ignore[misc]  # Any: which class it is depends on libyaml
    """The safe loader with other numbers, and without the tags of times, binary data, sets and pairs."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own form
    yaml_constructors: dict[str | None, Any] = {}  # noqa: RUF012 - PyYAML's own form

    def number(self, node: Any) -> int | float:
        """Construct an integer or a float."""
        text = str(self.construct_scalar(node))
        try:
            if node.tag == f"{_TAG}int" and _INTEGER.match(text):
                return _integer(text.replace("_", ""))
            if _FLOAT.match(text) and text[-1].isdigit() | text.endswith("."):
                return finite(text)
            message = f"{text[:40]!r} is not a finite number"
        except ValueError as error:
            message = str(error)
        raise InvalidYaml([_YamlFault(node.start_mark.line + 1, f"{message}: quote it if it is text")])

    def number_of_compose(self, node: Any) -> str:
        """Construct a text that Compose reads as a decimal number."""
        text = str(self.construct_scalar(node))
        with contextlib.suppress(ValueError):
            return ComposeText.of(text, text_of(finite(text.replace("_", ""))))
        return text

    def time_of_compose(self, node: Any) -> str:
        """Construct a text that Compose reads as a time."""
        text = str(self.construct_scalar(node))
        found = _COMPOSE_TIME.match(text)
        assert found is not None  # noqa: S101 - it is the resolver's
        day, sign, clock, fraction, zone = found.groups()
        if (zone is None) == (sign in {"T", "t"}):
            return text
        year, month, date = map(int, day.split("-"))
        hour, minute, second = map(int, (clock or "0:0:0").split(":"))
        try:
            moment = datetime(year, month, date, hour, minute, second, tzinfo=UTC)
            end = _go_zone(moment, zone)
        except (ValueError, OverflowError, OSError):  # no day of the calendar, or one beyond what Python counts
            return text
        seconds = f"{moment:%S}.{fraction or ''}".rstrip("0").rstrip(".") if fraction else f"{moment:%S}"
        return ComposeText.of(text, f"{year:04}-{moment:%m-%d %H:%M}:{seconds} {end}")


class ComposeText(str):
    """A text that Compose reads as a number or a time, and writes otherwise where it needs text."""

    __slots__ = ("composed",)
    composed: str
    """What Compose makes of it: `8` of `08`."""

    @classmethod
    def of(cls, text: str, composed: str) -> ComposeText:
        """Return the text as it is written in the file."""
        value = cls(text)
        value.composed = composed
        return value


def _go_zone(moment: datetime, zone: str | None) -> str:
    """Return the end of a time as Go writes it: the zone's name is this machine's where its offset is the same."""
    if zone is None or zone == "Z":
        return "+0000 UTC"
    hours, minutes = (int(zone[0] + part) for part in zone[1:].split(":"))
    offset = timedelta(hours=hours, minutes=minutes)
    local, sign = (moment - offset).astimezone(), zone.replace(":", "")
    return f"{sign} {local.tzname() if local.utcoffset() == offset else sign}"


def _integer(text: str) -> int:
    digits = text.lstrip("+-").lower()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 8 if digits[:1] == "0" else 10)
    return bounded_integer(text, base)


for _kind in ("null", "bool", "str", "seq", "map"):
    _BoundedLoader.yaml_constructors[_TAG + _kind] = yaml.SafeLoader.yaml_constructors[_TAG + _kind]
_BoundedLoader.yaml_constructors |= {
    f"{_TAG}int": _BoundedLoader.number, f"{_TAG}float": _BoundedLoader.number,
    "!compose-number": _BoundedLoader.number_of_compose, "!compose-time": _BoundedLoader.time_of_compose,
    None: yaml.SafeLoader.yaml_constructors[None],
}  # fmt: skip
for _character, _resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    _kept = [(tag, pattern) for tag, pattern in _resolvers if tag.removeprefix(_TAG) in {"null", "merge"}]
    _BoundedLoader.yaml_implicit_resolvers[_character] = _kept
for _character in "tTfF":
    _BoundedLoader.yaml_implicit_resolvers.setdefault(_character, []).append((f"{_TAG}bool", _BOOLEAN))
for _character in "+-.0123456789":
    _BoundedLoader.yaml_implicit_resolvers.setdefault(_character, []).extend([
        (f"{_TAG}int", _INTEGER), (f"{_TAG}float", _FLOAT),
        ("!compose-number", _COMPOSE_NUMBER), ("!compose-time", _COMPOSE_TIME),
    ])  # fmt: skip


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
        for _ in parse_events(text):
            pass  # to its end
        loader = _BoundedLoader(text)
        try:
            node = loader.get_single_node()
            _check(node, loader)
            value = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except InvalidYaml:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not YAML: {str(error.problem or error.context)[:200]}"
        raise InvalidYaml([_YamlFault(mark.line + 1 if mark else None, message)]) from None
    except KeyError as error:
        raise InvalidYaml([_YamlFault(None, f"not YAML: {str(error)[:100]} is not a boolean")]) from None
    except TypeError:  # `!!seq` before a key that is no list
        raise InvalidYaml([_YamlFault(None, "not YAML: a key is a list or a mapping")]) from None
    except (yaml.YAMLError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1 if hasattr(error, "position") else None
        raise InvalidYaml([_YamlFault(line, f"not YAML: {str(error).partition(chr(10))[0][:200]}")]) from None
    return YamlFile(value, node)


def parse_events(text: str) -> Iterator[Any]:
    """Yield PyYAML's events of a text.

    Raises:
        InvalidYaml: it is nested more than 64 levels deep, or has over 100 %TAG directives.
        yaml.YAMLError: it is not YAML.
    """
    if sum(1 for _ in _TAG_DIRECTIVE.finditer(text)) > _MAX_TAG_DIRECTIVES:
        raise InvalidYaml([_YamlFault(None, f"has more than {_MAX_TAG_DIRECTIVES} %TAG directives")])
    depth = 0
    for event in yaml.parse(text, Loader=_BoundedLoader):
        depth += isinstance(event, _OPENING) - isinstance(event, _CLOSING)
        if depth > MAX_DEPTH:
            raise InvalidYaml([_too_deep(event)])
        yield event


def _too_deep(where: Any) -> _YamlFault:
    return _YamlFault(where.start_mark.line + 1, f"is nested more than {MAX_DEPTH} levels deep")


def _check(node: Any, loader: Any) -> None:
    """Refuse repeated keys, and a document that its aliases make large, deep or endless."""
    sizes, problems = dict[int, tuple[int, int]](), list[_YamlFault]()

    def size(node: Any) -> tuple[int, int]:
        """Return the number of nodes and of levels."""
        if (known := sizes.get(id(node))) is not None:
            if not known[0]:
                raise InvalidYaml([_YamlFault(node.start_mark.line + 1, "refers to itself by an alias")])
            return known
        sizes[id(node)] = 0, 0
        inner: list[tuple[int, int]] = []
        if isinstance(node, yaml.SequenceNode):
            inner = [size(item) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            problems.extend(_repeated(node, loader))
            inner = [size(item) for pair in node.value for item in pair]
        total = 1 + sum(nodes for nodes, _ in inner)
        levels = 1 + max((levels for _, levels in inner), default=0)
        if levels > MAX_DEPTH + 1:
            raise InvalidYaml([_too_deep(node)])
        sizes[id(node)] = total, levels
        return total, levels

    if node is not None:
        added = size(node)[0] - len(sizes)
        if added > MAX_ALIASED_NODES + MAX_ALIASED_RATIO * len(sizes):
            problems.append(_YamlFault(1, f"has {added:,} values more once its aliases are put in: too many"))
    if problems:
        more = len(problems) - _MAX_FAULTS
        raise InvalidYaml([*problems[:_MAX_FAULTS], *([_YamlFault(None, f"and {more} more")] if more > 0 else [])])


def _repeated(node: Any, loader: Any) -> list[_YamlFault]:
    """Return the keys that are there twice: as they are written, or as what they mean."""
    faults, first_lines = list[_YamlFault](), dict[object, int]()
    for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
        line = key.start_mark.line + 1
        names = {key.value} if key.tag in _TEXT_TAGS else {key.value, loader.construct_object(key)}
        if known := names & first_lines.keys():
            faults.append(
                _YamlFault(line, f"key {key.value[:100]!r} is there twice, first in line {first_lines[known.pop()]}")
            )
        for name in names:
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


def text_of(value: str | float) -> str:
    """Return a scalar as Compose writes it where it needs text: `1.0` is `1`, `1e6` `1e+06`, `True` `true`."""
    if isinstance(value, str):
        return value.composed if isinstance(value, ComposeText) else value
    if not isinstance(value, float):
        return str(value).lower()
    digits = Decimal(repr(value)).normalize()
    if not digits or -4 <= digits.adjusted() < 6:  # noqa: PLR2004 - Go's strconv.FormatFloat, "g", shortest
        return f"{digits:f}"
    mantissa = f"{digits.scaleb(-digits.adjusted()):f}"
    return f"{mantissa}e{digits.adjusted():+03d}"


def amount(value: object) -> float | None:
    """Return a finite, non-negative number, which may be written as text; None for any other value."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
