"""References within one schema. What is outside is never fetched."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

MAX_HOPS = 32
"""References that only lead to further references; more of them go in a circle."""


def is_local(reference: str) -> bool:
    """Whether it is a JSON pointer into the schema that it stands in: `#` or `#/...`."""
    return reference == "#" or reference.startswith("#/")


def target_of(root: Any, reference: str) -> Any:
    """What a local reference leads to, through further references; `True` (any value) where that is nothing."""
    node = _step(root, reference)
    for _ in range(MAX_HOPS):
        if not (isinstance(node, dict) and set(node) & {"$ref"} and not set(node) - {"$ref", "description", "title"}):
            return node if isinstance(node, dict | bool) else True
        node = _step(root, node["$ref"])
    return True


def _step(root: Any, reference: str) -> Any:
    node = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isascii() and key.isdigit() and len(key) < 6 and int(key) < len(node):  # noqa: PLR2004 - no list is longer
            node = node[int(key)]
        else:
            return True
    return node
