"""The form of every error: sentences, first the fact with its value, last the remedy; no marker between the two."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import ohsandbox
from ohsandbox.errors import (
    EngineUnavailable,
    OhsandboxError,
    SandboxFileError,
    UsageError,
    WorkdirMissingError,
    file_error,
)

PACKAGE = Path(ohsandbox.__file__).parent


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_text_marks_its_remedy_with_a_word(file: Path) -> None:
    texts = [
        node.value for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    assert [text for text in texts if isinstance(text, str) and "Remedy:" in text] == []


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_a_remedy_of_its_own_is_a_sentence(file: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "remedy"]
    for text in (text for text in given if isinstance(text, ast.Constant | ast.JoinedStr)):
        parts = [text] if isinstance(text, ast.Constant) else text.values
        first, last = parts[0], parts[-1]
        assert not (isinstance(first, ast.Constant) and str(first.value)[:1].islower()), f"line {text.lineno}"
        assert not isinstance(last, ast.Constant) or str(last.value).endswith((".", "`")), f"line {text.lineno}"


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
