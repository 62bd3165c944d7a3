"""A provider's words in our messages and logs: without keys, on one line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ohsandbox.text import encodable, quoted_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


QUOTE_LIMIT = 300
"""Characters of a provider's own words in our messages: enough for the cause, too little for a page of HTML."""
_HIDDEN = "***"
_KEY_LIKE = re.compile(r"\b(?:sk-|xai-|gsk_|AIza)[\w*.-]{8,}|(?<=[Bb]earer )\S+")
"""Providers quote keys, or parts of them, back: `Incorrect API key provided: sk-abc***xyz`."""
_SHORTEST_SECRET = 4
"""Shorter ones are placeholders for local servers ("x", "EMP"); hiding them would shred the text."""


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, and without what looks like a key."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return _KEY_LIKE.sub(_HIDDEN, text)


def one_line(text: str, secrets: Iterable[str] = (), *, limit: int = QUOTE_LIMIT) -> str:
    """At most limit characters of text in one line: no secrets, no control or format characters."""
    return quoted_line(redact(encodable(text[: 100 * limit]), secrets), limit_chars=limit)


class Payload:
    """Something to log: written out, as JSON where it can be, only if the log wants it. Keys are hidden."""

    def __init__(self, value: Any, secrets: AbstractSet[str]) -> None:
        self._value = value
        self._secrets = secrets

    def __str__(self) -> str:
        text = json.dumps(self._value, ensure_ascii=False, default=str)
        escaped = {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._secrets}
        return redact(text, self._secrets | escaped)
