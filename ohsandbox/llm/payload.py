"""Exact payloads for the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ohsandbox.llm.text import redact

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class Payload:
    """Something to log: written out, as JSON where it can be, only if the log wants it. Keys are hidden."""

    def __init__(self, value: Any, secrets: AbstractSet[str]) -> None:
        self._value = value
        self._secrets = secrets

    def __str__(self) -> str:
        text = json.dumps(self._value, ensure_ascii=False, default=str)
        escaped = {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._secrets}
        return redact(text, self._secrets | escaped)
