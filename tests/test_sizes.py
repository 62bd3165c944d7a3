"""No file of the package has over 500 lines, and no function over 60."""

import ast
from pathlib import Path

import ohsandbox

FILES = {path: path.read_text(encoding="utf-8") for path in Path(ohsandbox.__file__).parent.rglob("*.py")}


def test_no_file_has_over_500_lines() -> None:
    assert [path for path, text in FILES.items() if len(text.splitlines()) > 500] == []


def test_no_function_has_over_60_lines() -> None:
    functions = [
        (f"{path}:{node.lineno}", (node.end_lineno or 0) - node.lineno + 1)
        for path, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    assert [where for where, lines in functions if lines > 60] == []
