"""What litellm's list says of models, read as a file: importing litellm takes 2-4 s, this 0.03 s."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = "model_prices_and_context_window_backup.json"
"""As litellm 1.106 has it; it loads the same file, since we keep it from fetching a newer one."""


@functools.cache
def model_list() -> Mapping[str, Mapping[str, Any]]:
    """Each model's entry by its name; empty where litellm has no such file."""
    spec = importlib.util.find_spec("litellm")  # of a top-level package this imports nothing
    if spec is None or spec.origin is None:
        return {}
    try:
        entries = json.loads(Path(spec.origin).with_name(_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def is_priced(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says what input and output cost. litellm takes a price that is missing for 0."""
    return all(entry.get(f"{way}_cost_per_token") is not None for way in ("input", "output"))
