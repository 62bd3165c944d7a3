"""Cleans a server's text for models and users."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ohsandbox.runtime.shell.terminal import without_controls
from ohsandbox.text import encodable

Mask = Callable[[str], str]
"""Replaces the secrets in a text."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\U000e0000-\U000e007f]")
"""C0 except newline and tab, C1, and the tag characters, which encode invisible ASCII."""

_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0100-\U000e01ef]"
)
"""Zero-width, direction overrides, fillers, variation selectors: no legitimate description needs them."""


def printable(text: str) -> str:
    r"""Remove control sequences and control characters; `\r\n` becomes `\n`."""
    return _CONTROLS.sub("", without_controls(encodable(text).encode()))


def visible(text: str, *, limit_chars: int) -> str:
    """As `printable`; also remove characters that hide or reorder text, and truncate with a note."""
    shown = _HIDDEN.sub("", printable(text)).strip()
    if len(shown) <= limit_chars:
        return shown
    return f"{shown[:limit_chars]} [... {len(shown) - limit_chars} more characters left out]"


def one_line(text: str, *, limit_chars: int) -> str:
    """As `visible`, on one line."""
    return visible(" ".join(printable(text).split()), limit_chars=limit_chars)


def masked(value: Any, mask: Mask) -> Any:
    """Mask secrets in the value's keys, texts and numbers, and replace numbers that JSON does not have."""
    if isinstance(value, dict):
        return {mask(key): masked(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, mask) for item in value]
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if mask(str(value)) == str(value) else mask(str(value))
    return value
