"""Which tests `make test` runs: those without the mark `slow`, as it stands in the source."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = "pytest.mark.slow"


@functools.cache
def quick_tests(module: Path) -> set[str]:
    """The names of a module's test functions that are not marked as slow."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    return set() if slow_marks(body) else {name for name in _quick_in(body) if name.startswith("test_")}


def slow_marks(body: list[ast.stmt]) -> list[ast.expr]:
    """What marks a whole module as slow: the mark as it stands in `pytestmark`."""
    values = [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets)
    ]
    marks = [mark for value in values for mark in (value.elts if isinstance(value, ast.List) else [value])]
    return [mark for mark in marks if _is_slow(mark)]


def _quick_in(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if any(map(_is_slow, node.decorator_list)):
                continue
            if isinstance(node, ast.ClassDef):
                yield from _quick_in(node.body)
            else:
                yield node.name


def _is_slow(mark: ast.expr) -> bool:
    return ast.unparse(mark.func if isinstance(mark, ast.Call) else mark) == MARK
