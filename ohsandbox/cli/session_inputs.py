"""What a session begins with: secrets that are not shown, a file of instructions, the last words of what is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ohsandbox.cli.rendering.text import hide
from ohsandbox.conversation.result import answer_in
from ohsandbox.errors import UsageError
from ohsandbox.persistence import stream_events
from ohsandbox.secrets import Secrets, host_keys
from ohsandbox.timetravel.fork import is_turn

if TYPE_CHECKING:
    from ohsandbox.events import SDKEvent
    from ohsandbox.settings import Settings

MAX_INSTRUCTIONS_BYTES = 64 * 1024
"""About 16,000 tokens, which every request carries."""


def hide_secrets(settings: Settings, secrets: Secrets) -> None:
    """Print none of the secrets and keys from now on."""
    key = settings.resolved_api_key()
    hide(secrets.hiding(host_keys() | ({"api_key": key} if key else {})).masker)


def last_words(directory: Path) -> list[SDKEvent]:
    """The last thing that the user said, and the last that the agent answered to it."""
    words: list[SDKEvent] = []

    def take(event: SDKEvent) -> None:
        if is_turn(event):
            words[:] = [event]
        elif words and answer_in(event) is not None:
            words[1:] = [event]

    stream_events(directory, take)
    return words


def instructions_of(file: str | None) -> list[str]:
    """The file's text, marked as what it is; nothing where no file is named."""
    if file is None:
        return []
    what = f"Instructions file {file!r}"
    try:
        data = Path(file).expanduser().read_bytes()
        text = data.decode().strip()
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}. Name a text file.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text (byte {error.start}). Convert it.") from None
    if len(data) > MAX_INSTRUCTIONS_BYTES:
        raise UsageError(f"{what} has {len(data)} bytes, more than {MAX_INSTRUCTIONS_BYTES}. Shorten it.")
    return [f"# Instructions of the user\n{text}"] if text else []
