"""Terminal output and input: splitting off our marks, cleaning program output, encoding key names."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

_MARK_PREFIX = b"\x1b]7117;"
"""Our marks are operating system commands (ECMA-48 8.3.89) with a number that no terminal uses."""

_MARK = re.compile(rb"\x1b\]7117;([0-9a-f]{32});(begin|end)\x07")
_MARK_BYTES = 7 + 32 + 7


class Mark(NamedTuple):
    """Where a command's output begins or ends."""

    nonce: str
    kind: Literal["begin", "end"]


class MarkSplitter:
    """Splits a terminal's stream, cut anywhere, into marks and the bytes between them."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        """Return the pieces so far; bytes that may begin a mark are held back until the next call."""
        data, self._held = self._held + data, b""
        pieces: list[bytes | Mark] = []
        done = 0
        at = data.find(b"\x1b")
        while at >= 0:
            if match := _MARK.match(data, at):
                if at > done:
                    pieces.append(data[done:at])
                kind: Literal["begin", "end"] = "begin" if match[2] == b"begin" else "end"
                pieces.append(Mark(match[1].decode(), kind))
                done = match.end()
            elif _may_become_mark(data[at : at + _MARK_BYTES]):
                self._held = data[at:]
                data = data[:at]
                break
            at = data.find(b"\x1b", max(at + 1, done))
        if done < len(data):
            pieces.append(data[done:])
        return pieces


def _may_become_mark(start: bytes) -> bool:
    if len(start) <= len(_MARK_PREFIX):
        return _MARK_PREFIX.startswith(start)
    return start.startswith(_MARK_PREFIX) and len(start) < _MARK_BYTES and b"\x07" not in start


_STRING_UNITS = 4096
"""Maximum length of a control string (ECMA-48 5.6) that is recognised; titles, links and clipboards are shorter. A
longer one, or one whose line ends before its terminator, loses only its introducer and stays as text, so it cannot hide
anything."""

_CSI = rb"[0-?]{0,256}[ -/]{0,16}"
_STRING = rb"(?:[^\x07\x18\x1a\x1b\n\xc2]|\xc2(?![\x80-\x9f])){0,%d}" % _STRING_UNITS
_CONTROL = re.compile(
    rb"\x1b(?:\[%(csi)s[@-~]|[\]PX^_]%(string)s(?:\x07|\x1b\\|\xc2\x9c)|[ -/]{1,16}[0-~]|[0-~])?"
    rb"|\xc2(?:\x9b%(csi)s[@-~]|[\x90\x98\x9d-\x9f]%(string)s(?:\x07|\x1b\\|\xc2\x9c)|[\x80-\x9f])"
    % {b"csi": _CSI, b"string": _STRING}
)
"""A control function, as ESC and a byte or as its C1 control in UTF-8. Each byte is scanned at most twice: a string
ends where the next one may begin."""
_INTRODUCER = re.compile(rb"\x1b|\xc2[\x90\x98\x9b\x9d-\x9f]")
_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[%(csi)s|[\]PX^_]%(string)s\x1b?|[ -/]{0,16})"
    rb"|\xc2(?:\x9b%(csi)s|[\x90\x98\x9d-\x9f]%(string)s\x1b?))\Z" % {b"csi": _CSI, b"string": _STRING}
)
_UNFINISHED_BYTES = 2 * _STRING_UNITS + 4
_HALF = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})(?=\x1b|\xc2[\x80-\x9f])")
"""The beginning of a character that a control function interrupts, so that the rest of the character is missing."""


def clean(raw: bytes) -> str:
    r"""Convert terminal output to readable text.

    Invalid UTF-8 becomes U+FFFD. Escape sequences and C1 controls are removed; an unterminated control string loses
    only its introducer. A line rewritten with carriage returns keeps its last state; `\r\n` becomes `\n`. Every other
    byte is kept, including tabs and NULs.
    """
    text = without_controls(raw)
    return "\n".join(_last_state(line) for line in text.split("\n")) if "\r" in text else text


def without_controls(raw: bytes) -> str:
    """Like `clean`, but keep carriage returns and the text that they overwrite."""
    if b"\x1b" in raw or b"\xc2" in raw:
        raw = _CONTROL.sub(b"", _HALF.sub(lambda half: half[0].decode("utf-8", "replace").encode(), raw))
    text = raw.decode("utf-8", "replace")
    return text.replace("\r\n", "\n") if "\r" in text else text


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def sanitize_for_terminal(text: str) -> str:
    """Make a sandbox's text safe for a user's terminal: no control, bidirectional or invisible formatting characters.

    Newline and tab stay; other C0 controls and DEL become their control pictures, U+2400 to U+2421.
    """
    return _UNSAFE.sub(_picture, clean(_NO_BYTE.sub("\ufffd", text).encode("utf-8", "surrogateescape")))


_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that do not stand for a byte; a model or JSON may contain them."""

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else ""  # noqa: PLR2004 - C0 and DEL


def whole_prefix(raw: bytes) -> int:
    """Return the number of bytes of a growing stream that can be shown: up to an unfinished character or escape."""
    introducers = [match.start() for match in _INTRODUCER.finditer(raw, max(0, len(raw) - _UNFINISHED_BYTES))]
    for start in introducers[-2:]:  # the last introducer may be the terminator of the string before it
        if _UNFINISHED.match(raw, start):
            return start
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 == 0xC0:  # noqa: PLR2004 - a lead byte: is its character complete?
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004 - RFC 3629 table 3.1
            return len(raw) if back >= size else len(raw) - back
        if byte & 0x80 == 0:
            break
    return len(raw)


_KEYS = {
    "ENTER": b"\n", "TAB": b"\t", "ESC": b"\x1b", "BS": b"\x7f", "SPACE": b" ",
    "UP": b"\x1b[A", "DOWN": b"\x1b[B", "RIGHT": b"\x1b[C", "LEFT": b"\x1b[D",
    "HOME": b"\x1b[H", "END": b"\x1b[F", "PGUP": b"\x1b[5~", "PGDN": b"\x1b[6~", "DEL": b"\x1b[3~",
}  # fmt: skip
_CONTROL_KEY = re.compile(r"(?:C-|CTRL[-+])([a-z@\[\]\\^_])", re.IGNORECASE)


def keystrokes(text: str) -> bytes:
    """Return the bytes of a key (`C-c`, `ENTER`, `UP`), or of text, with Enter added unless it ends in a newline."""
    key = text.strip()
    if control := _CONTROL_KEY.fullmatch(key):
        return bytes([ord(control[1].upper()) & 0x1F])
    if key.upper() in _KEYS and key.isupper():
        return _KEYS[key]
    return (text if text.endswith("\n") else text + "\n").encode("utf-8", "surrogateescape")
