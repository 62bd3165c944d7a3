"""Packages whose names are imported with their first use: all of them behave as if they had imported them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ohsandbox

ROOT = Path(ohsandbox.__file__).parents[1]
PACKAGES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.glob("ohsandbox/**/*.py")
    if "lazy_names(" in path.read_text(encoding="utf-8") and path.name != "lazy_names.py"
}


def test_no_module_has_lazy_names_of_its_own_making() -> None:
    assert {"ohsandbox", "ohsandbox.compat", "ohsandbox.llm", "ohsandbox.mcp", "ohsandbox.runtime"} < PACKAGES.keys()
    texts = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("ohsandbox/**/*.py")}
    assert [path for path, text in texts.items() if "\ndef __getattr__" in text or "\ndef __dir__" in text] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_and_a_star_import_give_what_the_package_exports(package: str) -> None:
    """In a process of its own, where no test has used a name before."""
    program = (
        f"import {package}, importlib\nmodule = importlib.import_module({package!r})\n"
        "before = dir(module)\nnames = {}\n"
        f"exec('from {package} import *', names)\n"
        "assert before == dir(module) == sorted(module.__all__), before\n"
        "assert set(module.__all__) <= names.keys(), names\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("package", "name"), [
    ("ohsandbox", "Agent"), ("ohsandbox.compat", "MCPClient"), ("ohsandbox.llm", "ScriptedLLM"),
    ("ohsandbox.mcp", "Pins"), ("ohsandbox.runtime", "Forward"), ("ohsandbox.runtime.docker", "build_image"),
])  # fmt: skip
def test_a_name_that_was_used_is_an_attribute(package: str, name: str) -> None:
    module = importlib.import_module(package)
    found = getattr(module, name)
    assert vars(module)[name] is found


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        _ = module.Nonsense
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec(f"from {package} import Nonsense")
