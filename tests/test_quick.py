"""What `make test` leaves to `make test-all` is a part of each module, or a module that says why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.quick import quick_tests, slow_marks

TESTS = Path(__file__).parent


def _says_why(module: Path) -> bool:
    marks = slow_marks(ast.parse(module.read_text(encoding="utf-8")).body)
    return any(
        isinstance(argument, ast.Constant) for mark in marks if isinstance(mark, ast.Call) for argument in mark.args
    )


def test_each_module_has_a_quick_test_or_says_why_not() -> None:
    slow = [module for module in sorted(TESTS.rglob("test_*.py")) if not quick_tests(module)]
    silent = [str(module.relative_to(TESTS)) for module in slow if not _says_why(module)]
    assert silent == [], 'give it a quick test, or write pytestmark = pytest.mark.slow("why")'


@pytest.mark.parametrize(
    ("source", "quick"),
    [
        ("def test_a(): ...\n@pytest.mark.slow\ndef test_b(): ...\n", {"test_a"}),
        ("class TestX:\n  @pytest.mark.docker\n  def test_a(self): ...\n", {"test_a"}),
        ("@pytest.mark.slow\nclass TestX:\n  def test_a(self): ...\n", set()),
        ("pytestmark = [pytest.mark.docker, pytest.mark.slow('why')]\ndef test_a(): ...\n", set()),
    ],
)
def test_a_mark_on_function_class_or_module_counts(source: str, quick: set[str], tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(source)
    assert quick_tests(tmp_path / "test_x.py") == quick
