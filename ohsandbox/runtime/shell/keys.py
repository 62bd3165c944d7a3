"""Names of keys, and what a terminal sends for them."""

from __future__ import annotations

import re

_NAMED = {
    "ENTER": b"\n", "TAB": b"\t", "ESC": b"\x1b", "BS": b"\x7f", "SPACE": b" ",
    "UP": b"\x1b[A", "DOWN": b"\x1b[B", "RIGHT": b"\x1b[C", "LEFT": b"\x1b[D",
    "HOME": b"\x1b[H", "END": b"\x1b[F", "PGUP": b"\x1b[5~", "PGDN": b"\x1b[6~", "DEL": b"\x1b[3~",
}  # fmt: skip
_CONTROL = re.compile(r"(?:C-|CTRL[-+])([a-z@\[\]\\^_])", re.IGNORECASE)


def keystrokes(text: str) -> bytes:
    """What to type for text: a key (`C-c`, `ENTER`, `UP`), or the text and Enter unless it ends in a newline."""
    key = text.strip()
    if control := _CONTROL.fullmatch(key):
        return bytes([ord(control[1].upper()) & 0x1F])
    if key.upper() in _NAMED and key.isupper():
        return _NAMED[key]
    return (text if text.endswith("\n") else text + "\n").encode("utf-8", "surrogateescape")
