"""What is not asked again: answers of a person about a directory, as of its mount, and which models there are."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Literal

from ohsandbox.paths import state_dir
from ohsandbox.private_files import write_atomically
from ohsandbox.strict_json import parse

if TYPE_CHECKING:
    from pathlib import Path

_FILE_NAME = "answers.json"
MAX_DIRECTORIES = 1000
"""The newest answers are kept."""
_MODELS_NAME = "known-models.json"
MAX_MODELS = 200
"""The newest are kept."""
Asked = Literal["mount", "no trust"]


def remembered(asked: Asked, directory: Path) -> str | None:
    """The answer, as `remember` got it; None where there is none, or the record cannot be read."""
    answer = _read().get(str(directory.resolve()), {}).get(asked)
    return answer if isinstance(answer, str) else None


def remember(asked: Asked, directory: Path, answer: str) -> None:
    """Keep the answer. That it cannot be kept only means that it is asked again."""
    answers = _read()
    place = str(directory.resolve())
    answers[place] = answers.pop(place, {}) | {asked: answer}
    _write(dict([*answers.items()][-MAX_DIRECTORIES:]))


def forget(directory: Path) -> bool:
    """Ask again about the directory; whether there was an answer."""
    answers = _read()
    if answers.pop(str(directory.resolve()), None) is None:
        return False
    _write(answers)
    return True


def _read() -> dict[str, dict[str, str]]:
    with contextlib.suppress(OSError, ValueError):
        found = parse((state_dir() / _FILE_NAME).read_bytes())
        if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
            return found
    return {}


def _write(answers: dict[str, dict[str, str]]) -> None:
    with contextlib.suppress(OSError):
        write_atomically(state_dir(create=True) / _FILE_NAME, json.dumps(answers, indent=2).encode() + b"\n")


def is_remembered_model(model: str, base_url: str | None) -> bool:
    """Whether the model was found at that server once, or nobody there can say; None is the provider's own."""
    return [model, base_url] in _read_models()


def remember_model(model: str, base_url: str | None) -> None:
    """Keep that it was. That it cannot be kept only means that its server is asked again."""
    known = [one for one in _read_models() if one != [model, base_url]] + [[model, base_url]]
    with contextlib.suppress(OSError):
        data = json.dumps(known[-MAX_MODELS:], indent=2).encode() + b"\n"
        write_atomically(state_dir(create=True) / _MODELS_NAME, data)


def _read_models() -> list[Any]:
    with contextlib.suppress(OSError, ValueError):
        found = parse((state_dir() / _MODELS_NAME).read_bytes())
        if isinstance(found, list):
            return found
    return []
