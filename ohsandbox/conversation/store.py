"""Where conversations lie, and what is known of each without reading its log."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from ohsandbox.errors import UsageError
from ohsandbox.events import clean_text
from ohsandbox.persistence import home_dir, make_private_dir, write_atomically

METADATA_NAME = "metadata.json"

TITLE_CHARS = 80
"""One line of a list."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ConversationMetadata(BaseModel):
    """What a list of conversations shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    conversation_id: str
    title: str | None = None
    """The beginning of the first message."""
    created_at: AwareDatetime
    user_id: str | None = None
    model: str | None = None


class ConversationStore(Protocol):
    """Keeps metadata."""

    def save(self, metadata: ConversationMetadata) -> None:
        """Keep it in the place of what was kept for the conversation before."""

    def load(self, conversation_id: str) -> ConversationMetadata | None:
        """What was kept; None where there is nothing, or nothing readable."""


class FileConversationStore:
    """One `metadata.json` in each conversation's directory, replaced atomically."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Nothing is made yet. root None is `~/.ohsandbox/conversations`.

        Raises:
            UsageError: root is None and HOME is not set.
        """
        self.root = default_root() if root is None else Path(root)

    def save(self, metadata: ConversationMetadata) -> None:
        """Write it.

        Raises:
            UsageError: the directory cannot be used.
        """
        directory = self.root / check_id(metadata.conversation_id)
        make_private_dir(directory)
        try:
            write_atomically(directory / METADATA_NAME, metadata.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            raise UsageError(
                f"Directory {str(directory)!r} cannot be written: {error.strerror}. Free space, or name another place."
            ) from error

    def load(self, conversation_id: str) -> ConversationMetadata | None:
        """Read it; damaged metadata counts as none, for the log holds what matters."""
        try:
            data = (self.root / check_id(conversation_id) / METADATA_NAME).read_bytes()
            return ConversationMetadata.model_validate_json(data)
        except (OSError, ValidationError):
            return None


def default_root() -> Path:
    """`~/.ohsandbox/conversations`.

    Raises:
        UsageError: HOME is not set.
    """
    return home_dir() / "conversations"


def new_id() -> str:
    """A fresh id; sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"


def check_id(conversation_id: str) -> str:
    """The id, which names a directory.

    Raises:
        UsageError: it could be a path, or is too long.
    """
    if not _ID.fullmatch(conversation_id):
        raise UsageError(
            f"Conversation id {conversation_id[:200]!r} is not allowed. "
            "Use letters, digits, '.', '_' and '-', at most 128, the first a letter or digit."
        )
    return conversation_id


def title_of(text: str) -> str | None:
    """The beginning of a message, on one line; None where there is nothing to see."""
    return " ".join(clean_text(text[: 4 * TITLE_CHARS]).split())[:TITLE_CHARS] or None
