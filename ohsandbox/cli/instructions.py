"""The user's own words at the end of the system prompt."""

from __future__ import annotations

from pathlib import Path

from ohsandbox.errors import UsageError

MAX_BYTES = 64 * 1024
"""About 16,000 tokens, which every request carries."""


def instructions(file: str | None) -> list[str]:
    """The file's text, marked as what it is; nothing where no file is named.

    Raises:
        UsageError: it cannot be read, is no UTF-8 text, or is over MAX_BYTES.
    """
    if file is None:
        return []
    try:
        data = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"Instructions {file!r} cannot be read: {error.strerror}. Name a text file.") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"Instructions {file!r} have {len(data)} bytes, at most {MAX_BYTES} are taken. Shorten them.")
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"Instructions {file!r} are no UTF-8 text (byte {error.start}). Convert them.") from None
    return [f"# Instructions of the user\n{text}"] if text else []
