"""Every tool is laid out alike: a module, or a folder whose implementation is imported by whoever runs it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox.tools import ALIASES, HINTS

TOOLS = Path(ohsandbox.__file__).parent / "tools"
PARTS = {"definition.py", "impl.py"}
FOLDERS = sorted({path.parent for path in TOOLS.glob("*/*.py") if path.name in PARTS})
"""A folder with neither is what several tools share."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_of_a_tool_has_definition_and_impl(folder: Path) -> None:
    assert {"__init__.py", *PARTS} <= {path.name for path in folder.iterdir()}


def test_each_tool_that_ships_is_a_module_or_a_folder_of_its_name() -> None:
    defining = {path for path in TOOLS.rglob("*.py") if "\nBUILT_IN = " in path.read_text(encoding="utf-8")}
    names = {path.parent.name if path.name == "definition.py" else path.stem for path in defining}
    assert set(HINTS) - ALIASES.keys() == names


def _top_level_imports(path: Path) -> set[str]:
    """Modules that importing the file imports: not those inside functions, nor those for the type checker."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update([node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)])
        pending.extend(ast.iter_child_nodes(node))
    return found


def test_impl_is_imported_by_create_alone() -> None:
    implementations = {f"ohsandbox.tools.{folder.name}.impl" for folder in FOLDERS}
    outside = [path for path in TOOLS.parent.rglob("*.py") if path.name != "impl.py" or path.parent not in FOLDERS]
    assert {str(path): found for path in outside if (found := _top_level_imports(path) & implementations)} == {}


def test_importing_the_tools_runs_no_implementation() -> None:
    program = "import sys, ohsandbox.tools\nprint([name for name in sys.modules if name.endswith('.impl')])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
