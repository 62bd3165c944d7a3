"""`python docs/generate_api.py [--check]`: docs/api.md, out of what ohsandbox exports: signatures and docstrings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "ohsandbox",
    "ohsandbox.compat",
    "ohsandbox.errors",
    "ohsandbox.events",
    "ohsandbox.runtime",
    "ohsandbox.testing",
    "ohsandbox.testing.conformance",
)
"""What each exports, a section a module; a name is described where it stands first."""
exported: set[str] = set()
"""Paths of all that has a place of its own on the page."""
HEAD = """\
# API reference

Made from the docstrings by `make docs`; a test compares it with them. These modules are the public interface;
every other module is internal and may change in any release. How the parts work together is in
[architecture.md](architecture.md).
"""


TWIN = re.compile(r"(cancellable|waited|awaited)\((?:\w+\.)*(\w+)(?:, \w+)?\)")
"""How `runtime/aio.py` makes the async form of a method or function."""
TWINS_HEAD = "| awaited | as | a task that is cancelled |\n|---|---|---|"
ENDS = {
    "cancellable": "ends what it does",
    "waited": "waits for its end",
    "awaited": "ends it, where it takes `cancel`",
}


def page() -> str:
    """The whole text."""
    package = griffe.load("ohsandbox", search_paths=[ROOT], docstring_parser="google", resolve_aliases=True)
    exported.update(_target(one).path for name in MODULES for _, one in _exports(package, name))
    described: set[str] = set()
    return "\n".join([HEAD, *(line for name in MODULES for line in _module(package, name, described))]).rstrip() + "\n"


def _module(package: griffe.Object | griffe.Alias, name: str, described: set[str]) -> Iterator[str]:
    yield f"## `{name}`\n"
    for shown, found in _exports(package, name):
        target = _target(found)
        if target.path not in described:
            described.add(target.path)
            yield from _described(target, shown)


def _exports(package: griffe.Object | griffe.Alias, name: str) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    module = package[name.partition(".")[2]] if "." in name else package
    for shown in sorted(str(one) for one in module.exports or _classes(module)):
        if not shown.startswith("__") and shown in module.members:
            yield shown, module.members[shown]


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found  # type: ignore[return-value]


def _classes(module: griffe.Object | griffe.Alias) -> list[str]:
    return [
        name for name, one in module.members.items() if not name.startswith("_") and not one.is_alias and one.is_class
    ]


def _described(one: griffe.Object, name: str) -> Iterator[str]:
    if isinstance(one, griffe.Function):
        yield f"### `{name}`\n"
        yield f"```python\n{_signature(one)}\n```\n"
    elif isinstance(one, griffe.Class):
        bases = ", ".join(str(base) for base in one.bases)
        yield f"### `{name}{f'({bases})' if bases else ''}`\n"
    else:
        yield f"### `{name}`\n"
        if isinstance(one, griffe.Attribute) and (twin := TWIN.fullmatch(str(one.value))):
            yield f"`{twin[2]}`, awaited; a task that is cancelled {ENDS[twin[1]]}.\n"
    yield from _prose(one)
    if isinstance(one, griffe.Class):
        yield from _members(one)


def _members(one: griffe.Class) -> Iterator[str]:
    if isinstance(made := one.members.get("__init__"), griffe.Function):
        yield f"```python\n{_signature(made, one.name)}\n```\n"
    public = [member for name, member in _all_members(one).items() if not name.startswith("_")]
    fields = [member for member in public if isinstance(member, griffe.Attribute) and _is_told(member)]
    for member in fields:
        told = _one_line(member)
        yield f"- `{member.name}: {member.annotation}`{f': {told}' if told else ''}"
    if fields:
        yield ""
    for member in public:
        if isinstance(member, griffe.Function):
            yield f"#### `{one.name}.{member.name}`\n"
            yield f"```python\n{_signature(member)}\n```\n"
            yield from _prose(member)
    if twins := [(member, found) for member in public if (found := TWIN.fullmatch(str(getattr(member, "value", ""))))]:
        yield f"#### Async methods of `{one.name}`\n"
        yield TWINS_HEAD
        for member, found in twins:
            yield f"| `{member.name}(...)` | `{found[2]}(...)` | {ENDS[found[1]]} |"
        yield ""


def _all_members(one: griffe.Class) -> dict[str, griffe.Object | griffe.Alias]:
    """Its own, then those of bases that have no place of their own on the page, and none by another class that has."""
    described = {above.path for base in one.mro() if base.path in exported for above in base.mro()}
    members = dict(one.members)
    for base in one.mro():
        if base.path.startswith("ohsandbox.") and base.path not in exported | described:
            members |= {name: member for name, member in base.members.items() if name not in members}
    return members


def _is_told(field: griffe.Attribute) -> bool:
    """Whether it has a sentence, or is a key of an event, whose name says enough."""
    return field.docstring is not None or (field.module.path.startswith("ohsandbox.events") and bool(field.annotation))


def _signature(function: griffe.Function, name: str = "") -> str:
    """With a line a parameter where it would be too long."""
    word = "async def " if "async" in function.labels else ""
    whole = function.signature(name=name or function.name)
    if len(whole) > 110:  # noqa: PLR2004 - what a page shows without scrolling
        inside, _, returned = whole.partition("(")[2].rpartition(")")
        whole = f"{name or function.name}(\n    {_split(inside)},\n){returned}"
    return word + whole


def _split(parameters: str) -> str:
    depth, line = 0, ""
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        line += ",\n    " if character == "," and not depth else character
    return line.replace("\n     ", "\n    ")


def _prose(one: griffe.Object) -> Iterator[str]:
    for section in one.docstring.parsed if one.docstring else ():
        match section:
            case griffe.DocstringSectionText():
                yield f"{section.value}\n"
            case griffe.DocstringSectionParameters():
                yield _bullets(f"`{item.name}`: {item.description}" for item in section.value)
            case griffe.DocstringSectionRaises():
                yield _bullets(f"raises `{item.annotation}`: {item.description}" for item in section.value)
            case griffe.DocstringSectionReturns() | griffe.DocstringSectionYields():
                yield _bullets(f"returns: {item.description}" for item in section.value)
            case _:
                yield f"{section.title or ''}\n"


def _bullets(items: Iterable[str]) -> str:
    return "".join(f"- {_flat(item)}\n" for item in items)


def _one_line(one: griffe.Object) -> str:
    return _flat(one.docstring.value) if one.docstring else ""


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/api.md differs from the docstrings. Run `make docs`.")
    else:
        PAGE.write_text(text, encoding="utf-8")
