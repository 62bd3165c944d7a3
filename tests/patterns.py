"""Every regular expression of the package, how it is used, and texts on which a bad one would take long."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple

import ohsandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PACKAGE = Path(ohsandbox.__file__).parent
USES = {"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
"""What is done with a pattern, in `re` and on a compiled one."""


class Found(NamedTuple):
    """A pattern and where it stands."""

    where: str
    pattern: re.Pattern[Any]
    uses: frozenset[str]


class Unread(NamedTuple):
    """A call of `re` whose pattern is made at run time."""

    module: str
    source: str


def modules() -> dict[str, Path]:
    """The package's modules by name."""
    paths = {path.relative_to(PACKAGE.parent): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(short.with_suffix("").parts).removesuffix(".__init__"): path for short, path in paths.items()}


def imported(name: str) -> ModuleType | None:
    """The module; None for one that runs in the sandbox alone, with packages of the sandbox."""
    try:
        return importlib.import_module(name)
    except (ImportError, KeyError, NameError):
        return None


def uses_by_name(tree: ast.Module) -> dict[str, frozenset[str]]:
    """What a module does with what stands in a variable, by the variable's name."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in USES:
            name = getattr(node.value, "id", getattr(node.value, "attr", ""))
            found.setdefault(name, set()).add(node.attr)
    return {name: frozenset(uses) for name, uses in found.items()}


def calls_of_re(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls of functions of `re` that take a pattern, with the function's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            used = node.func.attr
            if getattr(node.func.value, "id", "") == "re" and used in {*USES, "compile"}:
                yield node, used


def in_source(name: str, tree: ast.Module) -> Iterator[Found | Unread]:
    """The patterns that stand in calls of `re`: literals, and what module variables make of them."""
    if not (calls := [*calls_of_re(tree)]):
        return  # and nothing is imported
    known = uses_by_name(tree)
    module = imported(name)
    space = {**vars(module)} if module else {}
    targets = {
        id(node.value): getattr(node.targets[0] if isinstance(node, ast.Assign) else node.target, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    }
    for node, used in calls:
        call = ast.Call(ast.parse("re.compile", mode="eval").body, _pattern_arguments(node), _flags(node))
        source = ast.unparse(call.args[0])
        try:
            code = compile(ast.fix_missing_locations(ast.Expression(call)), name, "eval")
            pattern = eval(code, {**space, "re": re})
        except (NameError, AttributeError, TypeError):
            yield Unread(name, source)
            continue
        uses = known.get(targets.get(id(node), ""), frozenset()) if used == "compile" else {used}
        yield Found(f"{name}:{node.lineno}", pattern, frozenset(uses or {"search", "sub"}))


def _pattern_arguments(node: ast.Call) -> list[ast.expr]:
    at = {"compile": 2, "search": 3, "match": 3, "fullmatch": 3, "findall": 3, "finditer": 3, "sub": 5, "subn": 5}
    attr = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    flags = node.args[at.get(attr, 4) - 1 : at.get(attr, 4)]
    return [node.args[0], *flags]


def _flags(node: ast.Call) -> list[ast.keyword]:
    return [keyword for keyword in node.keywords if keyword.arg == "flags"]


def in_objects(name: str) -> Iterator[re.Pattern[Any]]:
    """The compiled patterns that a module holds, in tables of its own as well."""
    module = imported(name)
    seen: set[int] = set()
    waiting = [value for key, value in vars(module).items() if not key.startswith("__")] if module else []
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]


# --- texts --------------------------------------------------------------------------------------

GENERIC = ["\r", " ", "\x1b[", "\x1b]", "'", '"', "\\", "0", "\n", "a", "_", "\t", "é"]
STAND_INS = ["a", "0", " ", "-", "\n", "<", "\x01", "é", "\ud800", "A", "_", "\u200b", "\U000e0001"]
_CATEGORY = {
    op.CATEGORY_DIGIT: "0", op.CATEGORY_SPACE: " ", op.CATEGORY_WORD: "a",
    op.CATEGORY_NOT_DIGIT: "a", op.CATEGORY_NOT_SPACE: "a", op.CATEGORY_NOT_WORD: "-",
}  # fmt: skip


MANY = 20
"""A repetition that may go on for longer may be slow."""
CUT = "\ue000"
"""Stands in a sample where one begins."""


def samples(pattern: re.Pattern[Any]) -> tuple[list[list[str]], set[str]]:
    """Texts that nearly match, each as the parts its pattern's parts ask for; and the characters they are made of."""
    source = pattern.pattern
    tree = parser.parse(source, pattern.flags & ~re.UNICODE if isinstance(source, bytes) else pattern.flags)
    characters: set[str] = set()
    first = _sample(tree, 0, characters, {})
    second = _sample(tree, 1, characters, {})
    return [first, second], characters


def _sample(tree: Any, turn: int, characters: set[str], groups: dict[int, str]) -> list[str]:
    parts: list[str] = []
    for operator, value in tree:
        parts += _part(operator, value, turn, characters, groups)
    return parts


def _part(operator: Any, value: Any, turn: int, characters: set[str], groups: dict[int, str]) -> list[str]:  # noqa: C901, PLR0911
    if operator is op.LITERAL:
        characters.add(chr(value))
        return [chr(value)]
    if operator is op.NOT_LITERAL:
        return ["a" if value != ord("a") else "b"]
    if operator is op.ANY:
        return ["a"]
    if operator is op.IN:
        character = _member(value, characters, turn)
        return [character] if character else []
    if operator in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        low, high, inner = value
        repeated = _sample(inner, turn, characters, groups) * min(max(low, 1 + turn), max(high, 1), 40)
        return [CUT, *repeated] if high > MANY else repeated
    if operator is op.SUBPATTERN:
        inner_parts = _sample(value[3], turn, characters, groups)
        groups[value[0]] = "".join(inner_parts)
        return inner_parts
    if operator is op.ATOMIC_GROUP:
        return _sample(value, turn, characters, groups)
    if operator is op.BRANCH:
        branches = [_sample(branch, turn, characters, groups) for branch in value[1]]
        return branches[-turn % len(branches)]
    if operator is op.GROUPREF:
        return [groups.get(value, "")]
    if operator in (op.ASSERT, op.ASSERT_NOT):
        _sample(value[1], turn, characters, groups)
    return []


def _member(items: Any, characters: set[str], turn: int) -> str:
    negated = items[0][0] is op.NEGATE
    found: list[str] = []
    for operator, value in items:
        if operator is op.LITERAL:
            found.append(chr(value))
        elif operator is op.RANGE:
            found += [chr(value[0]), chr(value[1])]
        elif operator is op.CATEGORY:
            found.append(_CATEGORY[value])
    characters.update(found[:6])
    if negated:
        return next((stand_in for stand_in in STAND_INS if stand_in not in found), "a")
    return found[-turn % len(found)] if found else ""


def units(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """(head, what is repeated, tail): singles and pairs of the pattern's characters, beginnings of what would match."""
    texts, own = samples(pattern)
    singles = sorted(own)[:24] + GENERIC
    heads = {"\x00", *("".join(parts[:end]).replace(CUT, "") for parts in texts for end in _ends(parts))}
    yield from (("", single, "") for single in singles)
    yield from (("", first + second, "") for first, second in itertools.permutations([*sorted(own)[:8], "a", "\n"], 2))
    yield from (("", head, "") for head in heads if head)
    yield from (("", head + between, "") for head in heads if head for between in ("\n", " "))
    yield from ((head, single, "\x00") for head in heads for single in singles)


def _ends(parts: list[str]) -> list[int]:
    """Where to cut a sample: before and behind what may be long, and at its end."""
    cuts = [i for i, part in enumerate(parts) if part == CUT]
    return sorted({0, *cuts, *(i + 2 for i in cuts), len(parts)})[:MANY]


def text_of(unit: tuple[str, str, str], length: int, *, as_bytes: bool) -> Any:
    """About length characters of it."""
    head, middle, tail = unit
    text = head + middle * max(1, length // len(middle)) + tail
    return text.encode("latin-1", "replace") if as_bytes else text
