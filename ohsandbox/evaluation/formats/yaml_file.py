"""YAML files of tasks, read strictly, with the line of every key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ohsandbox import strict_yaml
from ohsandbox.evaluation.formats.problems import InvalidTask, Problem
from ohsandbox.strict_yaml import InvalidYaml, YamlFile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["YamlFile", "parse_yaml"]


def parse_yaml(text: str, file: Path) -> YamlFile:
    """Parse a file's text.

    Raises:
        InvalidTask: it is not one YAML document, or a hostile one.
    """
    try:
        return strict_yaml.parse_yaml(text)
    except InvalidYaml as error:
        raise InvalidTask([Problem(file, line, message) for line, message in error.faults]) from None
