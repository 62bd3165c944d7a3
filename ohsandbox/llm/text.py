"""Making foreign text safe to store and to show."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


QUOTE_LIMIT = 300
"""Characters of a provider's own words in our messages: enough for the cause, too little for a page of HTML."""
_HIDDEN = "***"
_KEY_LIKE = re.compile(r"\b(?:sk-|xai-|gsk_|AIza)[\w*.-]{8,}|(?<=[Bb]earer )\S+")
"""Providers quote keys, or parts of them, back: `Incorrect API key provided: sk-abc***xyz`."""
_SHORTEST_SECRET = 4
"""Shorter ones are placeholders for local servers ("x", "EMP"); hiding them would shred the text."""


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, as U+FFFD; surrogate pairs become their character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encodable_tree(value: Any) -> Any:
    """A copy of JSON-like data in which every string can be encoded."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_tree(key): encodable_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encodable_tree(item) for item in value]
    return value


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, and without what looks like a key."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _HIDDEN)
    return _KEY_LIKE.sub(_HIDDEN, text)


def one_line(text: str, secrets: Iterable[str] = (), *, limit: int = QUOTE_LIMIT) -> str:
    """At most limit characters of text in one line: no secrets, no control or format characters."""
    text = redact(encodable(text[: 100 * limit]), secrets)
    visible = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    line = " ".join(visible.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class Payload:
    """Something to log: written out, as JSON where it can be, only if the log wants it. Keys are hidden."""

    def __init__(self, value: Any, secrets: AbstractSet[str]) -> None:
        self._value = value
        self._secrets = secrets

    def __str__(self) -> str:
        text = json.dumps(self._value, ensure_ascii=False, default=str)
        escaped = {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._secrets}
        return redact(text, self._secrets | escaped)
