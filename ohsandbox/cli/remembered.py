"""Answers of a person about a directory that are not asked for again: its mount, and a no to trust."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Literal

from ohsandbox.paths import state_dir
from ohsandbox.private_files import write_atomically
from ohsandbox.strict_json import parse

if TYPE_CHECKING:
    from pathlib import Path

_FILE_NAME = "answers.json"
MAX_DIRECTORIES = 1000
"""The newest answers are kept."""
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
