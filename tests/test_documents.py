"""What the documents and comments cite is there for who has this repository."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.quick import quick_tests

ROOT = Path(__file__).parents[1]
SECURITY = ROOT / "docs" / "security.md"
WHERE_TESTS_ARE = (ROOT / "tests", ROOT / "ohsandbox" / "testing")
WITHOUT_A_TEXT = re.compile(r"[A-Z]{4,}\.md\b|\bfindings? \d|\bshared/\w+\.md|\bissue \d", re.ASCII)
"""How one writes of a text: its name in capitals, or a number in a list that is somewhere else."""


def _rows() -> list[tuple[str, str, str]]:
    """The rows of every table: promise, kept by, checked in."""
    lines = SECURITY.read_text(encoding="utf-8").splitlines()
    found = [re.split(r" \| ", line.strip("| ")) for line in lines if line.startswith("| ")]
    return [(cells[0], " | ".join(cells[1:-1]), cells[-1]) for cells in found if cells[0] != "promise"]


def _files_of(cell: str) -> list[Path]:
    """The files that a cell names; a bare name lies in the directory of the one before it."""
    found, last = [], ROOT / "tests"
    for name in re.findall(r"[\w./-]+\.(?:py|txt)\b", cell):
        path = ROOT / name if "/" in name else last / name
        if not path.is_file() and not name.startswith("tests/"):
            path = next(iter(sorted((ROOT / "tests").rglob(name))), path)
        last = path.parent
        found.append(path)
    return found


@functools.cache
def _defined() -> set[str]:
    """The names of all tests and conformance cases."""
    texts = (path.read_text(encoding="utf-8") for base in WHERE_TESTS_ARE for path in base.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^\s*(?:async )?def (\w+)\(", text, re.MULTILINE)}


def _named(cell: str) -> list[str]:
    """The names of tests that a cell cites, with `*` for the end of some."""
    return [name for name in re.findall(r"`([a-z_*]+)`", cell) if "_" in name]


def test_there_are_rows_to_look_at() -> None:
    assert len(_rows()) > 40


@pytest.mark.parametrize("cell", [checked for *_, checked in _rows()])
def test_each_promise_is_checked_by_a_test_that_exists(cell: str) -> None:
    files, names = _files_of(cell), _named(cell)
    assert files or names, f"this row names no test: {cell}"
    assert [str(path) for path in files if not path.is_file()] == []
    defined = _defined()
    patterns = [re.compile("(test_)?" + re.escape(name).replace(r"\*", r"\w*")) for name in names]
    assert [one.pattern for one in patterns if not any(one.fullmatch(name) for name in defined)] == []


@functools.cache
def _quick() -> set[str]:
    """The tests that `make test` runs, and the conformance cases, which it asks a Debian sandbox."""
    tests = set().union(*map(quick_tests, (ROOT / "tests").rglob("test_*.py")))
    return tests | set().union(*map(_cases, WHERE_TESTS_ARE[1].rglob("*.py")))


def _cases(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("cell", [checked for *_, checked in _rows()])
def test_each_promise_is_checked_by_make_test(cell: str) -> None:
    files, names = _files_of(cell), _named(cell)
    patterns = [re.compile("(test_)?" + re.escape(name).replace(r"\*", r"\w*")) for name in names]
    quick = [name for name in _quick() if any(pattern.fullmatch(name) for pattern in patterns)]
    assert quick or any(path.name.startswith("test_") and quick_tests(path) for path in files), (
        f"all of its tests are slow: {cell}"
    )


@functools.cache
def _members(owner: str) -> set[str]:
    """The names that a module (by its path's end) or class (by its name) defines; empty if there is none such."""
    found: set[str] = set()
    for path in (ROOT / "ohsandbox").rglob("*.py"):
        module = f"/{path.relative_to(ROOT).with_suffix('')}"
        if module.endswith(f"/{owner}"):
            found |= _names_in(ast.parse(path.read_text(encoding="utf-8")).body)
        elif f"class {owner}" in (text := path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name == owner:
                    found |= _names_in(node.body)
    return found


def _names_in(body: list[ast.stmt]) -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _is_there(name: str) -> bool:
    """Whether a name in code font is a file or folder of the package, or what its owner (module or class) defines."""
    if re.fullmatch(r"[\w/]+\.(py|c|sh|txt)|\w+(/\w+)+", name):
        return bool(list((ROOT / "ohsandbox").rglob(name)))
    if re.fullmatch(r"[\w/]+(\.\w+)+", name) and not name.endswith((".json", ".lock")):
        owner, member = name.rsplit(".", 1)
        return member in _members(owner.rsplit(".", 1)[-1])
    return True


@pytest.mark.parametrize("cell", [kept for _, kept, _ in _rows()])
def test_what_keeps_a_promise_exists(cell: str) -> None:
    assert [name for name in re.findall(r"`([^`]+)`", cell) if not _is_there(name)] == []


@pytest.mark.parametrize("name", ["network/none.py", "none/folder", "paths.no_such_function", "Project.no_such_field"])
def test_a_name_without_code_is_noticed(name: str) -> None:
    assert not _is_there(name)


def test_nothing_cites_a_text_that_is_not_in_the_repository() -> None:
    """Documents that only their authors had tell a reader nothing."""
    ours = {path.name for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
    ours |= {"AGENTS.md", "CLAUDE.md", "SKILL.md"}  # of workspaces
    cited = []
    for base in ("ohsandbox", "tests", "docs", "README.md", "CHANGELOG.md", "images"):
        top = ROOT / base
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix not in {".py", ".md", ".sh", ".j2", ".toml"} or path == Path(__file__):
                continue
            found = WITHOUT_A_TEXT.findall(path.read_text(encoding="utf-8"))
            cited += [f"{path.relative_to(ROOT)}: {text}" for text in found if text not in ours]
    assert cited == []


PROJECTS = ROOT / "docs" / "projects.md"
PARTS_OF_A_PROJECT = (
    "Workspaces", "Mounts", "Hard links", "Branches", "Caches", "Container options and profiles",
    "Devcontainers and setup", "Services", "Warm sandboxes", "Remote engines",
)  # fmt: skip


def test_the_page_about_projects_has_its_parts_in_order_and_readme_leads_to_it() -> None:
    text = PROJECTS.read_text(encoding="utf-8")
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == PARTS_OF_A_PROJECT
    sections = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert [part for part, body in zip(PARTS_OF_A_PROJECT, sections, strict=True) if not body.strip()] == []
    assert "(docs/projects.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_each_decision_links_to_the_code_that_it_is_about() -> None:
    """Its last line says `Code: [FILE](../ohsandbox/FILE)`, or a link in its text does."""
    sections = re.split(r"^## ", (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    links = {section.splitlines()[0]: re.findall(r"\]\((\.\./[^)#]+)", section) for section in sections}
    assert [title for title, found in links.items() if not found] == []
    assert [link for found in links.values() for link in found if not (ROOT / "docs" / link).is_file()] == []
