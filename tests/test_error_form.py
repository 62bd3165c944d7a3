"""The form of every error: sentences, first the fact with its value, last the remedy; no marker between the two."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox import errors
from ohsandbox.errors import (
    EngineUnavailable,
    OhsandboxError,
    SandboxFileError,
    UsageError,
    WorkdirMissingError,
    file_error,
)

PACKAGE = Path(ohsandbox.__file__).parent


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of the package's syntax trees, with its file."""
    files = [(file.relative_to(PACKAGE).as_posix(), file) for file in sorted(PACKAGE.rglob("*.py"))]
    return [(name, node) for name, file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def test_no_text_marks_its_remedy_with_a_word(nodes: list[tuple[str, ast.AST]]) -> None:
    texts = [(name, node.lineno, node.value) for name, node in nodes if isinstance(node, ast.Constant)]
    assert [f"{name}:{line}" for name, line, text in texts if isinstance(text, str) and "Remedy:" in text] == []


def test_a_remedy_of_its_own_is_a_sentence(nodes: list[tuple[str, ast.AST]]) -> None:
    faults = []
    for name, call in nodes:
        for text in (
            (word.value for word in call.keywords if word.arg == "remedy") if isinstance(call, ast.Call) else ()
        ):
            first, last = _ends(text)
            if first[:1].islower() or not last.endswith((".", "`")):
                faults.append(f"{name}:{text.lineno}")
    assert faults == []


def test_a_message_that_is_raised_ends_as_a_sentence(nodes: list[tuple[str, ast.AST]]) -> None:
    calls = [(name, node.exc) for name, node in nodes if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    ours = [
        (name, call.args[0]) for name, call in calls if call.args and getattr(call.func, "id", "") in errors.__all__
    ]
    messages = [
        (name, text) for name, text in ours if not isinstance(text, ast.Constant) or isinstance(text.value, str)
    ]
    assert len(messages) > 500
    faults = [f"{name}:{text.lineno}" for name, text in messages if not _ends(text)[1].endswith((".", "?", "`"))]
    assert faults == []


def _ends(text: ast.expr) -> tuple[str, str]:
    """Return the first and the last piece of a literal; "." for a piece, or a whole, that is computed."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    first, last = (part.value if isinstance(part, ast.Constant) else "." for part in (parts[0], parts[-1]))
    return str(first), str(last) or "."


def test_the_remedy_can_be_taken_apart_and_survives_a_process() -> None:
    for error in (
        OhsandboxError("No answer.", remedy="Try again."),
        EngineUnavailable("No answer.", remedy="Try again."),
        UsageError("No answer.", remedy="Try again."),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert [(one.fact, one.remedy, str(one)) for one in (error, copy)] == [
            ("No answer.", "Try again.", "No answer. Try again.")
        ] * 2
    assert (str(UsageError("No answer.")), UsageError("No answer.").remedy) == ("No answer.", "")


def test_an_error_of_a_file_has_its_remedy_after_its_path() -> None:
    error = file_error(2, "No such file or directory", "/x", "List the directory above it.")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, SandboxFileError)
    assert str(error) == "[Errno 2] No such file or directory: '/x'. List the directory above it."
    assert (error.errno, error.strerror, error.filename) == (2, "No such file or directory", "/x")
    gone = WorkdirMissingError(2, "The directory does not exist", "/x", remedy="Make it first.")
    assert str(gone) == "The directory does not exist: '/x'. Make it first."
