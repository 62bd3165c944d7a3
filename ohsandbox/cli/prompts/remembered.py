"""Answers that are not asked for again: a person's answers about a directory, such as its mount, and known models."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.paths import state_dir
from ohsandbox.private_files import read_regular, write_atomically
from ohsandbox.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

_FILE_NAME = "answers.json"
MAX_DIRECTORIES = 1000
"""Number of answers that are kept, the newest."""
_MODELS_NAME = "known-models.json"
_MAX_MODELS = 200
"""Number of models that are kept, the newest."""
Asked = Literal["mount", "no trust"]


def remembered(asked: Asked, directory: Path) -> str | None:
    """Return the answer that `remember` stored; None if there is none, or the file cannot be read."""
    answer = _answers().get(str(directory.resolve()), {}).get(asked)
    return answer if isinstance(answer, str) else None


def remember(asked: Asked, directory: Path, answer: str) -> None:
    """Store an answer. If that fails, the question is asked again next time."""
    answers = _answers()
    directory_key = str(directory.resolve())
    answers[directory_key] = answers.pop(directory_key, {}) | {asked: answer}
    _write(_FILE_NAME, dict([*answers.items()][-MAX_DIRECTORIES:]))


def forget_answer(directory: Path) -> bool:
    """Delete the answer about a directory; return whether there was one."""
    answers = _answers()
    if answers.pop(str(directory.resolve()), None) is None:
        return False
    _write(_FILE_NAME, answers)
    return True


def is_remembered_model(model: str, base_url: str | None) -> bool:
    """Return whether the model was found at that server before, or nobody could say; None is the provider's server."""
    return [model, base_url] in _models()


def remember_model(model: str, base_url: str | None) -> None:
    """Remember that a model was found. If that fails, its server is asked again next time."""
    models = [one for one in _models() if one != [model, base_url]] + [[model, base_url]]
    _write(_MODELS_NAME, models[-_MAX_MODELS:])


def _answers() -> dict[str, dict[str, str]]:
    answers = _read(_FILE_NAME)
    return answers if isinstance(answers, dict) and all(isinstance(answer, dict) for answer in answers.values()) else {}


def _models() -> list[Any]:
    models = _read(_MODELS_NAME)
    return models if isinstance(models, list) else []


def _read(name: str) -> object:
    with contextlib.suppress(OSError, ValueError):
        return parse_json(read_regular(state_dir() / name))
    return None


def _write(name: str, content: object) -> None:
    with contextlib.suppress(OSError):
        write_atomically(state_dir(create=True) / name, json.dumps(content, indent=2).encode() + b"\n")
